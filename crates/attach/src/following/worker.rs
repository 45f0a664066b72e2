//! The thread that traces one of several followed processes, from the attach to the end.

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

/// So many attaches go on at the same time as there are processors: more would only make each other slower, and
/// each of them holds a thread of its process for some part of it.
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

    /// Does the work when it may be done; `None` if we are to end before.
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

/// End of all traces, if they have one.
///
/// Their time begins with the first trace: on a busy machine an attach may take longer than all of it, and would
/// otherwise never be made.
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

    /// Begins the time, unless it has begun; returns its end.
    pub fn begin(&self) -> Option<Instant> {
        let duration = self.duration?;
        Some(*self.at.get_or_init(|| Instant::now() + duration))
    }

    /// Returns true if the time has begun and is over.
    pub fn is_over(&self) -> bool {
        self.at.get().is_some_and(|&at| Instant::now() >= at)
    }
}

/// An attach that is to be made.
pub(super) struct Begin {
    pub chosen: Chosen,
    pub config: TraceConfig,
    pub until: Until,
    pub permits: Permits,
    /// If its children are to be traced from their birth.
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

    /// Returns true if its process is no longer traced and its job is done.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until then.
    pub fn join(self) -> Result<End, Error> {
        self.thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// All of it on one thread, because ptrace requests must come from the thread that seized.
fn trace(begin: Begin, work: Work, is_attached: &AtomicBool) -> Result<End, Error> {
    let Begin { chosen, config, .. } = begin;
    let attached = begin.permits.within(|| {
        let _kept = chosen.keep()?;
        Trace::start(chosen.pid, config)
    });
    let too_late = || Err(Error::Refused("the end came before the attach".into()));
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

/// To the end of the trace.
fn follow(mut trace: Trace, until: &Until, work: Work) -> End {
    let Work { mut job, recording } = work;
    if let Some(recording) = recording {
        trace.record(recording);
    }
    let until = until.begin();
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    // That is the time of the whole trace, and a child is traced since it was found.
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
