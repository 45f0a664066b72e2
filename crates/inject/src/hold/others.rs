//! Stops all other threads of a process while the held thread makes calls.
//!
//! Some actions of other threads cannot be undone later: closing the descriptor that the loader reads from, opening a
//! file under the same number, or taking a lock of the loader and waiting for the held thread. So the other threads are
//! stopped for the few milliseconds that such a call takes.
//!
//! One of the other threads may have been stopped while it holds a lock that the call needs, for example in an
//! allocator. So no thread stays stopped for longer than [`STILL_LIMIT`]. After that, all of them run, and the call
//! continues in parallel, like other calls.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::all_threads::{AllHeld, Known};
use crate::held::Held;
use crate::{Error, Registers, late, ptrace, watchdog};
use memhook_process::thread_ids;
use tracing::debug;

/// Longest time for which the other threads are stopped, from the first request to stop.
const STILL_LIMIT: Duration = Duration::from_millis(30);
/// Part of [`STILL_LIMIT`] within which all of them must have stopped.
const STOPPING_LIMIT: Duration = Duration::from_millis(10);
/// Maximum number of threads. Stopping a thread and reading its registers takes 20 to 50 µs, so more threads could not
/// all be stopped in time.
const MOST: usize = 256;

/// Other threads of a process, examined before any of them is stopped.
pub struct Others {
    pid: i32,
    /// `None`: there are too many threads to stop in time.
    known: Option<Known>,
}

impl Others {
    /// Examines the threads of `pid`. Each thread takes some microseconds, so call this before a thread is held.
    pub fn of(pid: i32) -> Others {
        watchdog::start();
        let count = thread_ids(pid).map_or(0, |tids| tids.len());
        Others {
            pid,
            known: (count <= MOST).then(|| Known::of(pid)),
        }
    }

    /// Returns true if the number of threads is small enough.
    pub fn can_be_stopped(&self) -> bool {
        self.known.is_some()
    }
}

impl Held {
    /// Stops all other threads until [`Held::let_others_go`], the release, or [`STILL_LIMIT`]. Returns true if they are
    /// stopped now. If there are too many threads, or one of them does not stop soon, none of them is held.
    ///
    /// A thread that sleeps uninterruptibly stops when it wakes up. [`crate::let_late_threads_go`] then releases it.
    pub fn stop_others(&mut self, others: &Others) -> Result<bool, Error> {
        let (Some(known), true) = (&others.known, self.pid == others.pid) else {
            return Ok(false);
        };
        late::let_late_threads_go();
        match AllHeld::but(self.pid, self.tid, known, STOPPING_LIMIT) {
            Ok(held) => {
                debug!(
                    pid = self.pid,
                    threads = held.count(),
                    "all other threads stand still"
                );
                // The hook makes system calls if a ring is new or full.
                let mut tids = held.threads.keys().copied();
                let dispatching = tids.find(|&tid| ptrace::dispatches_calls(tid));
                self.others = Some(held);
                if let Some(tid) = dispatching {
                    let pid = self.pid;
                    return Err(Error::CallsDispatched { pid, tid });
                }
            }
            Err(error @ Error::TargetGone { .. }) => return Err(error),
            // A thread sleeps uninterruptibly, or has another tracer.
            Err(error) => debug!(pid = self.pid, %error, "the other threads run on"),
        }
        Ok(self.others.is_some())
    }

    /// Returns true if all other threads are stopped.
    pub fn others_stand_still(&self) -> bool {
        self.others.is_some()
    }

    /// Returns the other threads and their registers, while they are stopped.
    pub fn other_threads(&self) -> impl Iterator<Item = (i32, &Registers)> {
        let others = self.others.iter().flat_map(AllHeld::threads);
        others.map(|(tid, registers, _)| (tid, registers))
    }

    /// Lets some of the other threads run for about this long, then stops them again. After an error, all of them run.
    pub fn let_others_run(&mut self, tids: &[i32], time: Duration) -> Result<(), Error> {
        let Some(others) = &mut self.others else {
            return Ok(());
        };
        let done = others.let_run(tids, time);
        if done.is_err() {
            self.others = None;
        }
        done
    }

    /// Lets the other threads run.
    pub fn let_others_go(&mut self) {
        self.others.take().map(AllHeld::release);
    }

    /// Releases the other threads if they have been stopped for long enough.
    pub(crate) fn let_others_go_in_time(&mut self) {
        let is_due = |others: &AllHeld| others.held_for() >= STILL_LIMIT;
        if self.others.as_ref().is_some_and(is_due) {
            self.let_others_go();
        }
    }
}

/// Placeholder: no thread is left out.
pub(crate) const NOBODY: i32 = 0;

impl AllHeld {
    /// Stops all threads but one. If that takes longer than `limit`, all threads run again, or will run as soon as they
    /// have stopped.
    fn but(pid: i32, tid: i32, known: &Known, limit: Duration) -> Result<AllHeld, Error> {
        let mut held = AllHeld::none(pid, Some(limit), true);
        held.left_out = tid;
        let stopped = held.stop_the_rest(known);
        if stopped.is_err() {
            held.let_stopped_go();
            let waited_for: BTreeMap<i32, _> = std::mem::take(&mut held.seized);
            for tid in waited_for.into_keys() {
                late::let_go_later(pid, tid);
            }
        }
        stopped.map(|()| held)
    }
}
