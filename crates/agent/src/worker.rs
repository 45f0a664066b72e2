//! The thread that traces one target, from the attach to the end. ptrace requests must come from
//! the thread that seized the target.

use crate::black_box::BlackBoxes;
use crate::board::Link;
use crate::config::Reclaim;
use crate::scanning::Searches;
use crate::sums::SampledSites;
use crate::target_job::TargetJob;
use memhook_attach::{Detached, End, Lookout, SharedFiles, Trace, TraceConfig};
use memhook_process::Chosen;
use memhook_symbols::SharedReaders;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Outcome of a trace.
#[derive(Debug)]
pub enum Ended {
    /// The process has ended, or executes another program.
    Gone,
    /// The process continues, and nothing of ours affects it.
    Left,
    /// The process continues, but could not be restored completely, for this reason.
    NotRestored(String),
    /// The process was never traced.
    Refused(String),
    /// Our thread panicked, and detached from the process.
    Panicked,
}

/// State that the threads of all targets share.
pub struct Shared {
    /// Upkeep of quiet targets.
    pub lookout: Lookout,
    /// Shared files of targets.
    pub files: SharedFiles,
    /// Readers of names.
    pub names: SharedReaders,
    /// Black boxes of processes that may run out of memory.
    pub black_boxes: BlackBoxes,
    /// Lock of the process whose memory is being copied and searched.
    pub one_scan: Mutex<()>,
    /// Lock of the process that is traced for advice.
    pub one_examination: Mutex<()>,
    /// True if the agent is over its budget, which delays searches that can wait.
    pub is_held_back: AtomicBool,
}

/// Thread of one target.
pub struct Worker {
    thread: JoinHandle<Ended>,
    /// Messages in both directions.
    pub link: Arc<Link>,
}

impl Worker {
    /// Begins an attach.
    pub fn start(
        chosen: Chosen,
        config: TraceConfig,
        mut job: TargetJob,
        link: Arc<Link>,
        shared: &Arc<Shared>,
    ) -> std::io::Result<Worker> {
        let builder = std::thread::Builder::new().name("target".into());
        let (shared, of_thread) = (Arc::clone(shared), Arc::clone(&link));
        let thread = builder.spawn(move || {
            of_thread.tell_thread(rustix::thread::gettid().as_raw_nonzero().get());
            let sampled = SampledSites::new(config.sampled_allocations());
            // The process may have ended since it was chosen, and its id may belong to another
            // process, which must not be touched.
            let _chosen = match chosen.keep() {
                Ok(kept) => kept,
                Err(replaced) => return Ended::Refused(replaced.to_string()),
            };
            match Trace::observed_sharing(chosen.pid, config, sampled, &shared.files) {
                Ok(mut trace) => {
                    let (pid, held) = (chosen.pid, trace.session().held_time());
                    tracing::info!(pid, ?held, "traced");
                    trace.watch_from(&shared.lookout);
                    trace.run(None, &mut job).into()
                }
                Err(error) => Ended::Refused(crate::said::chain(&error)),
            }
        })?;
        Ok(Worker { thread, link })
    }

    /// Begins to search an untraced process. `reclaim` says what to do with its unreachable blocks.
    pub fn start_searches(searches: Searches, reclaim: Option<Reclaim>) -> std::io::Result<Worker> {
        let builder = std::thread::Builder::new().name("scans".into());
        let link = Arc::clone(searches.link());
        let thread = builder.spawn(move || {
            let own = rustix::thread::gettid().as_raw_nonzero().get();
            searches.link().tell_thread(own);
            searches.run(reclaim)
        })?;
        Ok(Worker { thread, link })
    }

    /// Returns true if the thread has finished.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the thread's end, and returns the outcome.
    pub fn join(self) -> Ended {
        // Dropping the trace has detached from the process.
        self.thread.join().unwrap_or(Ended::Panicked)
    }
}

impl Ended {
    /// Returns one word for the log.
    pub fn name(&self) -> &'static str {
        match self {
            Ended::Gone => "gone",
            Ended::Left => "left",
            Ended::NotRestored(_) => "not restored",
            Ended::Refused(_) => "refused",
            Ended::Panicked => "failed",
        }
    }
}

impl From<End> for Ended {
    fn from(end: End) -> Ended {
        match end {
            End::Detached(Detached::SlotsLeft(left)) => Ended::NotRestored(format!(
                "{left} slots could not be restored; calls through them still run the inactive hook"
            )),
            End::Detached(Detached::Failed(error)) => {
                Ended::NotRestored(crate::said::chain(&error))
            }
            End::Detached(Detached::Clean) => Ended::Left,
            _ => Ended::Gone,
        }
    }
}
