//! One round of a subject, with or without a tool.

use crate::attacher::cpu_ns;
use crate::tools::{Outcome, Running, Tool};
use std::time::Instant;

/// What an operation of one work took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figure {
    /// Nanoseconds.
    pub ns: f64,
    /// Nanoseconds that the target ran for it, in user and kernel mode: what others do on the machine
    /// changes it less. Programs that measure themselves leave out their waits for a processor anyway.
    pub cpu_ns: Option<f64>,
}

impl From<f64> for Figure {
    fn from(ns: f64) -> Figure {
        Figure { ns, cpu_ns: None }
    }
}

impl Figure {
    /// Of work that says how many operations it did.
    pub fn of(pid: u32, work: impl FnOnce() -> Result<f64, String>) -> Result<Figure, String> {
        let (start, cpu) = (Instant::now(), cpu_ns(pid));
        let operations = work()?;
        let ns = start.elapsed().as_nanos() as f64;
        let cpu = cpu_ns(pid).saturating_sub(cpu) as f64;
        Ok(Figure {
            ns: ns / operations,
            cpu_ns: Some(cpu / operations),
        })
    }
}

/// What one round found.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// One for each work of the subject.
    pub figures: Vec<Figure>,
    /// Of the tool; nothing without one.
    pub outcome: Outcome,
    /// Processors that the tool kept busy outside of the target, while the round lasted.
    pub tool_cpu: f64,
    /// By how much the target's resident memory grew from before the tool to the end of the round,
    /// shared memory included, in bytes.
    pub growth_bytes: i64,
}

/// Something that can be measured with and without a tool.
pub trait Subject {
    /// One round.
    fn round(&mut self, tool: Option<&dyn Tool>) -> Result<Round, String>;
}

/// A process that stands while tools come and go, and how its work is measured.
pub struct Standing<F> {
    /// Process id.
    pub pid: u32,
    /// Does the work; one figure for each.
    pub measure: F,
}

impl<F: FnMut() -> Result<Vec<Figure>, String>> Subject for Standing<F> {
    fn round(&mut self, tool: Option<&dyn Tool>) -> Result<Round, String> {
        let Some(tool) = tool else {
            return Ok(Round {
                figures: (self.measure)()?,
                ..Round::default()
            });
        };
        let before = resident_bytes(self.pid);
        let running = tool.start(self.pid)?;
        let started = Instant::now();
        while started.elapsed() < tool.settles_in() {
            (self.measure)()?;
        }
        let watch = Watch::start(&*running);
        let figures = (self.measure)()?;
        let tool_cpu = watch.end(&*running);
        let growth_bytes = resident_bytes(self.pid) - before;
        Ok(Round {
            figures,
            outcome: running.finish()?,
            tool_cpu,
            growth_bytes,
        })
    }
}

/// Takes the share of a processor that a tool needs.
pub struct Watch {
    start: Instant,
    cpu_ns: u64,
}

impl Watch {
    /// From now on.
    pub fn start(running: &dyn Running) -> Watch {
        Watch {
            start: Instant::now(),
            cpu_ns: running.cpu_ns(),
        }
    }

    /// Until now.
    pub fn end(self, running: &dyn Running) -> f64 {
        let used = running.cpu_ns().saturating_sub(self.cpu_ns);
        used as f64 / self.start.elapsed().as_nanos().max(1) as f64
    }
}

/// Resident memory of a process in bytes (proc_pid_status(5)); 0 when it has ended.
pub fn resident_bytes(pid: u32) -> i64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<i64>().ok());
    kib.unwrap_or(0) * 1024
}
