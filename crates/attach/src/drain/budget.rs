//! Keeps tracing within a budget: measures the cost, and orders sampling if recording everything would exceed the
//! budget.

use crate::tracing_budget::{
    COARSEST, CallCosts, Period, SIZE_CLASSES, TracingController, mean_bytes, size_class,
};
use memhook_abi::{Event, Op};
use memhook_ledger::{Estimator, MOST_LEVELS};
use memhook_process::{own_processor_time, processor_time};
use memhook_stream::{Region, TimedCalls};
use std::time::Duration;

const _: () = assert!(COARSEST <= MOST_LEVELS);

/// Time between two decisions.
const PERIOD: Duration = Duration::from_millis(10);
/// Maximum number of stored sampling changes. Beyond it, neighbours are merged.
const MOST_CHANGES: usize = 4096;
/// Number of skipped calls that are timed as one group. The group contains one time stamp (`record_timed` of
/// `hook-cxx/calls.hpp`).
const PASSES_A_STAMP: f64 = 16.0;
/// Assumed cost of a wrapper before the first measurement: about the cost of a time stamp.
const FIRST_COST_NS: f64 = 20.0;

/// Period in which the sampling did not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Start of the period, as time since the attach.
    pub from: Duration,
    /// Mean number of bytes between samples; `None` if every allocation was recorded.
    pub mean_bytes: Option<u64>,
}

/// Cost of tracing, and the sampling that resulted from it.
#[derive(Clone, Debug, Default)]
pub struct BudgetKept {
    /// Allowed share of the process's time.
    pub budget: f64,
    /// Share of the process's time that tracing took inside the process's calls.
    pub in_process: f64,
    /// Processor time that the attacher spent taking events, as a share of the process's time.
    pub in_attacher: f64,
    /// Cost of the wrappers themselves, which is part of `in_process`. Sampling does not reduce it.
    pub passing: f64,
    /// Number of timed calls.
    pub timed_calls: u64,
    /// Periods since the attach, in order.
    pub kept: Vec<Kept>,
    /// End of the last period, as time since the attach.
    pub until: Duration,
}

/// Counters since the last decision.
#[derive(Clone, Copy)]
struct Counted {
    allocations: [f64; SIZE_CLASSES],
    recorded_allocations: u64,
    recorded_releases: u64,
}

impl Counted {
    const NOTHING: Counted = Counted {
        allocations: [0.0; SIZE_CLASSES],
        recorded_allocations: 0,
        recorded_releases: 0,
    };
}

/// Controller that keeps the tracing of one process within its budget.
pub(crate) struct BudgetKeeper {
    pid: i32,
    share: f64,
    controller: TracingController,
    counted: Counted,
    waited_ns: u64,
    last: Duration,
    last_own: Duration,
    last_target: Option<Duration>,
    kept: Vec<Kept>,
    time_ns: f64,
    in_process_ns: f64,
    in_attacher_ns: f64,
    passing_ns: f64,
    timed_calls: u64,
}

impl BudgetKeeper {
    /// Creates a controller; `share`: allowed share of the process's time; `level`: sampling level at which the process
    /// begins.
    pub fn new(pid: i32, share: f64, level: u8) -> BudgetKeeper {
        BudgetKeeper {
            pid,
            share,
            controller: TracingController::within(share, level),
            counted: Counted::NOTHING,
            waited_ns: 0,
            last: Duration::ZERO,
            last_own: Duration::ZERO,
            last_target: processor_time(pid),
            kept: vec![Kept {
                from: Duration::ZERO,
                mean_bytes: (level > 0).then(|| mean_bytes(level)),
            }],
            time_ns: 0.0,
            in_process_ns: 0.0,
            in_attacher_ns: 0.0,
            passing_ns: 0.0,
            timed_calls: 0,
        }
    }

    /// Counts an event; `level`: sampling level of its allocation.
    #[inline]
    pub fn count(&mut self, event: &Event, level: u8, size_bytes: u64) {
        let (allocations, releases) = match event.op {
            Op::Allocation => (1, 0),
            Op::Pair => (u64::from(event.sequence), u64::from(event.sequence)),
            Op::Release | Op::ReallocRelease => (0, 1),
            _ => return,
        };
        self.counted.recorded_releases += releases;
        if allocations > 0 {
            self.counted.recorded_allocations += allocations;
            let weight = match level {
                0 => 1.0,
                level => Estimator {
                    sample_bytes: Some(mean_bytes(level)),
                }
                .weight(size_bytes),
            };
            self.counted.allocations[size_class(size_bytes)] += allocations as f64 * weight;
        }
    }

    /// Makes a decision if the period is over. Runs on the thread that takes the events. `count_ns`: nanoseconds per
    /// tick of the time stamp counter.
    pub fn turn(&mut self, region: &Region, now: Duration, count_ns: f64) {
        let wall = now.saturating_sub(self.last);
        if wall < PERIOD {
            return;
        }
        let (own, target) = (own_processor_time(), processor_time(self.pid));
        let used = match (target, self.last_target) {
            (Some(now), Some(before)) => now.saturating_sub(before),
            _ => Duration::ZERO,
        };
        let timed = region.timed_calls();
        let waited_ns = timed.waited_ns.saturating_sub(self.waited_ns);
        let counted = std::mem::replace(&mut self.counted, Counted::NOTHING);
        let time_ns = wall.max(used).as_nanos() as f64;
        let period = Period {
            time_ns,
            allocations: counted.allocations,
            recorded_allocations: counted.recorded_allocations as f64,
            recorded_releases: counted.recorded_releases as f64,
            // The process can write this number. No thread can have waited for longer than the period.
            waited_ns: (waited_ns as f64).min(64.0 * time_ns),
            attacher_ns: own.saturating_sub(self.last_own).as_nanos() as f64,
            costs: call_costs(&timed, count_ns),
        };
        // The first period also contains everything before it.
        if self.last > Duration::ZERO {
            self.time_ns += time_ns;
            self.in_process_ns += period.in_process_ns();
            self.in_attacher_ns += period.attacher_ns;
            self.passing_ns += 2.0 * period.allocations.iter().sum::<f64>() * period.costs.pass_ns;
        }
        self.timed_calls = timed.allocations.saturating_add(timed.releases);
        (self.last, self.last_own, self.last_target) = (now, own, target);
        self.waited_ns = timed.waited_ns;
        let before = self.controller.level();
        let level = self.controller.step(&period);
        if level != before {
            region.order_sampling(mean_bytes(level));
            self.note(now, level);
        }
    }

    fn note(&mut self, from: Duration, level: u8) {
        let mean_bytes = (level > 0).then(|| mean_bytes(level));
        match mean_bytes {
            Some(mean_bytes) => tracing::debug!(pid = self.pid, mean_bytes, "samples are ordered"),
            None => tracing::debug!(pid = self.pid, "everything is recorded from here on"),
        }
        if self.kept.len() >= MOST_CHANGES {
            self.kept = self.kept.iter().copied().step_by(2).collect();
        }
        self.kept.push(Kept { from, mean_bytes });
    }

    /// Mean bytes between the ordered samples; `None`: every allocation is recorded.
    pub fn sample_bytes_now(&self) -> Option<u64> {
        let level = self.controller.level();
        (level > 0).then(|| mean_bytes(level))
    }

    /// Returns true if sampling is ordered.
    pub fn is_sampling(&self) -> bool {
        self.controller.level() > 0
    }

    /// Returns the costs and the periods until now.
    pub fn kept(&self) -> BudgetKept {
        let share = |ns: f64| {
            if self.time_ns > 0.0 {
                ns / self.time_ns
            } else {
                0.0
            }
        };
        BudgetKept {
            budget: self.share,
            in_process: share(self.in_process_ns),
            in_attacher: share(self.in_attacher_ns),
            passing: share(self.passing_ns),
            timed_calls: self.timed_calls,
            kept: self.kept.clone(),
            until: self.last,
        }
    }
}

/// Averages the timed calls. The process can write these numbers, so each is clamped to its bounds.
fn call_costs(timed: &TimedCalls, count_ns: f64) -> CallCosts {
    let recordings = timed.allocations.saturating_add(timed.releases);
    let mean = |counts: u64, times: u64| match times {
        0 => None,
        times => Some((counts as f64 / times as f64 * count_ns).clamp(0.0, 1e6)),
    };
    // Each call contains one time stamp. Few calls are timed, so the total cost of the stamps is small.
    let stamp = mean(timed.stamp_counts, recordings).unwrap_or(0.0);
    let own_share = 3.0 / 256.0;
    let recording = |counts, times| {
        let one = mean(counts, times).map(|mean| (mean - stamp).max(0.0));
        one.unwrap_or(FIRST_COST_NS) + own_share * stamp
    };
    let pass = mean(timed.pass_counts, timed.passes).unwrap_or(0.0);
    CallCosts {
        pass_ns: (pass - stamp / PASSES_A_STAMP).max(0.0),
        allocation_ns: recording(timed.allocation_counts, timed.allocations),
        release_ns: recording(timed.release_counts, timed.releases),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_means_without_the_time_stamps() {
        let timed = TimedCalls {
            allocations: 10,
            allocation_counts: 1500,
            releases: 10,
            release_counts: 700,
            stamp_counts: 400,
            passes: 100,
            pass_counts: 900,
            waited_ns: 0,
        };
        let costs = call_costs(&timed, 0.5);
        // 75 and 35 ns, each including a stamp of 10 ns.
        let own = 10.0 * 3.0 / 256.0;
        // Nine counts each, minus a sixteenth of a stamp.
        assert_eq!(costs.pass_ns, 4.5 - 10.0 / 16.0);
        assert!((costs.allocation_ns - (65.0 + own)).abs() < 1e-9);
        assert!((costs.release_ns - (25.0 + own)).abs() < 1e-9);
        // First without timed calls, then with forged numbers.
        assert_eq!(
            call_costs(&TimedCalls::default(), 0.5).allocation_ns,
            FIRST_COST_NS
        );
        let forged = TimedCalls {
            allocations: 1,
            allocation_counts: u64::MAX,
            ..TimedCalls::default()
        };
        assert!(call_costs(&forged, 0.5).allocation_ns <= 2e6);
    }

    #[test]
    fn many_changes_take_bounded_memory() {
        let mut keeper = BudgetKeeper::new(1, 0.01, 0);
        for i in 0..3 * MOST_CHANGES {
            keeper.note(Duration::from_millis(i as u64), (i % 20) as u8);
        }
        let kept = keeper.kept().kept;
        assert!(kept.len() <= MOST_CHANGES && kept[0].from == Duration::ZERO);
    }
}
