//! One of several followed processes: it is traced, waits for an attach, or is left alone.

use super::FollowedCount;
use super::worker::Worker;
use crate::error::Error;
use crate::job::End;
use memhook_process::{Chosen, has_ended, thread_start_time};
use std::time::{Duration, Instant};

/// Pause before the second attempt, doubled before each later attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Time after which a failure is reported: a newly started program needs a moment.
const PATIENCE: Duration = Duration::from_secs(1);
/// Number of failed attaches after which a process is left alone.
const MOST_FAILURES: u32 = 3;

/// Followed process.
pub(super) struct Member {
    /// Start time, which distinguishes the process from a later one with the same pid.
    started: Option<u64>,
    /// Number of its programs that have been traced.
    programs: u32,
    /// Number of failed attaches to the current program.
    failures: u32,
    is_told: bool,
    state: State,
}

enum State {
    Waiting {
        since: Instant,
        next: Instant,
        pause: Duration,
    },
    Traced(Worker),
    LetBe,
}

/// Conclusion from the state of a process.
pub(super) enum Advice {
    /// The process will not be traced, for this reason.
    Tell(Error),
    /// The process has ended.
    Forget {
        /// True if it was not traced and no reason was reported.
        is_missed: bool,
    },
}

impl Member {
    pub fn new(pid: i32) -> Member {
        Member {
            started: thread_start_time(pid, pid),
            programs: 0,
            failures: 0,
            is_told: false,
            state: State::waiting(),
        }
    }

    /// Returns the process for which this member was created.
    pub fn chosen(&self, pid: i32) -> Chosen {
        Chosen {
            pid,
            started: self.started,
        }
    }

    /// Returns true if one of its programs is or was traced.
    pub fn was_traced(&self) -> bool {
        self.programs > 0 || matches!(&self.state, State::Traced(worker) if worker.is_attached())
    }

    /// Returns true if the process is traced or an attach is in progress.
    pub fn is_traced(&self) -> bool {
        matches!(self.state, State::Traced(_))
    }

    /// Returns true if an attach is due.
    pub fn is_due(&self, now: Instant) -> bool {
        matches!(self.state, State::Waiting { next, .. } if next <= now)
    }

    /// Returns the number of the next program to trace.
    pub fn next_program(&self) -> u32 {
        self.programs + 1
    }

    pub fn traced_by(&mut self, worker: Worker) {
        self.state = State::Traced(worker);
    }

    /// Postpones the attach. Returns the reason if it should be reported.
    pub fn wait(&mut self, now: Instant, why: Option<Error>) -> Option<Error> {
        let State::Waiting { since, next, pause } = &mut self.state else {
            return None;
        };
        *next = now + *pause;
        *pause = (*pause * 2).min(LONGEST_PAUSE);
        let is_late = now - *since > PATIENCE;
        let why = why.filter(|_| is_late && !self.is_told)?;
        self.is_told = true;
        Some(why)
    }

    /// Postpones the attach for a short time, because the process will be found in another way, or its state will
    /// change.
    pub fn wait_shortly(&mut self, now: Instant) {
        const PAUSE: Duration = Duration::from_millis(4);
        if let State::Waiting { next, .. } = &mut self.state {
            *next = now + PAUSE;
        }
    }

    /// Returns true if the process is the one for which this member was created, or if it has ended.
    pub fn is_current(&self, pid: i32) -> bool {
        let started = thread_start_time(pid, pid);
        started.is_none() || started == self.started
    }

    /// Ends the attempts to attach, for this reason.
    pub fn let_be(&mut self, why: Error) -> Error {
        self.state = State::LetBe;
        self.is_told = true;
        why
    }

    /// Returns changes since the last call. `is_tried_once`: the first failure is final.
    pub fn follow_up(
        &mut self,
        pid: i32,
        is_tried_once: bool,
        count: &mut FollowedCount,
    ) -> Option<Advice> {
        let started = self.started;
        let has_ended = || has_ended(pid) || thread_start_time(pid, pid) != started;
        match &self.state {
            State::Traced(worker) if !worker.is_finished() => None,
            State::Traced(_) => {
                let failure = self.join(count)?;
                if has_ended() {
                    return None;
                }
                let is_final = matches!(
                    failure,
                    Error::AlreadyTraced { .. }
                        | Error::HookRefused { .. }
                        | Error::NoWipeOnFork { .. }
                );
                self.failures += 1;
                if is_tried_once || is_final || self.failures >= MOST_FAILURES {
                    return Some(Advice::Tell(self.let_be(failure)));
                }
                self.wait(Instant::now() + PATIENCE / 10, None);
                None
            }
            State::Waiting { .. } | State::LetBe => has_ended().then_some(Advice::Forget {
                is_missed: self.programs == 0 && !self.is_told,
            }),
        }
    }

    /// Waits for the end of the trace. Returns the reason if the attach has failed.
    pub fn join(&mut self, count: &mut FollowedCount) -> Option<Error> {
        let state = std::mem::replace(&mut self.state, State::waiting());
        let State::Traced(worker) = state else {
            self.state = state;
            return None;
        };
        match worker.join() {
            Ok(end) => {
                count.traced += u64::from(self.programs == 0);
                self.programs += 1;
                self.failures = 0;
                // With `End::Gone`, the process has ended, which the next search will notice, or it executes another
                // program.
                if !matches!(end, End::Gone) {
                    self.state = State::LetBe;
                }
                None
            }
            Err(failure) => Some(failure),
        }
    }
}

impl State {
    fn waiting() -> State {
        let now = Instant::now();
        State::Waiting {
            since: now,
            next: now,
            pause: FIRST_PAUSE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why() -> Option<Error> {
        Some(Error::StillLoaded { pid: 7 })
    }

    /// A reason for a failure is not reported at first, because it may disappear. A persistent reason is reported once.
    #[test]
    fn a_reason_is_told_once_when_it_lasts() {
        let mut member = Member::new(std::process::id() as i32);
        let mut now = Instant::now();
        assert!(member.is_due(now));
        assert!(member.wait(now, why()).is_none());
        assert!(!member.is_due(now) && member.is_due(now + FIRST_PAUSE));
        now += PATIENCE * 2;
        assert!(member.wait(now, None).is_none());
        assert!(member.wait(now, why()).is_some());
        assert!(member.wait(now, why()).is_none());
        for _ in 0..40 {
            member.wait(now, why());
        }
        assert!(member.is_due(now + LONGEST_PAUSE));
        assert!(!member.was_traced() && !member.is_traced());
        assert_eq!(member.next_program(), 1);
    }

    #[test]
    fn who_ended_without_a_word_was_missed() {
        let mut child = std::process::Command::new("true").spawn().expect("true");
        let pid = child.id() as i32;
        let mut silent = Member::new(pid);
        let mut told = Member::new(pid);
        told.let_be(Error::StillLoaded { pid });
        child.wait().expect("reaped");
        let mut count = FollowedCount::default();
        let mut is_missed = |member: &mut Member| match member.follow_up(pid, false, &mut count) {
            Some(Advice::Forget { is_missed }) => is_missed,
            _ => panic!("it has ended"),
        };
        assert!(is_missed(&mut silent) && !is_missed(&mut told));
    }
}
