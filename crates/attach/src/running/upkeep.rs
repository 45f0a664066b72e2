//! Continual upkeep of an attach: follows new modules, reclaims the rings of ended threads, verifies slots, and detects
//! the end of the target.

use super::ending::Ending;
use super::gaps::{self, GapWatch};
use super::ring_owners::RingOwners;
use super::unannounced::Unannounced;
use crate::drain::consumer::Consumer;
use crate::error::Error;
use crate::session::Session;
use crate::survey::memory_allowance::KillCount;
use memhook_inject::EndWatch;
use memhook_ledger::Observer;
use std::{
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

/// Time between two checks that the target still exists.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Delay before new patches are verified. A resolver that was running when the patch was made has ended by then.
const VERIFY_AFTER: Duration = Duration::from_millis(100);

/// Longest wait for a process that is ending: its memory disappears before the process does.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// Process, told apart from later processes with the same pid by its start time.
struct Identity {
    pid: i32,
    started: Option<u64>,
}

impl Identity {
    fn of(pid: i32) -> Identity {
        Identity {
            pid,
            started: memhook_process::thread_start_time(pid, pid),
        }
    }

    fn is_alive(&self) -> bool {
        !memhook_process::has_ended(self.pid)
            && self.started.is_some()
            && memhook_process::thread_start_time(self.pid, self.pid) == self.started
    }
}

/// Result of a detach.
#[derive(Debug)]
pub enum Detached {
    /// The process is clean: its slots hold their original values, or it has ended.
    Clean,
    /// This number of slots could not be restored. They pass calls through.
    SlotsLeft(u64),
    /// The slots could not be restored. Another `detach` may succeed.
    Failed(Error),
}

/// Result of a turn.
pub struct Turn {
    /// The target has ended or executes another program.
    pub gone: bool,
    /// The target has loaded or unloaded a module.
    pub modules_changed: bool,
    /// The trace ends with this turn.
    pub is_last: bool,
    /// Messages for the user.
    pub notices: Vec<String>,
}

/// Upkeep of one attach.
pub struct Upkeep {
    target: Identity,
    end: EndWatch,
    owners: RingOwners,
    kills: KillCount,
    gaps: GapWatch,
    next_look: Duration,
    next_verify: Option<Duration>,
    /// Number of libraries that had not been patched in time at the last turn.
    unwatched: u64,
    unannounced: Unannounced,
}

impl Upkeep {
    /// Creates the upkeep of a process right after the attach.
    pub fn new(pid: i32) -> Upkeep {
        Upkeep {
            target: Identity::of(pid),
            end: EndWatch::of(pid),
            owners: RingOwners::new(pid),
            kills: KillCount::of(pid),
            gaps: GapWatch::default(),
            next_look: Duration::ZERO,
            next_verify: Some(VERIFY_AFTER),
            unwatched: 0,
            unannounced: Unannounced::default(),
        }
    }

    /// Returns true if nothing is due soon.
    pub(crate) fn is_settled(&self) -> bool {
        self.next_verify.is_none() && !self.gaps.is_under_way()
    }

    /// Does the work that is due. Call it every few milliseconds.
    pub fn turn<O: Observer + Send>(
        &mut self,
        session: &mut Session,
        consumer: &Consumer<O>,
    ) -> Turn {
        memhook_inject::let_late_threads_go();
        let now = consumer.elapsed();
        let mut answered = consumer.watched.answered.load(Relaxed);
        let mut gone = session.follow_modules(&mut answered).is_err() && !self.target.is_alive();
        let modules_changed = consumer.watched.answered.swap(answered, Relaxed) != answered;
        self.owners.care(session.region());
        let mut notices = Vec::new();
        if let Some(gap) = self.gaps.turn(session, consumer) {
            // The slots of modules that were loaded during the gap are not patched yet.
            self.next_verify = Some(now + VERIFY_AFTER);
            let count = consumer.gap_log().len();
            notices.extend(gaps::notice(self.target.pid, gap, count));
        }
        let unwatched = session.region().unwatched_libraries();
        if modules_changed || unwatched != self.unwatched {
            self.unwatched = unwatched;
            self.next_verify = Some(now + VERIFY_AFTER);
        }
        notices.extend(session.look_at_python());
        notices.extend(session.take_marks(now));
        session.look_at_made_code(now);
        if now >= self.next_look {
            self.next_look = now + LOOK_PAUSE;
            // An execve removes the hook without ending the process.
            gone = gone || !self.target.is_alive() || !session.is_in_target();
            let must_verify = self.next_verify.is_some_and(|at| now >= at);
            if !gone && (must_verify || self.unannounced.is_due(now)) {
                let found = self.unannounced.look(session, now);
                if must_verify {
                    self.next_verify = None;
                    let _ = session.verify_slots();
                }
                if let Ok(true) = found {
                    self.next_verify = Some(now + VERIFY_AFTER);
                }
            }
            session.look_at_filters();
            session.look_at_memory();
        }
        if gone {
            notices.extend(self.kills.explain(self.target.pid));
        }
        Turn {
            gone,
            modules_changed,
            is_last: gone,
            notices,
        }
    }

    /// Returns how a process ended after a turn found it gone.
    pub fn ending(&self) -> Ending {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.end.status() {
                return Ending::of_status(status);
            }
            let is_alive = self.target.is_alive();
            if !is_alive
                && memhook_process::thread_state(self.target.pid, self.target.pid).is_none()
            {
                // The status is read once more, because the parent may have reaped the process between the two checks.
                return self.end.status().map_or(Ending::Unknown, Ending::of_status);
            }
            if begin.elapsed() >= END_PATIENCE {
                return if is_alive {
                    Ending::Executed
                } else {
                    Ending::Unknown
                };
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Collects the final facts about a process that makes no more calls, or that the caller is about to detach from.
    pub fn last_look(&mut self, session: &mut Session) {
        self.unannounced.look_at_end(session);
    }

    /// Restores the slots.
    pub fn detach(&self, session: &mut Session) -> Detached {
        match session.detach() {
            Ok(0) => Detached::Clean,
            Ok(left) => Detached::SlotsLeft(left),
            Err(_) if !self.target.is_alive() || !session.is_in_target() => Detached::Clean,
            Err(error) => Detached::Failed(error),
        }
    }
}
