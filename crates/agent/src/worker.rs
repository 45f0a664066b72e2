//! The thread that traces one target, from the attach to the end: ptrace requests must come from the thread that
//! seized.

use crate::board::Link;
use crate::sums::SampledSites;
use crate::target_job::TargetJob;
use memhook_attach::{Detached, End, Error, Trace, TraceConfig};
use std::sync::Arc;
use std::thread::JoinHandle;

/// How a trace ended.
#[derive(Debug)]
pub enum Ended {
    /// The process has ended, or executes another program.
    Gone,
    /// The process goes on, and nothing of ours is in its way.
    Left,
    /// The process goes on, but not everything could be put back: why.
    NotRestored(String),
    /// It was never traced.
    Refused(Error),
    /// We have failed. The process was detached from.
    Panicked,
}

/// The thread.
pub struct Worker {
    thread: JoinHandle<Result<End, Error>>,
    /// What is told in both directions.
    pub link: Arc<Link>,
}

impl Worker {
    /// Begins an attach.
    pub fn start(
        pid: i32,
        config: TraceConfig,
        mut job: TargetJob,
        link: Arc<Link>,
    ) -> std::io::Result<Worker> {
        let builder = std::thread::Builder::new().name("target".into());
        let thread = builder.spawn(move || {
            let sampled = SampledSites::new(config.sample_bytes);
            let mut trace = Trace::observed(pid, config, sampled)?;
            Ok(trace.run(None, &mut job))
        })?;
        Ok(Worker { thread, link })
    }

    /// Whether nothing is left to do.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until then.
    pub fn join(self) -> Ended {
        match self.thread.join() {
            Ok(Ok(End::Detached(Detached::SlotsLeft(left)))) => Ended::NotRestored(format!(
                "{left} slots could not be restored; they pass through"
            )),
            Ok(Ok(End::Detached(Detached::Failed(error)))) => {
                Ended::NotRestored(crate::said::chain(&error))
            }
            Ok(Ok(End::Detached(Detached::Clean))) => Ended::Left,
            Ok(Ok(_)) => Ended::Gone,
            Ok(Err(error)) => Ended::Refused(error),
            // Dropping the trace has detached from the process.
            Err(_) => Ended::Panicked,
        }
    }
}
