//! Controller that keeps tracing within a budget. It decides whether to record all allocations, or samples at a
//! distance that depends on the process's behaviour.
//!
//! Every call of the process passes through a wrapper, at a fixed cost. In addition, each recorded call costs the
//! process time, and each event costs the attacher time. So the cost of any sampling distance follows from the sizes of
//! the allocations and the measured cost of a call.
//!
//! Unused budget is saved up, for at most a second: a burst is recorded completely if the savings cover it. When the
//! savings are about to end, the distance immediately grows until the current traffic fits. It shrinks only if both the
//! current traffic and the traffic of the last seconds would fit, with some margin.
//!
//! The choice depends only on the past, never on the next allocation. So sums that are weighted by the distance of each
//! sample stay unbiased.

/// Smallest mean distance between samples, in bytes.
pub const LEAST_SAMPLE_BYTES: u64 = 256;
/// Largest mean distance between samples, in bytes.
pub const MOST_SAMPLE_BYTES: u64 = 1 << 30;
/// Highest level of sampling. Level 0 records every allocation, level 1 has the smallest distance, and each further
/// level doubles it.
pub const COARSEST: u8 = (MOST_SAMPLE_BYTES.ilog2() - LEAST_SAMPLE_BYTES.ilog2()) as u8 + 1;

/// Number of size classes, which are powers of two.
pub const SIZE_CLASSES: usize = 48;
/// Upper bound on savings: the budget of this much time.
const SAVINGS_NS: f64 = 1e9;
/// Time that savings must cover, because the process obeys an order only after some events.
const AHEAD_NS: f64 = 30e6;
/// Time over which the current traffic is averaged.
const FAST_NS: f64 = 50e6;
const SLOW_NS: f64 = 2e9;
/// Minimum time for which a distance is kept before it shrinks.
const DWELL_NS: f64 = 500e6;
/// Minimum number of events in a period for attributing the attacher's time to them.
const MANY_EVENTS: f64 = 200.0;

/// Returns the mean distance between samples at a level, in bytes; 0: every allocation is recorded.
pub fn mean_bytes(level: u8) -> u64 {
    match level {
        0 => 0,
        level => LEAST_SAMPLE_BYTES << (level.min(COARSEST) - 1),
    }
}

/// Returns the level with the nearest mean distance: the number may come from the process.
pub fn level_of(mean_bytes: u64) -> u8 {
    if mean_bytes == 0 {
        return 0;
    }
    let bounded = mean_bytes.clamp(LEAST_SAMPLE_BYTES, MOST_SAMPLE_BYTES);
    (bounded.ilog2() - LEAST_SAMPLE_BYTES.ilog2()) as u8 + 1
}

/// Returns the class of a size.
pub fn size_class(bytes: u64) -> usize {
    (64 - bytes.leading_zeros() as usize).min(SIZE_CLASSES - 1)
}

/// Costs of a call for the process, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CallCosts {
    /// Passing through a wrapper.
    pub pass_ns: f64,
    /// Recording an allocation, in addition.
    pub allocation_ns: f64,
    /// Recording a release, in addition.
    pub release_ns: f64,
}

/// Events in a period of some milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Period {
    /// Length of the period, or the processor time of all threads of the process if it is longer.
    pub time_ns: f64,
    /// Estimated allocations by size class, including skipped ones.
    pub allocations: [f64; SIZE_CLASSES],
    /// Number of recorded allocations.
    pub recorded_allocations: f64,
    /// Number of recorded releases.
    pub recorded_releases: f64,
    /// Time that threads waited for room in their rings.
    pub waited_ns: f64,
    /// Processor time of the attacher for taking the events.
    pub attacher_ns: f64,
    /// Measured costs of a call.
    pub costs: CallCosts,
}

impl Period {
    /// Returns the number of recorded releases whose blocks were recorded in an earlier period, or never, because they
    /// are from before the attach.
    fn other_releases(&self) -> f64 {
        (self.recorded_releases - self.recorded_allocations).max(0.0)
    }

    /// Returns the cost for the process.
    pub fn in_process_ns(&self) -> f64 {
        // There are about as many releases as allocations.
        let calls = 2.0 * self.allocations.iter().sum::<f64>();
        calls * self.costs.pass_ns
            + self.recorded_allocations * self.costs.allocation_ns
            + self.recorded_releases * self.costs.release_ns
            + self.waited_ns
    }
}

/// Rates of calls per nanosecond of the process's time.
#[derive(Clone, Copy, Debug)]
struct Traffic {
    allocations: [f64; SIZE_CLASSES],
    /// Releases of unrecorded blocks, mainly from before the attach.
    other_releases: f64,
}

impl Traffic {
    const NONE: Traffic = Traffic {
        allocations: [0.0; SIZE_CLASSES],
        other_releases: 0.0,
    };

    fn follow(&mut self, period: &Period, over_ns: f64) {
        let part = 1.0 - (-period.time_ns / over_ns).exp();
        for (rate, count) in self.allocations.iter_mut().zip(period.allocations) {
            *rate += (count / period.time_ns - *rate) * part;
        }
        let others = period.other_releases();
        self.other_releases += (others / period.time_ns - self.other_releases) * part;
    }

    /// Returns the rate of recorded allocations at a level.
    fn recorded(&self, level: u8) -> f64 {
        let mean = mean_bytes(level) as f64;
        let of_class = |(class, &rate): (usize, &f64)| {
            if level == 0 || rate == 0.0 {
                return rate;
            }
            let middle = 0.75 * (class as f64).exp2();
            rate * -(-middle / mean).exp_m1()
        };
        self.allocations.iter().enumerate().map(of_class).sum()
    }
}

/// Controller of the sampling level.
#[derive(Clone, Debug)]
pub struct TracingController {
    share: f64,
    level: u8,
    savings_ns: f64,
    fast: Traffic,
    slow: Traffic,
    costs: CallCosts,
    /// Time of the attacher for one event.
    event_ns: f64,
    /// Share of the attacher's time when there are few events.
    idle_share: f64,
    since_change_ns: f64,
}

impl TracingController {
    /// Creates a controller that records everything at first. `share`: allowed share of the process's time.
    pub fn within(share: f64) -> TracingController {
        TracingController {
            share,
            level: 0,
            savings_ns: share * SAVINGS_NS,
            fast: Traffic::NONE,
            slow: Traffic::NONE,
            costs: CallCosts::default(),
            event_ns: 0.0,
            idle_share: 0.0,
            since_change_ns: 0.0,
        }
    }

    /// Returns the current level.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Adds a period, and returns the new level.
    pub fn step(&mut self, period: &Period) -> u8 {
        if period.time_ns <= 0.0 {
            return self.level;
        }
        self.learn(period);
        let room = self.room(&self.fast);
        let most = room * SAVINGS_NS;
        self.savings_ns += room * period.time_ns - self.avoidable_ns(period);
        let debts = self.share * SAVINGS_NS;
        self.savings_ns = self.savings_ns.clamp(-debts, most);
        self.since_change_ns += period.time_ns;
        let cost = self.recording(self.level, &self.fast);
        let at_the_end = self.savings_ns + (room - cost) * AHEAD_NS;
        let wanted = if cost > room && at_the_end < 0.0 {
            self.least_level(&self.fast, 0.9).max(self.level)
        } else if self.savings_ns < 0.0 && cost > 0.8 * room {
            self.least_level(&self.fast, 0.8).max(self.level)
        } else if self.savings_ns >= most / 2.0 && self.since_change_ns >= DWELL_NS {
            let now = self.least_level(&self.fast, 0.7);
            let lately = self.least_level(&self.slow, 0.7);
            now.max(lately).min(self.level)
        } else {
            self.level
        };
        if wanted != self.level {
            self.level = wanted;
            self.since_change_ns = 0.0;
        }
        self.level
    }

    fn learn(&mut self, period: &Period) {
        self.costs = period.costs;
        self.fast.follow(period, FAST_NS);
        self.slow.follow(period, SLOW_NS);
        let events = period.recorded_allocations + period.recorded_releases;
        let part = 1.0 - (-period.time_ns / FAST_NS).exp();
        if events >= MANY_EVENTS {
            let at_rest = self.idle_share * period.time_ns;
            let one = (period.attacher_ns - at_rest).max(0.0) / events;
            self.event_ns += (one - self.event_ns) * part;
        } else {
            let share = period.attacher_ns / period.time_ns;
            self.idle_share += (share - self.idle_share) * part;
        }
    }

    /// Returns the cost that a larger distance would have avoided.
    fn avoidable_ns(&self, period: &Period) -> f64 {
        let others = period.other_releases();
        let at_rest = self.idle_share * period.time_ns + others * self.event_ns;
        period.recorded_allocations * period.costs.allocation_ns
            + (period.recorded_releases - others) * period.costs.release_ns
            + period.waited_ns
            + (period.attacher_ns - at_rest).max(0.0)
    }

    /// Returns the share of the time that is left for recording, after the unavoidable costs: wrappers, releases of
    /// other blocks, and the idle attacher. If these costs use up the budget, a tenth remains for samples, because
    /// dropping the samples would save hardly anything.
    fn room(&self, traffic: &Traffic) -> f64 {
        let passing = 2.0 * traffic.allocations.iter().sum::<f64>() * self.costs.pass_ns;
        let others = traffic.other_releases * (self.costs.release_ns + self.event_ns);
        (self.share - self.idle_share - passing - others).max(self.share / 10.0)
    }

    fn recording(&self, level: u8, traffic: &Traffic) -> f64 {
        let one = self.costs.allocation_ns + self.costs.release_ns + 2.0 * self.event_ns;
        traffic.recorded(level) * one
    }

    /// Returns the lowest level at which recording the traffic takes no more than this part of the room.
    fn least_level(&self, traffic: &Traffic, part: f64) -> u8 {
        let room = part * self.room(traffic);
        (0..COARSEST)
            .find(|&level| self.recording(level, traffic) <= room)
            .unwrap_or(COARSEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memhook_access::Random;
    use proptest::prelude::*;

    const STEP_NS: f64 = 10e6;

    /// Simulated program: number and sizes of the allocations in each period.
    struct Program {
        costs: CallCosts,
        event_ns: f64,
        idle_ns: f64,
    }

    struct Run {
        levels: Vec<u8>,
        spent: Vec<f64>,
        /// Estimated bytes, true bytes, and estimated variance.
        bytes: f64,
        truth: f64,
        variance: f64,
    }

    /// Draws the number of blocks recorded at a level, out of `count` blocks. For large counts it uses a normal
    /// distribution.
    fn recorded(count: f64, probability: f64, random: &mut Random) -> f64 {
        let (mean, spread) = (
            count * probability,
            (count * probability * (1.0 - probability)).sqrt(),
        );
        if mean < 30.0 && count < 3000.0 {
            let hits = (0..count as u64).filter(|_| random.share() < probability);
            return hits.count() as f64;
        }
        let normal: f64 = (0..12).map(|_| random.share()).sum::<f64>() - 6.0;
        (mean + spread * normal).clamp(0.0, count).round()
    }

    impl Program {
        /// `rates`: number and size of the allocations in each period. The process follows an order one period later.
        fn run(&self, share: f64, rates: &[(f64, u64)], seed: u64) -> Run {
            let mut controller = TracingController::within(share);
            let mut random = Random::seeded(seed);
            let mut run = Run {
                levels: Vec::new(),
                spent: Vec::new(),
                bytes: 0.0,
                truth: 0.0,
                variance: 0.0,
            };
            let mut in_use = 0;
            for &(count, size) in rates {
                let mean = mean_bytes(in_use) as f64;
                let probability = match in_use {
                    0 => 1.0,
                    _ => -(-(size as f64) / mean).exp_m1(),
                };
                let hits = recorded(count, probability, &mut random);
                let mut allocations = [0.0; SIZE_CLASSES];
                allocations[size_class(size)] = hits / probability;
                let period = Period {
                    time_ns: STEP_NS,
                    allocations,
                    recorded_allocations: hits,
                    recorded_releases: hits,
                    waited_ns: 0.0,
                    attacher_ns: self.idle_ns + 2.0 * hits * self.event_ns,
                    costs: self.costs,
                };
                let paid = 2.0 * count * self.costs.pass_ns
                    + hits * (self.costs.allocation_ns + self.costs.release_ns);
                run.spent.push((paid + period.attacher_ns) / STEP_NS);
                run.truth += count * size as f64;
                run.bytes += hits / probability * size as f64;
                run.variance +=
                    hits * (1.0 - probability) / (probability * probability) * (size * size) as f64;
                in_use = controller.level();
                run.levels.push(controller.step(&period));
            }
            run
        }

        fn cheap() -> Program {
            Program {
                costs: CallCosts {
                    pass_ns: 0.2,
                    allocation_ns: 40.0,
                    release_ns: 20.0,
                },
                event_ns: 60.0,
                idle_ns: 2e3,
            }
        }
    }

    fn most_in(spent: &[f64], periods: usize) -> f64 {
        let means = spent.windows(periods.min(spent.len()));
        means
            .map(|w| w.iter().sum::<f64>() / w.len() as f64)
            .fold(0.0, f64::max)
    }

    #[test]
    fn levels_and_distances() {
        assert_eq!((mean_bytes(0), mean_bytes(1), mean_bytes(2)), (0, 256, 512));
        assert_eq!(mean_bytes(COARSEST), MOST_SAMPLE_BYTES);
        for level in 0..=COARSEST {
            assert_eq!(level_of(mean_bytes(level)), level);
        }
        assert_eq!(
            (level_of(1), level_of(300), level_of(u64::MAX)),
            (1, 1, COARSEST)
        );
    }

    #[test]
    fn what_fits_is_exact_all_the_time() {
        // 1,000 pairs in 10 ms cost 0.18 ms.
        let run = Program::cheap().run(0.03, &[(1000.0, 100); 1000], 1);
        assert!(run.levels.iter().all(|&level| level == 0));
        assert_eq!(run.bytes, run.truth);
    }

    /// An attacher that uses the whole budget when idle must not prevent the recording of a quiet program.
    #[test]
    fn an_attacher_that_is_never_cheap_enough_returns_to_exact() {
        let program = Program {
            idle_ns: 0.02 * STEP_NS,
            ..Program::cheap()
        };
        let rates = [vec![(100_000.0, 100); 100], vec![(1.0, 100); 4000]];
        let run = program.run(0.01, &rates.concat(), 1);
        assert!(run.levels[99] > 0);
        assert_eq!(run.levels.last(), Some(&0));
    }

    #[test]
    fn a_burst_is_exact_if_its_price_was_saved_up() {
        let mut rates = vec![(10.0, 100); 500];
        rates[300..305].fill((10_000.0, 100));
        let run = Program::cheap().run(0.02, &rates, 1);
        assert!(run.levels.iter().all(|&level| level == 0));
    }

    #[test]
    fn after_a_time_of_much_everything_is_recorded_again() {
        let rates = [
            vec![(10.0, 100); 200],
            vec![(100_000.0, 100); 200],
            vec![(10.0, 100); 1500],
        ];
        let run = Program::cheap().run(0.02, &rates.concat(), 1);
        assert_eq!(run.levels[150], 0);
        assert!(run.levels[210..400].iter().all(|&level| level > 0));
        assert_eq!(run.levels.last(), Some(&0));
        // The level does not oscillate.
        let changes = run.levels.windows(2).filter(|w| w[0] != w[1]).count();
        assert!(changes < 20, "{changes}");
    }

    /// Releases of blocks from before the attach are recorded at every level.
    #[test]
    fn releases_of_older_blocks_do_not_make_samples_rarer() {
        let mut controller = TracingController::within(0.01);
        let costs = Program::cheap().costs;
        let mut allocations = [0.0; SIZE_CLASSES];
        allocations[size_class(100)] = 1000.0;
        let period = Period {
            time_ns: STEP_NS,
            allocations,
            recorded_allocations: 0.0,
            recorded_releases: 50_000.0,
            waited_ns: 0.0,
            attacher_ns: 50_000.0 * 60.0,
            costs,
        };
        for _ in 0..100 {
            assert!(controller.step(&period) < 12);
        }
    }

    /// If the wrappers alone exceed the budget, sampling continues.
    #[test]
    fn an_impossible_budget_leaves_samples() {
        let program = Program {
            costs: CallCosts {
                pass_ns: 5.0,
                ..Program::cheap().costs
            },
            ..Program::cheap()
        };
        let run = program.run(0.001, &[(100_000.0, 64); 500], 1);
        let last = *run.levels.last().unwrap();
        assert!((10..COARSEST).contains(&last), "{last}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        /// After two seconds, no five seconds of any program exceed the budget by more than a tenth.
        #[test]
        fn no_five_seconds_cost_much_more(
            phases in proptest::collection::vec((20usize..400, 0.0f64..6.0, 4u32..14), 2..12),
            share in prop::sample::select(vec![0.005, 0.01, 0.02, 0.1]),
            seed in any::<u64>(),
        ) {
            let rates: Vec<(f64, u64)> = phases
                .iter()
                .flat_map(|&(length, rate, size)| vec![(10f64.powf(rate) - 1.0, 1 << size); length])
                .collect();
            // The cost of the wrappers is not part of the decision.
            let program = Program {
                costs: CallCosts { pass_ns: 0.0, ..Program::cheap().costs },
                ..Program::cheap()
            };
            let run = program.run(share, &rates, seed);
            let later = &run.spent[200.min(run.spent.len())..];
            if later.len() >= 500 {
                let most = most_in(later, 500);
                // The controller responds to each thousandfold jump of the traffic two periods later.
                let jump = 2.0 * phases.len() as f64 * later.iter().copied().fold(0.0, f64::max) / 500.0;
                // In addition to their own budget, five seconds may use the savings of the second before.
                prop_assert!(most <= share * 1.3 + jump, "{} of {}", most, share);
            }
        }

        /// Estimates stay within their standard errors even if the rate, and with it the distance, changes by a factor
        /// of 1,000.
        #[test]
        fn sums_stay_unbiased(seed in any::<u64>(), first in 10usize..200, size in 5u32..12) {
            let rates = [
                vec![(100.0, 1 << size); first],
                vec![(100_000.0, 1 << size); 150],
                vec![(0.0, 1 << size); 100],
                vec![(100_000.0, 1 << size); 50],
            ];
            let run = Program::cheap().run(0.02, &rates.concat(), seed);
            let off = (run.bytes - run.truth).abs();
            prop_assert!(run.levels.iter().any(|&level| level > 0));
            prop_assert!(off <= 5.5 * run.variance.sqrt() + 1.0, "{} ± {}", off, run.variance.sqrt());
        }
    }
}
