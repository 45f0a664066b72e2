//! Thread that traces one of several followed processes, from the attach to the end.

use super::births::Births;
use super::parent::Parent;
use crate::config::TraceConfig;
use crate::error::Error;
use crate::job::{End, Job};
use crate::program::Work;
use crate::session::Session;
use crate::trace::Trace;
use crossbeam_channel::{Receiver, SendTimeoutError, Sender, bounded};
use memhook_inject::stops;
use memhook_process::Chosen;
use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering::Relaxed},
};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Limits the attaches in progress to the number of processors. More attaches would only slow each other down, and each
/// holds a thread of its process for some time.
#[derive(Clone)]
pub(super) struct Permits {
    take: Sender<()>,
    give: Receiver<()>,
}

impl Permits {
    pub fn new() -> Permits {
        let processors = std::thread::available_parallelism();
        let (take, give) = bounded(processors.map_or(1, usize::from));
        Permits { take, give }
    }

    /// Runs the work once it is permitted; returns `None` if tracing is to end before that.
    fn within<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        const PAUSE: Duration = Duration::from_millis(20);
        while let Err(SendTimeoutError::Timeout(())) = self.take.send_timeout((), PAUSE) {
            if stops() > 0 {
                return None;
            }
        }
        let done = work();
        let _ = self.give.try_recv();
        Some(done)
    }
}

/// End of all traces, if there is a time limit.
///
/// The time limit runs from the start of the first trace. Otherwise, on a busy machine, an attach might take longer
/// than the whole limit, and no trace would begin.
#[derive(Clone)]
pub(super) struct Until {
    duration: Option<Duration>,
    at: Arc<OnceLock<Instant>>,
}

impl Until {
    pub fn new(duration: Option<Duration>) -> Until {
        Until {
            duration,
            at: Arc::default(),
        }
    }

    /// Starts the clock of the time limit unless it is already running, and returns the time at which the limit
    /// expires.
    pub fn begin(&self) -> Option<Instant> {
        let duration = self.duration?;
        Some(*self.at.get_or_init(|| Instant::now() + duration))
    }

    /// Returns true if the time has begun and is over.
    pub fn is_over(&self) -> bool {
        self.at.get().is_some_and(|&at| Instant::now() >= at)
    }
}

/// Parameters of an attach.
pub(super) struct Begin {
    pub chosen: Chosen,
    pub config: TraceConfig,
    pub until: Until,
    pub permits: Permits,
    /// State of births, if the process's children are traced from birth.
    pub births: Option<Arc<Births>>,
}

/// The thread.
pub(super) struct Worker {
    thread: JoinHandle<Result<End, Error>>,
    is_attached: Arc<AtomicBool>,
}

impl Worker {
    pub fn start(begin: Begin, work: Work) -> Result<Worker, Error> {
        let is_attached = Arc::new(AtomicBool::new(false));
        let tell = Arc::clone(&is_attached);
        let builder = std::thread::Builder::new().name("follower".into());
        let thread = builder.spawn(move || trace(begin, work, &tell));
        Ok(Worker {
            thread: thread.map_err(Error::Thread)?,
            is_attached,
        })
    }

    /// Takes over a child that is already traced.
    pub fn take_over(begin: Begin, session: Session, work: Work) -> Result<Worker, Error> {
        let is_attached = Arc::new(AtomicBool::new(true));
        let builder = std::thread::Builder::new().name("follower".into());
        let trace = Trace::of(session, &begin.config, ());
        let thread = builder.spawn(move || Ok(follow(trace, &begin.until, work)));
        Ok(Worker {
            thread: thread.map_err(Error::Thread)?,
            is_attached,
        })
    }

    /// Returns true if every slot has been patched.
    pub fn is_attached(&self) -> bool {
        self.is_attached.load(Relaxed)
    }

    /// Returns true if the process is no longer traced and its job is done.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until the trace is finished.
    pub fn join(self) -> Result<End, Error> {
        self.thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Attaches and traces on the calling thread, because only the thread that seized a tracee can make ptrace requests for
/// it.
fn trace(begin: Begin, work: Work, is_attached: &AtomicBool) -> Result<End, Error> {
    let Begin { chosen, config, .. } = begin;
    let attached = begin.permits.within(|| {
        let _kept = chosen.keep()?;
        Trace::start(chosen.pid, config)
    });
    let too_late = || Err(Error::Refused("it ended before the attach".into()));
    let mut trace = match attached.unwrap_or_else(too_late) {
        Ok(trace) => trace,
        Err(error) => {
            if let Some(recording) = work.recording {
                recording.abandon();
            }
            return Err(error);
        }
    };
    is_attached.store(true, Relaxed);
    let job: Box<dyn Job + Send> = match begin.births {
        Some(births) => {
            let mut parent = Parent::new(work.job, births);
            parent.prepare(&mut trace.session);
            Box::new(parent)
        }
        None => work.job,
    };
    let recording = work.recording;
    Ok(follow(trace, &begin.until, Work { job, recording }))
}

/// Runs the trace to its end.
fn follow(mut trace: Trace, until: &Until, work: Work) -> End {
    let Work { mut job, recording } = work;
    if let Some(recording) = recording {
        trace.record(recording);
    }
    let until = until.begin();
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    // The trace counts its time from the moment when the child was found.
    let left = left.map(|left| left + trace.consumer().elapsed());
    trace.run(left, &mut *job)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_begins_with_the_first_trace() {
        let until = Until::new(Some(Duration::ZERO));
        assert!(!until.is_over());
        let first = until.clone().begin();
        assert!(until.is_over() && until.begin() == first);
        let endless = Until::new(None);
        assert!(endless.begin().is_none() && !endless.is_over());
    }
}
