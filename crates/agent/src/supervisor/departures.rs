//! The order in which targets are left, and how many at a time.
//!
//! To leave a process, the agent reads its modules, and then holds one of its threads for a moment.
//! If hundreds of processes were left simultaneously, they would compete for the processors while
//! each of them has a stopped thread.

use std::collections::VecDeque;
use std::time::Duration;

/// Maximum wait for one target at the end of the agent.
const PATIENCE: Duration = Duration::from_secs(10);
/// Additional wait for each further target, many times as long as leaving it takes.
const PATIENCE_EACH: Duration = Duration::from_millis(200);

/// Reason why a target is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The target's time by the rule is over.
    TimeIsOver,
    /// No rule matches the target any more, or a different rule matches it now.
    NotMeant,
    /// The agent uses more than it may.
    Scarce,
    /// The agent ends.
    AgentEnds,
}

/// The targets that wait to be left.
#[derive(Debug, Default)]
pub struct Departures {
    waiting: VecDeque<i32>,
}

impl Departures {
    /// Adds a target at the end.
    pub fn add(&mut self, pid: i32) {
        if !self.waiting.contains(&pid) {
            self.waiting.push_back(pid);
        }
    }

    /// Returns the next target to leave, given that `under_way` targets are being left, and that up
    /// to `most` may be left at a time.
    pub fn next(&mut self, under_way: usize, most: usize) -> Option<i32> {
        if under_way >= most.max(1) {
            return None;
        }
        self.waiting.pop_front()
    }

    /// Returns true if no target waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// Returns the time limit for shutting down an agent with `targets` targets.
pub fn patience(targets: usize) -> Duration {
    PATIENCE + PATIENCE_EACH * u32::try_from(targets).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_leave_at_a_time_and_each_has_its_turn() {
        let mut departures = Departures::default();
        for pid in [5, 3, 5, 9, 3] {
            departures.add(pid);
        }
        assert_eq!(departures.next(0, 2), Some(5));
        assert_eq!(departures.next(1, 2), Some(3));
        assert_eq!(departures.next(2, 2), None);
        assert!(!departures.is_empty());
        assert_eq!(departures.next(1, 2), Some(9));
        assert!(departures.is_empty());
        assert_eq!(departures.next(0, 2), None);
        departures.add(7);
        // At least one target is left at a time, regardless of the number of processors.
        assert_eq!(departures.next(0, 0), Some(7));
    }

    #[test]
    fn the_end_takes_the_longer_the_more_there_are() {
        assert_eq!(patience(0), PATIENCE);
        assert_eq!(patience(200), Duration::from_secs(50));
        assert!(patience(usize::MAX) > patience(1000));
    }
}
