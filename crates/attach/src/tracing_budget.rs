//! Controller that keeps tracing within a budget. It decides whether to record all allocations, or samples at a
//! distance that depends on the process's behaviour.
//!
//! Every call of the process passes through a wrapper, at a fixed cost. In addition, each recorded call costs the
//! process time, and each event costs the attacher time. So the cost of any sampling distance follows from the sizes of
//! the allocations and the measured cost of a call.
//!
//! Unused budget accumulates, for at most a second: a burst is recorded completely if the savings cover it. When the
//! savings are about to run out, the distance immediately grows until the current traffic fits. It shrinks only if both
//! the current traffic and the traffic of the last seconds would fit, with some margin.
//!
//! The choice depends only on the past, never on the next allocation. So sums that are weighted by the distance of each
//! sample stay unbiased.

/// Smallest mean distance between samples, in bytes.
pub const LEAST_SAMPLE_BYTES: u64 = 256;
/// Largest mean distance between samples, in bytes.
pub const MOST_SAMPLE_BYTES: u64 = 1 << 30;
/// Highest level of sampling. Level 0 records every allocation, level 1 has the smallest distance, and each further
/// level doubles the distance.
pub const COARSEST: u8 = (MOST_SAMPLE_BYTES.ilog2() - LEAST_SAMPLE_BYTES.ilog2()) as u8 + 1;

/// Level at which the traffic is first measured: one sample per 512 KiB costs hardly more than the wrappers themselves.
pub const FIRST_LEVEL: u8 = 12;
const _: () = assert!(LEAST_SAMPLE_BYTES << (FIRST_LEVEL - 1) == 512 << 10);

/// Number of size classes, which are powers of two.
pub const SIZE_CLASSES: usize = 48;
/// Upper bound on savings: the budget of this much time.
const SAVINGS_NS: f64 = 1e9;
/// Time that the savings must last, because the process follows a new sampling order only after some more events.
const AHEAD_NS: f64 = 30e6;
/// Time over which the current traffic is averaged.
const FAST_NS: f64 = 50e6;
const SLOW_NS: f64 = 2e9;
/// Minimum time for which a sampling distance is kept before it may shrink.
const DWELL_NS: f64 = 500e6;
/// Duration of the measurement of traffic at one level.
const LEARNING_NS: f64 = 20e6;
/// Number of samples that are enough for an estimate of the traffic.
const ENOUGH_SAMPLES: f64 = 10.0;
/// Number of levels by which the sampling level is lowered if there were too few samples.
const FINER_BY: u8 = 4;
/// Minimum number of events in a period for attributing the attacher's time to them.
const MANY_EVENTS: f64 = 200.0;

/// Returns the mean distance between samples at a level, in bytes; 0: every allocation is recorded.
pub fn mean_bytes(level: u8) -> u64 {
    match level {
        0 => 0,
        level => LEAST_SAMPLE_BYTES << (level.min(COARSEST) - 1),
    }
}

/// Returns the level whose mean distance is nearest. The number may come from the process, so it need not match a level
/// exactly.
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
    /// Returns the number of recorded releases whose blocks were recorded in an earlier period, or not at all because
    /// they predate the attach.
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
        self.approach(period, 1.0 - (-period.time_ns / over_ns).exp());
    }

    /// Moves the rates towards a period's rates, by a fraction (0 to 1) of the difference.
    fn approach(&mut self, period: &Period, part: f64) {
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

/// Traffic seen so far at the level of the measurement.
#[derive(Clone, Copy, Debug, Default)]
struct Learned {
    time_ns: f64,
    samples: f64,
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
    /// Progress of the measurement of traffic; `None` if it is complete.
    learned: Option<Learned>,
}

impl TracingController {
    /// Creates a controller. `share`: allowed share of the process's time; `level`: the first level, at which the
    /// traffic is measured unless it is 0.
    pub fn within(share: f64, level: u8) -> TracingController {
        TracingController {
            share,
            level,
            savings_ns: 0.0,
            fast: Traffic::NONE,
            slow: Traffic::NONE,
            costs: CallCosts::default(),
            event_ns: 0.0,
            idle_share: 0.0,
            since_change_ns: 0.0,
            learned: (level > 0).then(Learned::default),
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
        self.learn_costs(period);
        if period.waited_ns > self.share * period.time_ns {
            self.change_to(self.level.max(FIRST_LEVEL));
            self.learned = Some(Learned::default());
            return self.level;
        }
        if let Some(before) = self.learned {
            self.learn_traffic(period, before);
            return self.level;
        }
        self.fast.follow(period, FAST_NS);
        self.slow.follow(period, SLOW_NS);
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
        self.change_to(wanted);
        self.level
    }

    fn change_to(&mut self, level: u8) {
        if level != self.level {
            self.level = level;
            self.since_change_ns = 0.0;
        }
    }

    /// Averages the traffic of the periods at this level. After enough periods, chooses the level that fits.
    fn learn_traffic(&mut self, period: &Period, before: Learned) {
        let learned = Learned {
            time_ns: before.time_ns + period.time_ns,
            samples: before.samples + period.recorded_allocations,
        };
        self.fast.approach(period, period.time_ns / learned.time_ns);
        self.learned = Some(learned);
        if learned.time_ns < LEARNING_NS {
            return;
        }
        let fitting = self.least_level(&self.fast, 0.7);
        let finest = self.level.saturating_sub(FINER_BY);
        let is_known = learned.samples >= ENOUGH_SAMPLES || fitting >= self.level || finest == 0;
        self.slow = self.fast;
        self.learned = (!is_known).then(Learned::default);
        self.change_to(if is_known {
            fitting
        } else {
            fitting.max(finest)
        });
    }

    fn learn_costs(&mut self, period: &Period) {
        self.costs = period.costs;
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

    /// Returns the lowest level at which recording the traffic takes no more than this share of the available time.
    fn least_level(&self, traffic: &Traffic, part: f64) -> u8 {
        let room = part * self.room(traffic);
        (0..COARSEST)
            .find(|&level| self.recording(level, traffic) <= room)
            .unwrap_or(COARSEST)
    }
}

#[cfg(test)]
mod tests;
