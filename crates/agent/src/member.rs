//! One process that a rule has chosen, with the times at which to attach to it and to leave it.

use crate::board::{Identity, Phase, Row};
use crate::config::Rule;
use crate::supervisor::Why;
use crate::worker::Worker;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause before another attempt if an obstacle may soon disappear, such as a dynamic loader that is
/// still working.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Time after which an obstacle counts as a failure.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for which an earlier check for obstacles is valid.
const CLEARED_FOR: Duration = Duration::from_secs(1);
/// Maximum pause before another attempt, regardless of the number of failures.
const LONGEST_RETRY: Duration = Duration::from_secs(3600);

/// A process that a rule has chosen.
pub struct Member {
    /// Identity of the process.
    pub identity: Arc<Identity>,
    /// Rule that has chosen the process.
    pub rule: Arc<Rule>,
    /// True if the process was chosen because its parent is traced.
    pub is_inherited: bool,
    /// Start of the trace, which decides the order in which targets are dropped.
    pub since: Instant,
    state: State,
    clearance: Clearance,
    /// Reason to leave the process, if there is one.
    leaves: Option<Why>,
    failures: u32,
    /// Last message that was logged about the process.
    told: Option<String>,
}

/// Result of checking the process's files for obstacles to an attach.
enum Clearance {
    Unasked,
    Asked,
    Given(Instant),
}

enum State {
    Waiting {
        since: Instant,
        next: Instant,
        pause: Duration,
        why: Option<String>,
    },
    Traced(Worker),
    /// The process must not be attached to again under this rule.
    LetBe(String),
}

impl Member {
    /// Creates a member that was just chosen.
    pub fn new(identity: Identity, rule: Arc<Rule>, is_inherited: bool, now: Instant) -> Member {
        Member {
            identity: Arc::new(identity),
            rule,
            is_inherited,
            since: now,
            state: State::waiting(now, now),
            clearance: Clearance::Unasked,
            leaves: None,
            failures: 0,
            told: None,
        }
    }

    /// Returns true if it is time to attach to the process.
    pub fn is_due(&self, now: Instant) -> bool {
        self.next_attempt().is_some_and(|next| next <= now)
    }

    /// Returns the time of the next attempt, if the process is not traced.
    pub fn next_attempt(&self) -> Option<Instant> {
        match self.state {
            State::Waiting { next, .. } if !self.is_asked() => Some(next),
            _ => None,
        }
    }

    /// Returns true while obstacles are being checked.
    pub fn is_asked(&self) -> bool {
        matches!(self.clearance, Clearance::Asked)
    }

    /// Records that the check has begun.
    pub fn asked(&mut self) {
        self.clearance = Clearance::Asked;
    }

    /// Records that the process can be attached to.
    pub fn cleared(&mut self, now: Instant) {
        self.clearance = Clearance::Given(now);
    }

    /// Returns true if the check was successful just before.
    pub fn is_cleared(&self, now: Instant) -> bool {
        matches!(self.clearance, Clearance::Given(at) if now.duration_since(at) < CLEARED_FOR)
    }

    /// Returns the thread that traces the process.
    pub fn worker(&self) -> Option<&Worker> {
        match &self.state {
            State::Traced(worker) => Some(worker),
            _ => None,
        }
    }

    /// Takes the thread if it has finished, or in any case if `always` is set.
    pub fn take_worker(&mut self, always: bool, now: Instant) -> Option<Worker> {
        if !self
            .worker()
            .is_some_and(|worker| always || worker.is_finished())
        {
            return None;
        }
        match std::mem::replace(&mut self.state, State::waiting(now, now)) {
            State::Traced(worker) => Some(worker),
            _ => None,
        }
    }

    /// Orders the agent to leave the process. Returns true if the order is new.
    pub fn leaves(&mut self, why: Why) -> bool {
        let is_new = self.leaves.is_none();
        // When the agent ends, this plan replaces any other plan.
        if is_new || why == Why::AgentEnds {
            self.leaves = Some(why);
        }
        is_new
    }

    /// Returns true if the process is being left.
    pub fn is_leaving(&self) -> bool {
        self.leaves.is_some()
    }

    /// Records that the process is no longer traced. Returns the reason if the agent was ordered to
    /// leave it.
    pub fn has_left(&mut self) -> Option<Why> {
        self.leaves.take()
    }

    /// Records that the process is traced.
    pub fn traced_by(&mut self, worker: Worker, now: Instant) {
        self.since = now;
        self.leaves = None;
        self.clearance = Clearance::Unasked;
        self.state = State::Traced(worker);
    }

    /// Records an obstacle that may disappear by itself. Returns true if the obstacle has lasted so
    /// long that it is not expected to disappear.
    pub fn wait_a_moment(&mut self, now: Instant) -> bool {
        self.clearance = Clearance::Unasked;
        let State::Waiting {
            since, next, pause, ..
        } = &mut self.state
        else {
            return false;
        };
        *next = now + *pause;
        *pause = (*pause * 2).min(LONGEST_PAUSE);
        now.duration_since(*since) > PATIENCE
    }

    /// Records a failed attach. The pause before the next one doubles each time. Returns the
    /// message if it has not been reported yet.
    pub fn failed(&mut self, now: Instant, retry: Duration, why: String) -> Option<String> {
        let pause = retry
            .saturating_mul(1 << self.failures.min(16))
            .min(LONGEST_RETRY.max(retry));
        self.failures += 1;
        self.clearance = Clearance::Unasked;
        // The varying factor spreads out the next attempts for processes that failed together.
        let spread = self.identity.pid.unsigned_abs() % 16;
        let pause = pause.mul_f64(1.0 + f64::from(spread) / 80.0);
        self.state = State::Waiting {
            since: now + pause,
            next: now + pause,
            pause: FIRST_PAUSE,
            why: Some(why.clone()),
        };
        (self.told.as_ref() != Some(&why)).then(|| {
            self.told = Some(why.clone());
            why
        })
    }

    /// Records that the process was dropped and that the next attach to it comes after a pause.
    pub fn rest(&mut self, now: Instant, pause: Duration, why: &str) {
        self.state = State::Waiting {
            since: now + pause,
            next: now + pause,
            pause: FIRST_PAUSE,
            why: Some(why.to_owned()),
        };
    }

    /// Excludes the process from further attaches under this rule.
    pub fn let_be(&mut self, why: &str) {
        self.state = State::LetBe(why.to_owned());
    }

    /// Returns the member's row on the board.
    pub fn row(&self) -> Row {
        let phase = match &self.state {
            State::Waiting { why: None, .. } => Phase::Waiting,
            State::Waiting { why: Some(why), .. } => Phase::Refused(why.clone()),
            State::Traced(_) if self.is_leaving() => Phase::Leaving,
            State::Traced(worker) if worker.link.is_attached() => Phase::Traced,
            State::Traced(_) => Phase::Attaching,
            State::LetBe(why) => Phase::Left(why.clone()),
        };
        Row {
            identity: Arc::clone(&self.identity),
            mode: self.rule.mode,
            phase,
            numbers: self.worker().and_then(|worker| worker.link.numbers()),
        }
    }
}

impl State {
    fn waiting(since: Instant, next: Instant) -> State {
        State::Waiting {
            since,
            next,
            pause: FIRST_PAUSE,
            why: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(now: Instant) -> Member {
        let text = "[[rule]]\nname = \"x\"\nprocess = \"x\"\n";
        let file: crate::config::File = toml::from_str(text).expect("right");
        let rule = Arc::new(file.rule[0].get_ref().clone());
        Member::new(Identity::default(), rule, false, now)
    }

    /// Reports a repeated failure only once, and lengthens the pauses between attempts.
    #[test]
    fn failures_are_told_once_and_space_out() {
        let mut now = Instant::now();
        let mut member = member(now);
        let retry = Duration::from_secs(10);
        assert!(member.is_due(now));
        let mut last = Duration::ZERO;
        for attempt in 0..20 {
            let told = member.failed(now, retry, "it is static".into());
            assert_eq!(told.is_some(), attempt == 0);
            assert!(!member.is_due(now + Duration::from_secs(9)));
            let next = member.next_attempt().expect("it is tried again");
            assert!(next - now >= last && next - now <= LONGEST_RETRY * 2);
            (last, now) = (next - now, next);
            assert!(member.is_due(now));
        }
        assert!(last >= LONGEST_RETRY);
        assert!(member.failed(now, retry, "something else".into()).is_some());
        assert!(matches!(member.row().phase, Phase::Refused(why) if why == "something else"));
    }

    #[test]
    fn what_passes_by_itself_is_waited_for() {
        let begin = Instant::now();
        let mut member = member(begin);
        let mut now = begin;
        let mut looks = 0;
        while !member.wait_a_moment(now) {
            now = member.next_attempt().expect("it waits");
            looks += 1;
        }
        assert!(looks < 20 && now - begin > PATIENCE, "{looks}");
        member.let_be("over");
        assert!(!member.is_due(now + LONGEST_RETRY));
        assert!(!member.wait_a_moment(now));
    }
}
