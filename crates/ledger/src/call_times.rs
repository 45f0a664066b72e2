//! Time in the allocator, by call stack: sums over the timed calls.

use rustc_hash::FxHashMap;
use std::ops::AddAssign;

/// Maximum number of separate call stacks. They take a few megabytes in addition to the ledger's own bound.
const MAX_STACKS: usize = 100_000;

/// Sums over timed calls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CallTime {
    /// Number of calls.
    pub calls: u64,
    /// Number of allocations that the timed calls represent.
    pub weight: f64,
    /// Time in counts or nanoseconds, weighted.
    time: f64,
    /// Weighted sum of the squared times.
    squares: f64,
}

/// Estimated time of allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TimeTaken {
    /// Total, in the unit of the time.
    pub time: f64,
    /// Estimated variance of the total.
    pub variance: f64,
    /// Number of timed calls.
    pub calls: u64,
}

impl AddAssign for TimeTaken {
    fn add_assign(&mut self, more: TimeTaken) {
        self.time += more.time;
        self.variance += more.variance;
        self.calls += more.calls;
    }
}

impl CallTime {
    fn add(&mut self, weight: f64, time: f64) {
        self.calls += 1;
        self.weight += weight;
        self.time += weight * time;
        self.squares += weight * time * time;
    }

    /// Adds the sums of other calls.
    pub fn merge(&mut self, more: &CallTime) {
        self.calls += more.calls;
        self.weight += more.weight;
        self.time += more.time;
        self.squares += more.squares;
    }

    /// Converts times to another unit; an old unit is `factor` new units.
    pub fn scaled(self, factor: f64) -> CallTime {
        CallTime {
            time: self.time * factor,
            squares: self.squares * factor * factor,
            ..self
        }
    }

    /// Returns the mean time of a call and its standard error, or zeros if no call was timed.
    pub fn mean(&self) -> (f64, f64) {
        if self.calls == 0 || self.weight <= 0.0 {
            return (0.0, 0.0);
        }
        let (mean, calls) = (self.time / self.weight, self.calls as f64);
        let spread = (self.squares / self.weight - mean * mean).max(0.0);
        // A few calls of equal length say little about the variation among the others, and a single call says nothing.
        let error = ((spread + mean * mean / calls) / calls).sqrt();
        (mean, error)
    }

    /// Returns the time that the given number of allocations took.
    pub fn of(&self, allocations: f64) -> TimeTaken {
        let (mean, error) = self.mean();
        TimeTaken {
            time: mean * allocations,
            variance: (error * allocations).powi(2),
            calls: self.calls,
        }
    }

    /// Returns the time that calls of this kind take out of the time of `allocations` allocations of all kinds. `all`
    /// sums up the timed calls of all kinds. Used for a kind of allocation whose number is unknown.
    pub fn share_of(&self, all: &CallTime, allocations: f64) -> TimeTaken {
        if self.weight <= 0.0 || all.weight <= 0.0 {
            return TimeTaken::default();
        }
        let share = (self.weight / all.weight).min(1.0);
        let mean = self.time / self.weight;
        // A timed call contributes its time if it is of this kind, and nothing otherwise.
        let squares =
            share * self.squares / self.weight + (share * mean).powi(2) / self.calls as f64;
        let spread = (squares - (share * mean).powi(2)).max(0.0);
        TimeTaken {
            time: allocations * share * mean,
            variance: allocations * allocations * spread / all.calls.max(1) as f64,
            calls: self.calls,
        }
    }

    /// Returns the numbers to write to a file: calls, weight, weighted time and squares.
    pub fn numbers(&self) -> (u64, f64, f64, f64) {
        (self.calls, self.weight, self.time, self.squares)
    }

    /// Creates sums from numbers that were read from a file and may be invalid.
    pub fn of_numbers((calls, weight, time, squares): (u64, f64, f64, f64)) -> CallTime {
        let sane = |number: f64| {
            if number.is_finite() {
                number.max(0.0)
            } else {
                0.0
            }
        };
        CallTime {
            calls,
            weight: sane(weight),
            time: sane(time),
            squares: sane(squares),
        }
    }
}

/// Times of calls by the stack of the allocation.
#[derive(Clone, Debug, Default)]
pub struct CallTimes {
    by_stack: FxHashMap<u32, CallTime>,
    all: CallTime,
}

impl CallTimes {
    /// Adds a timed call from a stack, with the number of calls that it represents.
    pub fn add(&mut self, stack: u32, weight: f64, time: f64) {
        self.all.add(weight, time);
        // The target chooses the stack ids.
        if self.by_stack.len() < MAX_STACKS || self.by_stack.contains_key(&stack) {
            self.by_stack.entry(stack).or_default().add(weight, time);
        }
    }

    /// Adds the sums of other calls.
    pub fn merge(&mut self, more: CallTimes) {
        self.all.merge(&more.all);
        for (stack, time) in more.by_stack {
            if self.by_stack.len() < MAX_STACKS || self.by_stack.contains_key(&stack) {
                self.by_stack.entry(stack).or_default().merge(&time);
            }
        }
    }

    /// Sets the sums of a stack.
    pub fn insert(&mut self, stack: u32, time: CallTime) {
        self.all.merge(&time);
        self.by_stack.insert(stack, time);
    }

    /// Converts times to another unit.
    pub fn scaled(&self, factor: f64) -> CallTimes {
        let stacks = self.by_stack.iter();
        CallTimes {
            by_stack: stacks.map(|(&s, time)| (s, time.scaled(factor))).collect(),
            all: self.all.scaled(factor),
        }
    }

    /// Returns the timed calls of each stack.
    pub fn stacks(&self) -> impl Iterator<Item = (u32, CallTime)> + '_ {
        self.by_stack.iter().map(|(&stack, &time)| (stack, time))
    }

    /// Returns the timed calls of one stack, or `None` if there are none.
    pub fn get(&self, stack: u32) -> Option<CallTime> {
        self.by_stack.get(&stack).copied()
    }

    /// Returns the timed calls of all stacks.
    pub fn all(&self) -> CallTime {
        self.all
    }

    /// Returns true if no call was timed.
    pub fn is_empty(&self) -> bool {
        self.all.calls == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_the_mean_times_the_allocations() {
        let mut times = CallTimes::default();
        for time in [100.0, 300.0] {
            times.add(7, 1.0, time);
        }
        times.add(8, 3.0, 50.0);
        let site = times.get(7).expect("timed");
        assert_eq!(site.mean().0, 200.0);
        let taken = site.of(1000.0);
        assert_eq!((taken.time, taken.calls), (200_000.0, 2));
        // The square root of (100² + 200² / 2) / 2, times 1000.
        assert!((taken.variance - 15_000.0 * 1e6).abs() < 1.0);
        assert_eq!(times.all().mean().0, (400.0 + 150.0) / 5.0);
        assert_eq!(times.scaled(0.5).get(8).expect("timed").mean().0, 25.0);
        assert!(times.get(9).is_none());
    }

    #[test]
    fn a_share_is_as_uncertain_as_its_number() {
        let mut times = CallTimes::default();
        for at in 0..100 {
            times.add(u32::from(at % 10 == 0), 1.0, 50.0);
        }
        let all = times.all();
        let taken = times.get(1).expect("timed").share_of(&all, 1e6);
        assert_eq!((taken.time, taken.calls), (5e6, 10));
        // With ten hits out of a hundred, the error is a third of the sum, although all calls took the same time.
        let error = taken.variance.sqrt() / taken.time;
        assert!((0.25..0.35).contains(&error), "{error}");
        let whole = all.share_of(&all, 1e6);
        assert!(whole.variance.sqrt() < 0.02 * whole.time, "{whole:?}");
    }

    #[test]
    fn one_call_has_an_error_as_large_as_itself() {
        let mut times = CallTimes::default();
        times.add(1, 1.0, 80.0);
        assert_eq!(times.get(1).expect("timed").mean(), (80.0, 80.0));
        assert_eq!(CallTime::default().of(10.0), TimeTaken::default());
    }

    #[test]
    fn halves_come_to_the_whole() {
        let (mut first, mut second, mut whole) = <(CallTimes, CallTimes, CallTimes)>::default();
        for at in 0..10u32 {
            let half = if at % 2 == 0 { &mut first } else { &mut second };
            half.add(at % 3, 1.0, f64::from(at));
            whole.add(at % 3, 1.0, f64::from(at));
        }
        first.merge(second);
        for (stack, time) in whole.stacks() {
            assert_eq!(first.get(stack), Some(time));
        }
        assert_eq!(first.all(), whole.all());
    }

    #[test]
    fn foreign_numbers_make_no_nonsense() {
        let time = CallTime::of_numbers((3, f64::NAN, -1.0, f64::INFINITY));
        assert_eq!(time.mean(), (0.0, 0.0));
    }
}
