//! Thread that attaches to the process, follows it, and detaches from it.

use crate::attached::Ending;
use crate::heap::Told;
use crate::profiler::Profiler;
use crate::watches::Watches;
use crossbeam_channel::{Receiver, Select, TryRecvError};
use memhook_attach::{Detached, End, Job, Trace, Turn};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Pause between two checks of watched memory.
const WATCHED_PACE: Duration = Duration::from_millis(1);
const PACE: Duration = Duration::from_millis(10);

/// Request to the follower, executed on its thread.
pub(crate) type Ask<P> = Box<dyn FnOnce(&Trace<Told<P>>, &mut Watches) + Send>;

/// Progress of the trace: whether and how it has ended, with a message.
#[derive(Default)]
pub(crate) struct Course {
    ending: Mutex<Option<Ending>>,
    has_ended: Condvar,
    notices: Mutex<Vec<String>>,
    leaves: AtomicBool,
}

impl Course {
    pub fn ending(&self) -> Option<Ending> {
        self.ending
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .clone()
    }

    /// Waits for the end.
    pub fn wait(&self, most: Duration) -> Option<Ending> {
        let until = Instant::now().checked_add(most);
        let mut ending = self.ending.lock().unwrap_or_else(|e| e.into_inner());
        while ending.is_none() {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left = left.unwrap_or(Duration::from_secs(3600));
            if left.is_zero() {
                break;
            }
            let waited = self.has_ended.wait_timeout(ending, left);
            ending = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
        ending.clone()
    }

    pub fn end(&self, how: Ending) {
        let mut ending = self.ending.lock().unwrap_or_else(|e| e.into_inner());
        ending.get_or_insert(how);
        self.has_ended.notify_all();
    }

    /// Tells the follower to detach.
    pub fn leave(&self) {
        self.leaves.store(true, Relaxed);
    }

    pub fn notices(&self) -> Vec<String> {
        self.notices
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .clone()
    }
}

/// Follows the process, and executes requests.
pub(crate) struct Follower<P: Profiler> {
    asks: Receiver<Ask<P>>,
    watches: Watches,
    course: Arc<Course>,
    /// True if no more requests can arrive.
    is_over: bool,
}

impl<P: Profiler> Follower<P> {
    pub fn new(asks: Receiver<Ask<P>>, course: &Arc<Course>) -> Follower<P> {
        Follower {
            asks,
            watches: Watches::default(),
            course: Arc::clone(course),
            is_over: false,
        }
    }

    /// Follows the process until it ends or no more requests can arrive, then detaches and answers the remaining
    /// requests.
    pub fn follow(mut self, trace: &mut Trace<Told<P>>) {
        let end = trace.run(None, &mut self);
        self.watches.clear();
        let panic = {
            let mut state = trace.consumer().lock();
            let told = state.ledger.observer_mut();
            told.finish();
            told.blocks().panic().map(str::to_owned)
        };
        let how = match (panic, end) {
            (_, End::Detached(Detached::SlotsLeft(slots))) => Ending::NotRestored {
                why: format!("{slots} slots could not be restored"),
            },
            (_, End::Detached(Detached::Failed(error))) => Ending::NotRestored {
                why: crate::error::in_words(&error),
            },
            (Some(text), _) => Ending::Panicked(text),
            (None, End::Detached(Detached::Clean)) => Ending::Detached,
            (None, _) => Ending::Gone,
        };
        self.course.end(how);
        while let Ok(ask) = self.asks.recv() {
            ask(trace, &mut self.watches);
            self.watches.clear();
        }
    }
}

impl<P: Profiler> Job<Told<P>> for Follower<P> {
    fn listen<'a>(&'a self, select: &mut Select<'a>) {
        select.recv(&self.asks);
    }

    fn pace(&self) -> Duration {
        if self.watches.is_empty() {
            PACE
        } else {
            WATCHED_PACE
        }
    }

    /// The program that uses this library handles signals.
    fn ends_by_signal(&self) -> bool {
        false
    }

    fn turn(&mut self, trace: &Trace<Told<P>>, _turn: &Turn) -> ControlFlow<()> {
        self.is_over |= loop {
            match self.asks.try_recv() {
                Ok(ask) => ask(trace, &mut self.watches),
                Err(TryRecvError::Empty) => break false,
                Err(TryRecvError::Disconnected) => break true,
            }
        };
        self.watches.turn(trace);
        let has_panicked = {
            let state = trace.consumer().lock();
            state.ledger.observer().blocks().panic().is_some()
        };
        if self.is_over || has_panicked || self.course.leaves.load(Relaxed) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn before_detach(&mut self, _trace: &Trace<Told<P>>) {
        self.watches.clear();
    }

    fn notice(&mut self, text: &str) {
        let notices = &self.course.notices;
        notices
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .push(text.to_owned());
    }
}
