//! One round of a subject, with or without a tool.

use crate::attacher::cpu_ns;
use crate::tools::{Outcome, Running, Tool};
use std::time::Instant;

/// Cost of one operation of a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figure {
    /// Elapsed nanoseconds.
    pub ns: f64,
    /// Processor time of the target per operation in nanoseconds, in user and kernel mode. Other
    /// load on the machine changes this figure less than elapsed time. `None` for programs that
    /// measure themselves, because their figures already exclude waits for a processor.
    pub cpu_ns: Option<f64>,
}

impl From<f64> for Figure {
    fn from(ns: f64) -> Figure {
        Figure { ns, cpu_ns: None }
    }
}

impl Figure {
    /// Measures work that returns its number of operations.
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

/// Result of one round.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// One figure for each workload of the subject.
    pub figures: Vec<Figure>,
    /// Result of the tool. The default value if there is no tool.
    pub outcome: Outcome,
    /// Mean number of processors that the tool kept busy outside the target during the round.
    pub tool_cpu: f64,
    /// Growth of the target's resident memory from before the attach to the end of the round,
    /// including shared memory, in bytes.
    pub growth_bytes: i64,
}

/// A program that can be measured with and without a tool.
pub trait Subject {
    /// Runs one round.
    fn round(&mut self, tool: Option<&dyn Tool>) -> Result<Round, String>;
}

/// A process that keeps running while tools attach and detach, with the function that measures its
/// work.
pub struct Standing<F> {
    /// Process id.
    pub pid: u32,
    /// Does the work, and returns one figure for each workload.
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

/// Measures the share of a processor that a tool uses.
pub struct Watch {
    start: Instant,
    cpu_ns: u64,
}

impl Watch {
    /// Begins to measure.
    pub fn start(running: &dyn Running) -> Watch {
        Watch {
            start: Instant::now(),
            cpu_ns: running.cpu_ns(),
        }
    }

    /// Returns the processors that the tool used since [`Watch::start`].
    pub fn end(self, running: &dyn Running) -> f64 {
        let used = running.cpu_ns().saturating_sub(self.cpu_ns);
        used as f64 / self.start.elapsed().as_nanos().max(1) as f64
    }
}

/// Returns the resident memory of a process in bytes (proc_pid_status(5)), or 0 if the process has
/// ended.
pub fn resident_bytes(pid: u32) -> i64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<i64>().ok());
    kib.unwrap_or(0) * 1024
}
