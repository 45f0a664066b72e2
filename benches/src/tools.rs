//! Tools that trace the target during a round.

use crate::attacher::Attacher;
use std::time::Duration;

/// Counts that a tool reports when it ends.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Number of events that the tool could not record.
    pub lost: u64,
    /// Number of events that the tool recorded.
    pub events: u64,
}

/// A tool that can attach to a running process any number of times.
pub trait Tool {
    /// Returns the name that tables show.
    fn name(&self) -> &str;
    /// Starts tracing, and returns when it is active.
    fn start(&self, pid: u32) -> Result<Box<dyn Running>, String>;
    /// Returns the time for which the target works under the tool before the measurement begins.
    fn settles_in(&self) -> Duration {
        Duration::ZERO
    }
}

/// A running tool.
pub trait Running {
    /// Returns the processor time of the tool outside the target so far, in nanoseconds.
    fn cpu_ns(&self) -> u64;
    /// Detaches the tool from the target.
    fn finish(self: Box<Self>) -> Result<Outcome, String>;
    /// Waits until the tool has noticed the end of the target.
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
    /// Creates the tool with these options of `attach`, separated by spaces.
    pub fn new(name: &str, options: &str) -> Memhook {
        Memhook {
            name: name.to_owned(),
            options: options.split_whitespace().map(str::to_owned).collect(),
            settles_in: Duration::ZERO,
        }
    }

    /// Sets the time that memhook-rs needs to settle while the target works.
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

/// Measures the cost that remains after an attach: it attaches and detaches before the round.
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
