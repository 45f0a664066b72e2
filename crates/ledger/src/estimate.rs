//! Meaning of recorded blocks when allocations are sampled. This is the only estimator of the workspace.
//!
//! An allocation is recorded if a Poisson process over all requested bytes hits it, so a block of `size` bytes is
//! recorded with probability p = 1 - exp(-size / mean). By Horvitz and Thompson ("A generalization of sampling without
//! replacement from a finite universe", 1952), a sum over the recorded blocks, each divided by its p, is an unbiased
//! estimate of the sum over all blocks. Blocks are sampled independently of each other, so the sum of (1 - p) / p² ·
//! size² over the recorded blocks is an unbiased estimate of the variance.
//!
//! That estimate of the variance is based only on blocks that were hit. If samples become rarer during a trace, few or
//! no hits may represent a lot of memory, next to older blocks that are known well. The variance of the recorded blocks
//! then makes the sum look nearly exact, though most of the memory was missed. So the variance of every sum of such a
//! run, for one site or for all, is increased by what [`UNHIT`] more hits at the largest distance would add
//! ([`SampledAllocations::unhit_variance`]). For a sum of sums, the variances are added, but only the largest of these
//! additions counts.

use crate::LiveBlock;
use std::iter::Sum;
use std::ops::{AddAssign, SubAssign};

/// Number of hits added to the variance for memory that no sample has hit. With *k* hits, *k* ± 1.96 √(*k* + 3)
/// contains the expected number with a probability of at least 93 %, for every expected number. This does not hold for
/// *k* ± 1.96 √*k*: after no hit at all, the expected number may well be 3 ("If nothing goes wrong, is everything all
/// right?", Hanley and Lippman-Hand 1983).
const UNHIT: f64 = 3.0;

/// Blocks and bytes: whole numbers, or estimates if allocations were sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Number of blocks.
    pub blocks: f64,
    /// Requested bytes.
    pub bytes: f64,
    /// Estimated variance of `bytes`; 0 unless allocations were sampled.
    pub variance: f64,
    /// Addition to the variance for memory that no sample has hit. For a sum, the largest addition of its parts.
    pub unhit: f64,
}

impl Estimate {
    /// Creates an exact amount.
    pub fn exact(blocks: u64, bytes: u64) -> Estimate {
        Estimate {
            blocks: blocks as f64,
            bytes: bytes as f64,
            ..Estimate::default()
        }
    }

    /// Returns the estimate for a block of `size` bytes that was chosen with the probability 1 / `weight`.
    #[inline]
    pub fn weighted(weight: f64, size: u64) -> Estimate {
        let bytes = size as f64;
        Estimate {
            blocks: weight,
            bytes: weight * bytes,
            variance: (weight - 1.0) * weight * bytes * bytes,
            unhit: 0.0,
        }
    }

    /// Returns the estimate for several blocks of one kind.
    pub fn times(self, count: u64) -> Estimate {
        let count = count as f64;
        Estimate {
            blocks: self.blocks * count,
            bytes: self.bytes * count,
            variance: self.variance * count,
            unhit: self.unhit,
        }
    }

    /// Returns the standard error of `bytes`, if that is an estimate.
    pub fn error_bytes(&self) -> Option<u64> {
        standard_error(self.variance.max(0.0) + self.unhit)
    }
}

/// Returns the standard error of a sum with this variance in whole bytes; `None` if the sum is exact.
pub fn standard_error(variance: f64) -> Option<u64> {
    // Subtracting sums leaves rounding errors: variances near 0, even negative ones.
    let error = variance.max(0.0).sqrt().round() as u64;
    (error > 0).then_some(error)
}

impl AddAssign for Estimate {
    #[inline]
    fn add_assign(&mut self, other: Estimate) {
        self.blocks += other.blocks;
        self.bytes += other.bytes;
        self.variance += other.variance;
        self.unhit = self.unhit.max(other.unhit);
    }
}

impl SubAssign for Estimate {
    /// Subtracts blocks from a sum that includes them.
    #[inline]
    fn sub_assign(&mut self, other: Estimate) {
        self.blocks -= other.blocks;
        self.bytes -= other.bytes;
        self.variance -= other.variance;
        self.unhit = self.unhit.max(other.unhit);
    }
}

impl Sum for Estimate {
    fn sum<I: Iterator<Item = Estimate>>(estimates: I) -> Estimate {
        let mut sum = Estimate::default();
        estimates.for_each(|estimate| sum += estimate);
        sum
    }
}

/// Converts recorded blocks to estimates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimator {
    /// Mean number of bytes between samples; `None` if every allocation is recorded.
    pub sample_bytes: Option<u64>,
}

impl Estimator {
    /// Returns the number of allocations that a recorded allocation of `size` bytes represents: 1 / p.
    #[inline]
    pub fn weight(&self, size: u64) -> f64 {
        match self.sample_bytes {
            None => 1.0,
            Some(mean) => 1.0 / -(-(size.max(1) as f64) / mean.max(1) as f64).exp_m1(),
        }
    }

    /// Returns the estimate for a recorded block of `size` bytes.
    #[inline]
    pub fn block(&self, size: u64) -> Estimate {
        if self.sample_bytes.is_none() {
            return Estimate::exact(1, size);
        }
        Estimate::weighted(self.weight(size), size)
    }
}

/// Maximum number of separate mean distances of samples.
pub const MOST_LEVELS: u8 = 24;

/// Counts all allocations, given the recorded ones.
///
/// Samples can have several mean distances, each twice the one before. Level 1 is the distance of
/// [`Estimator::sample_bytes`], and level 0 means that every allocation was recorded.
#[derive(Clone, Copy, Debug, Default)]
pub struct SampledAllocations {
    /// Estimator for samples of level 1.
    pub estimator: Estimator,
    /// True if every recorded allocation is a sample. Otherwise only those after an announcement are samples.
    pub always: bool,
    /// End of the time in which every allocation was recorded, in nanoseconds since the attach; `None` if that time has
    /// not ended, or if its end is unknown.
    pub exact_until_ns: Option<u64>,
    /// Highest level that was announced, or that a sample has.
    coarsest: u8,
    /// Estimate from the samples.
    estimated: Estimate,
    /// Number of samples.
    samples: u64,
    sample_bytes: u64,
}

impl SampledAllocations {
    /// Creates empty counts. `sample_bytes` is the mean number of bytes between samples of level 1.
    pub fn new(sample_bytes: Option<u64>, always: bool) -> SampledAllocations {
        SampledAllocations {
            estimator: Estimator { sample_bytes },
            always,
            ..SampledAllocations::default()
        }
    }

    /// Returns the largest mean distance of samples in bytes, if any sum may be an estimate.
    pub fn sample_bytes(&self) -> Option<u64> {
        let is_sampled = self.always || self.coarsest > 0;
        let coarsest = self.at(self.coarsest.max(1));
        coarsest.sample_bytes.filter(|_| is_sampled)
    }

    /// Announces that allocations are samples of this level from now on. From then on, allocations may be missed even
    /// if no sample is recorded.
    pub fn announce(&mut self, level: u8) {
        self.coarsest = self.coarsest.max(level.min(MOST_LEVELS));
    }

    /// Returns the addition to any sum's variance for memory that no sample has hit. That memory may be as much as a
    /// few hits represent. Returns 0 without samples, or if all samples have the same distance: then each sum comes
    /// from hits, and their number shows how much may have been missed.
    pub fn unhit_variance(&self) -> f64 {
        match self.sample_bytes() {
            Some(mean) if !self.always => UNHIT * (mean as f64).powi(2),
            _ => 0.0,
        }
    }

    /// Returns the estimator for samples of this level.
    fn at(&self, level: u8) -> Estimator {
        let shift = u32::from(level.clamp(1, MOST_LEVELS) - 1);
        let mean = |first: u64| first.saturating_mul(1 << shift);
        Estimator {
            sample_bytes: self.estimator.sample_bytes.map(mean),
        }
    }

    /// Returns the number of samples.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Counts `count` samples of one size and level. Returns the estimated amount.
    #[inline]
    pub fn count_samples(&mut self, level: u8, size: u64, count: u64) -> Estimate {
        self.samples += count;
        self.sample_bytes = self.sample_bytes.saturating_add(size.saturating_mul(count));
        self.coarsest = self.coarsest.max(level);
        let all = self.at(level).block(size).times(count);
        self.estimated += all;
        all
    }

    /// Adds other counts of the same run.
    pub fn add(&mut self, other: &SampledAllocations) {
        self.announce(other.coarsest);
        self.estimated += other.estimated;
        self.samples += other.samples;
        self.sample_bytes = self.sample_bytes.saturating_add(other.sample_bytes);
    }

    /// Returns the estimate of all allocations since the attach, given the numbers of recorded ones.
    pub fn all(&self, recorded_blocks: u64, recorded_bytes: u64) -> Estimate {
        let mut all = Estimate::exact(
            recorded_blocks.saturating_sub(self.samples),
            recorded_bytes.saturating_sub(self.sample_bytes),
        );
        all += self.estimated;
        self.with_unhit(all)
    }

    /// Returns the estimate for a recorded block of this level and size.
    #[inline]
    pub fn block(&self, level: u8, size: u64) -> Estimate {
        self.with_unhit(match level {
            0 if !self.always => Estimate::exact(1, size),
            level => self.at(level).block(size),
        })
    }

    /// Returns the estimate for a live block that was recorded as a sample, and then kept with the probability 1 /
    /// `kept_weight`. The two choices are independent.
    #[inline]
    pub fn live(&self, block: &LiveBlock, kept_weight: f64) -> Estimate {
        self.with_unhit(Estimate::weighted(
            self.weight(block) * kept_weight,
            block.size,
        ))
    }

    /// Adds the variance for memory that no sample has hit to an amount that was counted before the largest distance
    /// was known.
    #[inline]
    pub fn with_unhit(&self, amount: Estimate) -> Estimate {
        Estimate {
            unhit: self.unhit_variance(),
            ..amount
        }
    }

    /// Returns the number of blocks that this block represents in the sample.
    #[inline]
    pub fn weight(&self, block: &LiveBlock) -> f64 {
        self.weight_of(block.sampling, block.size)
    }

    /// Returns the number of blocks that a block of this level and size represents.
    pub fn weight_of(&self, level: u8, size: u64) -> f64 {
        match level {
            0 => 1.0,
            level => self.at(level).weight(size),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a random number by xorshift64*. The seed is fixed, so that all runs are equal.
    fn unit(state: &mut u64) -> f64 {
        *state ^= *state >> 12;
        *state ^= *state << 25;
        *state ^= *state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }

    #[test]
    fn without_samples_all_is_exact() {
        let estimator = Estimator::default();
        assert_eq!(estimator.weight(0), 1.0);
        assert_eq!(estimator.block(40), Estimate::exact(1, 40));
        assert_eq!(estimator.block(40).error_bytes(), None);
    }

    /// Exact counts remain exact when samples are added.
    #[test]
    fn exact_counts_and_samples_add_up() {
        let mut counts = SampledAllocations::new(Some(1000), false);
        assert_eq!(counts.all(7, 700), Estimate::exact(7, 700));
        assert_eq!(counts.sample_bytes(), None);
        counts.count_samples(1, 100, 3);
        let one = counts.estimator.block(100);
        let all = counts.all(10, 1000);
        assert!((all.blocks - (7.0 + 3.0 * one.blocks)).abs() < 1e-9);
        assert!((all.bytes - (700.0 + 3.0 * one.bytes)).abs() < 1e-9);
        assert!((all.variance - 3.0 * one.variance).abs() < 1e-6);
        assert_eq!((counts.samples(), counts.sample_bytes()), (3, Some(1000)));
    }

    /// Samples of several distances add up, each with its own weight.
    #[test]
    fn each_level_is_twice_as_far_apart() {
        let mut counts = SampledAllocations::new(Some(256), false);
        let sizes = [100u64, 5000, 3];
        let mut expected = Estimate::exact(0, 0);
        for (level, size) in (1u8..).zip(sizes) {
            counts.count_samples(level, size, 1);
            let sample_bytes = Some(256 << (level - 1));
            expected += Estimator { sample_bytes }.block(size);
        }
        assert_eq!(
            counts.all(3, sizes.iter().sum()),
            counts.with_unhit(expected)
        );
        assert_eq!(counts.sample_bytes(), Some(1024));
    }

    /// Well-known blocks must not make a sum look exact if most of it was missed: with distances as large as the sum,
    /// there are often no hits at all.
    #[test]
    fn a_sum_that_no_rare_sample_has_hit_is_not_called_exact() {
        let (early, late, size, rare) = (1000u64, 100_000u64, 100u64, 16);
        let truth = ((early + late) * size) as f64;
        let mut random = 3u64;
        let (mut without_hits, runs) = (0, 2000);
        for _ in 0..runs {
            let mut counts = SampledAllocations::new(Some(256), false);
            let mut live = Estimate::exact(0, 0);
            for (level, blocks) in [(0, early), (rare, late)] {
                counts.announce(level);
                let share = 1.0 / counts.weight_of(level, size);
                let hits = (0..blocks).filter(|_| unit(&mut random) < share).count();
                (0..hits).for_each(|_| live += counts.block(level, size));
                if level == rare {
                    without_hits += u32::from(hits == 0);
                }
            }
            let error = counts.with_unhit(live).error_bytes().expect("an estimate") as f64;
            let off = (live.bytes - truth).abs() / error;
            assert!(off < 6.0, "{} ± {error} instead of {truth}", live.bytes);
        }
        assert!(without_hits > runs / 10, "{without_hits}");
    }

    /// Stated errors hold for each row and for the sum of all: `bytes` ± 1.96 errors must contain the true value in at
    /// least 93 of 100 runs. The sizes have light or heavy tails, the sites are busy or nearly idle, and the distances
    /// are any that a budget might choose.
    #[test]
    fn intervals_of_sites_and_sums_hold_the_truth() {
        type Size = fn(f64) -> f64;
        let exponential: Size = |u| -700.0 * u.ln();
        let pareto: Size = |u| 24.0 * u.powf(-1.0 / 1.1);
        // Distances from 256 B to 512 KiB, and then back to recording everything.
        let budgets: [&[u8]; 5] = [
            &[0, 8, 0],
            &[0, 1, 4, 8, 0],
            &[0, 12],
            &[0, 3, 0, 3],
            &[0, 1],
        ];
        let busy = [400.0, 80.0, 16.0, 3.0, 0.6];
        let mut random = 11u64;
        let runs = 1000;
        for (tail, size) in [("exponential", exponential), ("Pareto", pareto)] {
            for levels in budgets {
                // The last one is the sum.
                let mut held = [0u32; 6];
                for _ in 0..runs {
                    let mut counts = SampledAllocations::new(Some(256), false);
                    let mut sites = [(0.0, Estimate::default()); 5];
                    let mut recorded: Vec<(usize, u8, u64)> = Vec::new();
                    for &level in levels {
                        counts.announce(level);
                        for (site, busy) in busy.iter().enumerate() {
                            // Poisson: exponential times between allocations.
                            let mut at = -unit(&mut random).ln();
                            while at < *busy {
                                at -= unit(&mut random).ln();
                                let bytes = size(unit(&mut random)).clamp(1.0, 1e9).ceil();
                                // A third has been released.
                                if unit(&mut random) < 1.0 / 3.0 {
                                    continue;
                                }
                                sites[site].0 += bytes;
                                let weight = counts.weight_of(level, bytes as u64);
                                if unit(&mut random) < 1.0 / weight {
                                    recorded.push((site, level, bytes as u64));
                                }
                            }
                        }
                    }
                    for (site, level, bytes) in recorded {
                        sites[site].1 += counts.block(level, bytes);
                    }
                    let truth = sites.iter().map(|(truth, _)| truth).sum();
                    let sum = sites.iter().map(|(_, estimate)| *estimate).sum();
                    let all = sites.into_iter().chain([(truth, sum)]);
                    for ((truth, estimate), held) in all.zip(&mut held) {
                        // A site without records has no row, so no estimate is reported for it.
                        let error = estimate.error_bytes().map_or(0.0, |error| error as f64);
                        let is_shown = estimate.blocks > 0.0;
                        let is_held = (estimate.bytes - truth).abs() <= 1.96 * error;
                        *held += u32::from(is_held || !is_shown);
                    }
                }
                assert!(
                    held.iter().all(|held| *held >= runs * 93 / 100),
                    "{tail}, {levels:?}: {held:?} of {runs}"
                );
            }
        }
    }

    /// Nothing is added if nothing was missed, or if all samples have the same distance.
    #[test]
    fn what_was_not_hit_counts_where_distances_change() {
        let mut counts = SampledAllocations::new(Some(256), false);
        assert_eq!(
            (counts.unhit_variance(), counts.sample_bytes()),
            (0.0, None)
        );
        counts.announce(0);
        assert_eq!(counts.sample_bytes(), None);
        // Sampling was announced, but there is no sample yet: no longer exact.
        counts.announce(3);
        assert_eq!(
            (counts.unhit_variance(), counts.sample_bytes()),
            (UNHIT * 1024f64.powi(2), Some(1024))
        );
        let all = SampledAllocations::new(Some(256), true);
        assert_eq!((all.unhit_variance(), all.sample_bytes()), (0.0, Some(256)));
    }

    #[test]
    fn rounding_is_no_error() {
        assert_eq!(standard_error(-1e-9), None);
        assert_eq!(standard_error(0.2), None);
        assert_eq!(standard_error(0.25), Some(1));
        assert_eq!(standard_error(1e4), Some(100));
    }

    /// The mean over many runs is the true value, for the sums and for the variances.
    #[test]
    fn estimates_are_unbiased() {
        let estimator = Estimator {
            sample_bytes: Some(1000),
        };
        let sizes: Vec<u64> = (0..200).map(|i| 1 + i * i % 3000).collect();
        let truth: u64 = sizes.iter().sum();
        let (mut random, runs) = (7u64, 40_000);
        let estimates: Vec<Estimate> = (0..runs)
            .map(|_| {
                let recorded = sizes
                    .iter()
                    .filter(|&&size| unit(&mut random) < 1.0 / estimator.weight(size));
                recorded.map(|&size| estimator.block(size)).sum()
            })
            .collect();
        let mean =
            |of: &dyn Fn(&Estimate) -> f64| estimates.iter().map(of).sum::<f64>() / f64::from(runs);
        let squares = mean(&|e| (e.bytes - truth as f64).powi(2));
        let near = |is: f64, expected: f64| (is / expected - 1.0).abs() < 0.05;
        assert!(near(mean(&|e| e.bytes), truth as f64));
        assert!(near(mean(&|e| e.blocks), sizes.len() as f64));
        assert!(near(mean(&|e| e.variance), squares));
    }
}
