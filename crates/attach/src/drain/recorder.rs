//! Records an attach to a file: passes the drain thread's output to the writer.

use memhook_abi::{Accesses, Event, Op, RawEvent};
use memhook_ledger::{Ledger, Observer};
use memhook_process::ModuleImage;
use memhook_recording::{NamedFrame, Writer};
use memhook_stream::{Region, Stack, is_python};
use std::collections::HashSet;
use std::ops::Range;

/// Addresses of our own code in backtraces, which reports omit.
#[derive(Clone, Default)]
pub struct OwnCode {
    /// The hook's mapping (avma).
    pub hook: std::ops::Range<u64>,
    /// Return addresses of a wrapped dlopen.
    pub gadgets: HashSet<u64>,
}

/// Recorder that runs on the drain thread.
pub struct Recorder {
    /// The file.
    pub writer: Writer,
    /// Our own code, which backtraces in the file omit.
    pub own_code: OwnCode,
    /// Threads that have recorded an event.
    threads: HashSet<u32>,
    /// New threads whose names have not been requested yet.
    pub new_threads: Vec<u32>,
    last_thread: u32,
    /// Python functions in backtraces whose names are already in the file.
    named_frames: HashSet<u64>,
    /// Areas with code that the process makes at run time.
    pub made_areas: Vec<Range<u64>>,
    /// Return addresses in run-time code areas whose names are not in the file.
    pub made_frames: HashSet<u64>,
}

impl Recorder {
    /// Creates a recorder without events.
    pub fn new(writer: Writer) -> Recorder {
        Recorder {
            writer,
            own_code: OwnCode::default(),
            threads: HashSet::new(),
            new_threads: Vec::new(),
            last_thread: 0,
            named_frames: HashSet::new(),
            made_areas: Vec::new(),
            made_frames: HashSet::new(),
        }
    }

    /// Declares the ring of the following events.
    pub fn begin_ring(&mut self, ring: usize, tid: u32) {
        self.writer.begin_ring(ring, tid);
        if tid != self.last_thread {
            self.last_thread = tid;
            if self.threads.insert(tid) {
                self.new_threads.push(tid);
            }
        }
    }

    /// Sets the sampling level for later allocations of this ring; at level 0, all are recorded.
    pub fn set_sampling(&mut self, level: u8) {
        self.writer.set_sampling(level);
    }

    /// Records the reads and writes of the block that the next release frees.
    pub fn access(&mut self, accesses: &Accesses) {
        self.writer.access(accesses);
    }

    /// Records an event of the current ring.
    #[inline(always)]
    pub fn event(&mut self, op: Op, words: RawEvent, size_bytes: u64, time_ns: u64) {
        self.writer.event(words.unpack_as(op), size_bytes, time_ns);
    }

    /// Records an event of a mapping.
    pub fn mapping(&mut self, event: Event, bytes: u64, time_ns: u64) {
        self.writer.event(event, bytes, time_ns);
    }

    /// Ends a pass, after the ledger has ended it.
    pub fn end_pass(&mut self, now_ns: u64, ledger: &Ledger<impl Observer>, region: &Region) {
        let Recorder {
            writer,
            own_code,
            named_frames,
            made_areas,
            made_frames,
            ..
        } = self;
        let mut new_names = Vec::new();
        writer.end_pass(now_ns, |id| {
            let found = stack(region, own_code, id)?;
            let python = found.frames.iter().filter(|&&frame| is_python(frame));
            let new = python.filter(|&&frame| named_frames.insert(frame));
            new_names.extend(new.filter_map(|&frame| named_frame(region, frame)));
            let is_made = |frame: &&u64| made_areas.iter().any(|area| area.contains(frame));
            made_frames.extend(found.frames.iter().filter(is_made));
            Some(found)
        });
        writer.named_frames(&new_names);
        let stack = |id| stack(region, own_code, id);
        if writer.wants_checkpoint(ledger.totals().live_blocks) {
            if ledger.bounded().is_some() {
                writer.go_on_without_ledger();
            } else {
                writer.checkpoint(ledger, stack);
            }
        }
    }

    /// Records the last interval of a recording of sums.
    pub fn last_interval(&mut self, ledger: &Ledger<impl Observer>, region: &Region) {
        let Recorder {
            writer, own_code, ..
        } = self;
        if !writer.is_summary() {
            return;
        }
        if ledger.bounded().is_some() {
            return writer.go_on_without_ledger();
        }
        writer.checkpoint(ledger, |id| stack(region, own_code, id));
    }

    /// Returns the threads that have recorded an event.
    pub fn threads(&self) -> impl Iterator<Item = u32> + '_ {
        self.threads.iter().copied()
    }
}

fn named_frame(region: &Region, address: u64) -> Option<NamedFrame> {
    let found = region.python_location(address)?;
    Some(NamedFrame {
        address,
        function: found.function,
        file: found.file,
        line: found.line,
    })
}

fn stack(region: &Region, own_code: &OwnCode, id: u32) -> Option<Stack> {
    let mut stack = region.stack(id)?;
    stack
        .frames
        .retain(|pc| !own_code.hook.contains(pc) && !own_code.gadgets.contains(pc));
    Some(stack)
}

impl OwnCode {
    /// Creates the set from the hook's mapping and the return addresses of a wrapped dlopen.
    pub fn new(hook: Option<&ModuleImage>, gadgets: HashSet<u64>) -> OwnCode {
        OwnCode {
            hook: hook.map_or(0..0, |hook| hook.start..hook.end),
            gadgets,
        }
    }
}
