//! User probes of the kernel through perf_event_open(2) and bpf(2). Their cost is the minimum for
//! every tracer built on them (bpftrace, bcc, perf).
//!
//! User probes need root, or CAP_PERFMON and CAP_BPF.

mod bpf;
mod event;
mod ring;
mod symbol;

use crate::tools::{Outcome, Running, Tool};
use bpf::Program;
pub use event::{Event, Place};
use ring::Reader;
pub use symbol::{address, file_offset};

/// Maximum number of frames in a recorded stack.
pub const FRAMES: u16 = 10;

/// Action at a probe.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The kernel counts the hit.
    Count,
    /// The kernel writes a record with the user stack into a ring, which we drain.
    Callchain,
    /// A BPF program runs and returns immediately.
    Program,
    /// A BPF program runs and takes the user stack.
    ProgramWithStack,
}

/// Probes on functions of the target's C library.
pub struct Uprobes {
    name: String,
    probes: Vec<(&'static str, bool)>,
    action: Action,
}

impl Uprobes {
    /// Creates probes on these functions. With `true`, the probe fires when the function returns.
    pub fn new(name: &str, probes: &[(&'static str, bool)], action: Action) -> Uprobes {
        Uprobes {
            name: name.to_owned(),
            probes: probes.to_vec(),
            action,
        }
    }
}

impl Tool for Uprobes {
    fn name(&self) -> &str {
        &self.name
    }

    fn start(&self, pid: u32) -> Result<Box<dyn Running>, String> {
        let program = match self.action {
            Action::Program => Some(Program::returning()?),
            Action::ProgramWithStack => Some(Program::taking_stacks(FRAMES)?),
            Action::Count | Action::Callchain => None,
        };
        let mut probing = Probing {
            events: Vec::new(),
            reader: None,
            _program: program,
        };
        // An event traces one thread, and existing threads do not inherit it.
        for tid in memhook_process::thread_ids(pid as i32).map_err(|e| e.to_string())? {
            for &(function, at_return) in &self.probes {
                let place = Place {
                    file_offset: symbol::in_libc(pid as i32, function)?,
                    at_return,
                };
                let chain = (self.action == Action::Callchain).then_some(FRAMES);
                let event = Event::open(tid, place, chain)?;
                if let Some(program) = &probing._program {
                    event.run(program)?;
                }
                probing.events.push(event);
            }
        }
        if self.action == Action::Callchain {
            probing.reader = Some(Reader::start(&probing.events)?);
        }
        for event in &probing.events {
            event.enable()?;
        }
        Ok(Box::new(probing))
    }
}

struct Probing {
    events: Vec<Event>,
    reader: Option<Reader>,
    _program: Option<Program>,
}

impl Running for Probing {
    fn cpu_ns(&self) -> u64 {
        self.reader.as_ref().map_or(0, Reader::cpu_ns)
    }

    fn finish(mut self: Box<Self>) -> Result<Outcome, String> {
        for event in &self.events {
            event.disable()?;
        }
        let (events, lost) = match self.reader.take() {
            Some(reader) => reader.finish(),
            None => {
                let counts: Result<Vec<u64>, String> =
                    self.events.iter().map(Event::count).collect();
                (counts?.iter().sum(), 0)
            }
        };
        if events == 0 {
            return Err("no probe was hit: the target does not use these functions of libc".into());
        }
        Ok(Outcome { lost, events })
    }
}
