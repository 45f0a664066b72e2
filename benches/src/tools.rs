//! What the target is traced with during a round.

use crate::attacher::Attacher;
use std::time::Duration;

/// What a tool says in the end.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Events that it could not record.
    pub lost: u64,
    /// Events that it recorded.
    pub events: u64,
}

/// A tool that can be put onto a running process, any number of times.
pub trait Tool {
    /// As tables show it.
    fn name(&self) -> &str;
    /// Returns when tracing is on.
    fn start(&self, pid: u32) -> Result<Box<dyn Running>, String>;
    /// How long the target works under the tool before anything counts.
    fn settles_in(&self) -> Duration {
        Duration::ZERO
    }
}

/// A tool at work.
pub trait Running {
    /// Its processor time outside of the target so far, in nanoseconds.
    fn cpu_ns(&self) -> u64;
    /// Takes it off the target.
    fn finish(self: Box<Self>) -> Result<Outcome, String>;
    /// The target has ended: waits until the tool has seen it.
    fn after_end(self: Box<Self>) -> Result<Outcome, String> {
        self.finish()
    }
}

/// memhook-rs with some options.
pub struct Memhook {
    name: String,
    options: Vec<String>,
    settles_in: Duration,
}

impl Memhook {
    /// With these options of `attach`, separated by spaces.
    pub fn new(name: &str, options: &str) -> Memhook {
        Memhook {
            name: name.to_owned(),
            options: options.split_whitespace().map(str::to_owned).collect(),
            settles_in: Duration::ZERO,
        }
    }

    /// The same, where it takes so much work of the target until it has found how to trace it.
    pub fn settling(self, settles_in: Duration) -> Memhook {
        Memhook { settles_in, ..self }
    }
}

impl Tool for Memhook {
    fn name(&self) -> &str {
        &self.name
    }

    fn start(&self, pid: u32) -> Result<Box<dyn Running>, String> {
        Ok(Box::new(Attacher::start(pid, &self.options)?))
    }

    fn settles_in(&self) -> Duration {
        self.settles_in
    }
}

impl Running for Attacher {
    fn cpu_ns(&self) -> u64 {
        Attacher::cpu_ns(self)
    }

    fn finish(self: Box<Self>) -> Result<Outcome, String> {
        outcome(self.detach()?)
    }

    fn after_end(self: Box<Self>) -> Result<Outcome, String> {
        outcome(self.last_report()?)
    }
}

fn outcome(report: crate::Report) -> Result<Outcome, String> {
    Ok(Outcome {
        lost: report.lost(),
        events: report.events(),
    })
}

/// What an attach leaves behind: attached and detached before the round.
pub struct AfterDetach;

impl Tool for AfterDetach {
    fn name(&self) -> &str {
        "after detach"
    }

    fn start(&self, pid: u32) -> Result<Box<dyn Running>, String> {
        Attacher::start(pid, &[])?.detach()?;
        Ok(Box::new(Gone))
    }
}

struct Gone;

impl Running for Gone {
    fn cpu_ns(&self) -> u64 {
        0
    }

    fn finish(self: Box<Self>) -> Result<Outcome, String> {
        Ok(Outcome::default())
    }
}
