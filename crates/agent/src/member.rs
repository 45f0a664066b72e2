//! One process that a rule has chosen: when it is attached to, and when it is let be.

use crate::board::{Identity, Phase, Row};
use crate::config::Rule;
use crate::supervisor::Why;
use crate::worker::Worker;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause before another attempt where an obstacle may pass within moments, above all a loader at work.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Time after which an obstacle counts as a failure.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for which an earlier finding counts.
const CLEARED_FOR: Duration = Duration::from_secs(1);
/// However often it has failed, it is tried again after this time.
const LONGEST_RETRY: Duration = Duration::from_secs(3600);

/// A process that a rule has chosen.
pub struct Member {
    /// Who it is.
    pub identity: Arc<Identity>,
    /// The rule.
    pub rule: Arc<Rule>,
    /// It was chosen because its parent is traced.
    pub is_inherited: bool,
    /// Since when it is traced, for the order in which targets are given up.
    pub since: Instant,
    state: State,
    clearance: Clearance,
    /// It is to be left: why.
    leaves: Option<Why>,
    failures: u32,
    /// Message that was logged about it.
    told: Option<String>,
}

/// Finding of its files on whether it can be attached to.
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
    /// Not again under this rule.
    LetBe(String),
}

impl Member {
    /// One that was just chosen.
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

    /// Returns true if it is time to attach to it.
    pub fn is_due(&self, now: Instant) -> bool {
        self.next_attempt().is_some_and(|next| next <= now)
    }

    /// When it is, if it is not traced.
    pub fn next_attempt(&self) -> Option<Instant> {
        match self.state {
            State::Waiting { next, .. } if !self.is_asked() => Some(next),
            _ => None,
        }
    }

    /// Returns true while it is being found out whether it can be attached to.
    pub fn is_asked(&self) -> bool {
        matches!(self.clearance, Clearance::Asked)
    }

    /// From now on it is.
    pub fn asked(&mut self) {
        self.clearance = Clearance::Asked;
    }

    /// It can be attached to.
    pub fn cleared(&mut self, now: Instant) {
        self.clearance = Clearance::Given(now);
    }

    /// Returns true if that was found out just before.
    pub fn is_cleared(&self, now: Instant) -> bool {
        matches!(self.clearance, Clearance::Given(at) if now.duration_since(at) < CLEARED_FOR)
    }

    /// The thread that traces it.
    pub fn worker(&self) -> Option<&Worker> {
        match &self.state {
            State::Traced(worker) => Some(worker),
            _ => None,
        }
    }

    /// Takes the thread, if it has nothing left to do, or if `always`.
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

    /// It is to be left. Returns whether that is something new.
    pub fn leaves(&mut self, why: Why) -> bool {
        let is_new = self.leaves.is_none();
        // Whatever was to become of it afterwards: the agent ends.
        if is_new || why == Why::AgentEnds {
            self.leaves = Some(why);
        }
        is_new
    }

    /// Returns true if it is to be left.
    pub fn is_leaving(&self) -> bool {
        self.leaves.is_some()
    }

    /// It is not traced any more. Returns why it was to be left, if it was.
    pub fn has_left(&mut self) -> Option<Why> {
        self.leaves.take()
    }

    /// Now it is traced.
    pub fn traced_by(&mut self, worker: Worker, now: Instant) {
        self.since = now;
        self.leaves = None;
        self.clearance = Clearance::Unasked;
        self.state = State::Traced(worker);
    }

    /// Something that may pass by itself keeps it from being attached to. Returns whether it has lasted too long for that.
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

    /// An attach has failed, and the next one has to wait: twice as long each time. Returns what to tell, if it is
    /// something new.
    pub fn failed(&mut self, now: Instant, retry: Duration, why: String) -> Option<String> {
        let pause = retry
            .saturating_mul(1 << self.failures.min(16))
            .min(LONGEST_RETRY.max(retry));
        self.failures += 1;
        self.clearance = Clearance::Unasked;
        // So that many processes that failed together are not tried again together.
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

    /// It was given up, to be taken again after a pause.
    pub fn rest(&mut self, now: Instant, pause: Duration, why: &str) {
        self.state = State::Waiting {
            since: now + pause,
            next: now + pause,
            pause: FIRST_PAUSE,
            why: Some(why.to_owned()),
        };
    }

    /// It is not attached to again under this rule.
    pub fn let_be(&mut self, why: &str) {
        self.state = State::LetBe(why.to_owned());
    }

    /// Returns its row on the board.
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

    /// Checks that the same failure is reported once, and that pauses between attempts grow.
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
