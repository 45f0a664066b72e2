//! Rounds with and without tools in turn.

use crate::tools::{Outcome, Running, Tool};
use std::time::Instant;

/// What one round found.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// Nanoseconds an operation, one for each work of the subject.
    pub figures: Vec<f64>,
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
    /// Does the work; nanoseconds an operation, one for each work.
    pub measure: F,
}

impl<F: FnMut() -> Result<Vec<f64>, String>> Subject for Standing<F> {
    fn round(&mut self, tool: Option<&dyn Tool>) -> Result<Round, String> {
        let Some(tool) = tool else {
            return Ok(Round {
                figures: (self.measure)()?,
                ..Round::default()
            });
        };
        let before = resident_bytes(self.pid);
        let running = tool.start(self.pid)?;
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

/// The rounds with one tool.
pub struct Traced {
    /// The tool's name.
    pub tool: String,
    /// One round for each cycle; none if the tool went on failing.
    pub rounds: Vec<Round>,
    /// Rounds that failed and were taken again.
    pub repeated: u32,
    /// What the tool could not do, in the last round that failed.
    pub failure: Option<String>,
}

/// All rounds of a subject.
pub struct Alternated {
    /// Without a tool, one for each cycle.
    pub untraced: Vec<Round>,
    /// With each tool.
    pub traced: Vec<Traced>,
}

impl Alternated {
    /// Without any round, because the subject could not be had.
    pub fn impossible(tools: &[&str], why: &str) -> Alternated {
        let traced = tools.iter().map(|&tool| Traced {
            tool: tool.to_owned(),
            rounds: Vec::new(),
            repeated: 0,
            failure: Some(why.to_owned()),
        });
        Alternated {
            untraced: Vec::new(),
            traced: traced.collect(),
        }
    }
}

/// Failures of a tool after which it is left out.
const PATIENCE: u32 = 3;

/// In each cycle one round without a tool, then one with each. A round that fails is taken again; a
/// tool that goes on failing is left out. A subject that fails without a tool is a mistake of the
/// benchmark.
pub fn alternate(subject: &mut dyn Subject, tools: &[&dyn Tool], cycles: usize) -> Alternated {
    let mut all = Alternated {
        untraced: Vec::new(),
        traced: tools
            .iter()
            .map(|tool| Traced {
                tool: tool.name().to_owned(),
                rounds: Vec::new(),
                repeated: 0,
                failure: None,
            })
            .collect(),
    };
    for _ in 0..cycles {
        all.untraced
            .push(subject.round(None).expect("a round without a tool"));
        for (&tool, traced) in tools.iter().zip(&mut all.traced) {
            while traced.repeated < PATIENCE {
                match subject.round(Some(tool)) {
                    Ok(round) => {
                        traced.rounds.push(round);
                        break;
                    }
                    Err(failure) => {
                        traced.repeated += 1;
                        traced.failure = Some(failure);
                    }
                }
            }
        }
    }
    // Fewer rounds than cycles cannot be compared round by round.
    for traced in &mut all.traced {
        if traced.rounds.len() < cycles {
            traced.rounds.clear();
        }
    }
    all
}
