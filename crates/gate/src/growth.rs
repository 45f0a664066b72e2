//! Decides which sites of a service keep growing, with a trend test over the survivors of each
//! site.
//!
//! The series of a site is the number of its live blocks that are older than a typical request, at
//! equally spaced moments. Load would show only in the young blocks. A site grows if the
//! Mann–Kendall test detects a rise in the whole window and in its second half. A cache that levels
//! off rises only in the first half.
//!
//! Neighbouring values of such a series are alike (autocorrelated), which makes the plain test see
//! trends in noise. The variance is therefore corrected as in K. H. Hamed and A. R. Rao, "A
//! modified Mann-Kendall trend test for autocorrelated data", Journal of Hydrology 204 (1998): by
//! the autocorrelation of the ranks after the trend has been removed. A constant pool whose blocks
//! live about as long as the window is a random walk within it, for which no such correction
//! suffices. So the mean of the steps must also be above zero. With several sites, the probability
//! of a false alarm is divided among them (Bonferroni), so that `confidence` holds for the whole
//! verdict.
//!
//! Blocks from before the attach belong to no site. While they are freed and replaced, each
//! constant site grows from nothing to its size. All of these frees are counted. If a site still
//! grows after all of them are subtracted, it certainly grows. If it grows only without this
//! subtraction, or more and more slowly, the window was too short for a verdict.

use crate::trend::{Trend, corrected, drift, ends_above};
use serde::Serialize;

/// Minimum number of moments for a verdict.
pub const LEAST_MOMENTS: usize = 16;
/// Ratio of the growth in the second half to that in the first, below which a site may be levelling
/// off.
const STEADY_SHARE: f64 = 0.75;
/// Number of standard deviations beyond which a difference between counts is not due to chance.
const DEVIATIONS: f64 = 4.0;

/// Stricter limit while blocks from before the attach are freed. During that time, every constant
/// site rises, so only this test decides.
const CAUTION: f64 = 4.0;

/// Quantity that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GrowthKind {
    /// Blocks.
    Blocks,
    /// Bytes, in blocks that get larger.
    Size,
}

/// Growth of a site.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Growth {
    /// Quantity that grows.
    pub kind: GrowthKind,
    /// Probability that a site without growth looks like this site.
    pub p: f64,
    /// Blocks gained from one moment to the next (Sen's slope).
    pub blocks_per_interval: f64,
    /// Bytes gained from one moment to the next.
    pub bytes_per_interval: f64,
}

/// Course of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Course {
    /// The series does not grow visibly.
    Steady,
    /// The series rises, but perhaps only because the site's blocks replace blocks from before the
    /// attach.
    Replacing,
    /// The series rises ever more slowly.
    Levelling,
    /// The series keeps growing.
    Growing(Growth),
}

/// Returns the course of each series at this confidence (0.99: at most one false verdict in a
/// hundred runs). `freed` has, for each moment, the number of blocks from before the attach that
/// had been freed when the youngest of the counted blocks was allocated.
pub fn courses(series: &[Vec<f64>], freed: &[f64], confidence: f64) -> Vec<Course> {
    courses_among(0, series, freed, confidence)
}

/// Like [`courses`], but for a run that also has this number of other tests.
pub(crate) fn courses_among(
    others: usize,
    series: &[Vec<f64>],
    freed: &[f64],
    confidence: f64,
) -> Vec<Course> {
    let alpha = shared(confidence, risen(series) + others);
    series.iter().map(|s| of_one(s, freed, alpha)).collect()
}

/// Returns the number of series that are tested.
pub(crate) fn risen(series: &[Vec<f64>]) -> usize {
    series.iter().filter(|s| has_risen(s)).count()
}

/// Returns the probability of a false alarm that each of several tests may have.
pub(crate) fn shared(confidence: f64, tests: usize) -> f64 {
    (1.0 - confidence) / tests.max(1) as f64
}

fn has_risen(series: &[f64]) -> bool {
    series.len() >= LEAST_MOMENTS && series.last() > series.first()
}

fn of_one(series: &[f64], freed: &[f64], alpha: f64) -> Course {
    if !has_risen(series) {
        return Course::Steady;
    }
    let middle = series.len() / 2;
    let whole = corrected(series);
    let late = corrected(&series[middle..]);
    let rises = |trend: &Trend| trend.p < alpha && trend.s > 0;
    // The second half has the fewest blocks that are older than the window.
    let has_freed = freed.first() != freed.last();
    let stretch = if has_freed { &series[middle..] } else { series };
    let goes_on = rises(&whole) && rises(&late) && drift(stretch) < alpha;
    if !(goes_on && ends_above(series, 0)) {
        return Course::Steady;
    }
    // Lower bound on the site's number of blocks, as if all of the freed blocks had belonged to the
    // site.
    let at_least: Vec<f64> = series
        .iter()
        .zip(freed)
        .map(|(n, freed)| n - freed)
        .collect();
    if has_freed && !certainly_rises(&at_least, alpha) {
        return Course::Replacing;
    }
    let [first, last] = [at_least[0], at_least[series.len() - 1]];
    let (early, later) = (at_least[middle] - first, last - at_least[middle]);
    let chance = DEVIATIONS * (early + later).max(0.0).sqrt();
    if later < early * STEADY_SHARE && early - later > chance {
        return Course::Levelling;
    }
    Course::Growing(Growth {
        kind: GrowthKind::Blocks,
        p: whole.p.max(late.p),
        blocks_per_interval: late.slope,
        bytes_per_interval: 0.0,
    })
}

/// Returns true if even the lower bound of a site rises, in the second half or at its end. In a
/// longer window, fewer blocks from before the attach are released in its last part, while a leak
/// continues.
fn certainly_rises(at_least: &[f64], alpha: f64) -> bool {
    let alpha = alpha / CAUTION / 2.0;
    let moments = at_least.len();
    let rises = |from: usize| {
        let late = &at_least[from..];
        let trend = corrected(late);
        late.len() >= LEAST_MOMENTS && trend.s > 0 && trend.p < alpha && drift(late) < alpha
    };
    let (middle, last_third) = (moments / 2, moments * 2 / 3);
    (rises(middle) && ends_above(at_least, middle / 2))
        || (rises(last_third) && ends_above(&at_least[last_third..], 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The generator is xorshift64* with a fixed seed, so that runs are the same everywhere.
    struct Random(u64);

    impl Random {
        fn unit(&mut self) -> f64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
        }

        fn between(&mut self, low: f64, high: f64) -> f64 {
            low + self.unit() * (high - low)
        }
    }

    const MOMENTS: usize = 60;
    const STEPS: usize = 20;
    /// Minimum age of blocks that count, in steps.
    const AGE: usize = 4 * STEPS;

    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Site {
        /// Keeps the block of one request in `one_in` forever.
        Leak { one_in: f64 },
        /// Fills up to a size, then replaces entries at random.
        Cache { size: usize },
        /// Serves only requests, whose number varies.
        Load,
    }

    /// Simulates, step by step, when the live blocks are allocated. Returns the number of old
    /// blocks at each moment.
    fn simulate(site: Site, seed: u64) -> Vec<f64> {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            random.unit();
        }
        let phase = random.between(0.0, 6.3);
        let period = random.between(100.0, 900.0);
        let (mut requests, mut kept): (Vec<(usize, f64)>, Vec<usize>) = (Vec::new(), Vec::new());
        let mut series = Vec::new();
        let warmup = 10 * STEPS;
        for step in 0..warmup + MOMENTS * STEPS {
            let swing = 1.0 + 0.8 * (step as f64 / period * 6.3 + phase).sin();
            let arrivals = (20.0 * swing * random.between(0.3, 1.7)) as usize;
            for _ in 0..arrivals {
                // Lifetimes are exponentially distributed. Their mean is a tenth of the age from
                // which blocks count, and a few are much longer.
                let slow = if random.unit() < 0.01 { 8.0 } else { 1.0 };
                let life = -random.unit().max(1e-9).ln() * AGE as f64 / 10.0 * slow;
                requests.push((step, step as f64 + life));
                match site {
                    Site::Leak { one_in } if random.unit() < 1.0 / one_in => kept.push(step),
                    Site::Cache { size } if random.unit() < 0.05 => {
                        if kept.len() < size {
                            kept.push(step);
                        } else {
                            let victim = (random.unit() * size as f64) as usize;
                            kept[victim.min(size - 1)] = step;
                        }
                    }
                    _ => {}
                }
            }
            requests.retain(|&(_, end)| end > step as f64);
            if step >= warmup && (step - warmup) % STEPS == STEPS - 1 {
                let old = |born: usize| born + AGE <= step;
                let requests = requests.iter().filter(|r| old(r.0)).count();
                let kept = kept.iter().filter(|&&born| old(born)).count();
                series.push((requests + kept) as f64);
            }
        }
        series
    }

    fn is_growing(series: &[f64], freed: &[f64], confidence: f64) -> bool {
        let courses = courses(&[series.to_vec()], freed, confidence);
        matches!(courses[0], Course::Growing(_))
    }

    fn alarms(site: impl Fn(u64) -> Site, confidence: f64) -> usize {
        let runs = (0..200).map(|seed| simulate(site(seed), seed + 1));
        runs.filter(|series| is_growing(series, &[0.0; MOMENTS], confidence))
            .count()
    }

    /// Prints the table of the documentation (docs/gate-evaluation.md).
    #[test]
    fn misses_and_false_alarms_in_200_seeded_runs() {
        let mut table = String::new();
        for confidence in [0.95, 0.99, 0.999] {
            let fast = 200 - alarms(|_| Site::Leak { one_in: 200.0 }, confidence);
            let slow = 200 - alarms(|_| Site::Leak { one_in: 1000.0 }, confidence);
            let slowest = 200 - alarms(|_| Site::Leak { one_in: 4000.0 }, confidence);
            let caches = alarms(
                |seed| Site::Cache {
                    size: 50 + seed as usize * 2,
                },
                confidence,
            );
            let load = alarms(|_| Site::Load, confidence);
            table +=
                &format!("| {confidence} | {fast} | {slow} | {slowest} | {caches} | {load} |\n");
        }
        println!("{table}");
        assert_eq!(table, include_str!("../growth-table.txt"), "\n{table}");
    }

    #[test]
    fn several_sites_share_the_chance() {
        let steady: Vec<f64> = (0..40).map(|i| f64::from(i % 3)).collect();
        let leak: Vec<f64> = (0..40).map(f64::from).collect();
        let found = courses(&[steady.clone(), leak.clone(), steady], &[0.0; 40], 0.99);
        assert_eq!((found[0], found[2]), (Course::Steady, Course::Steady));
        let Course::Growing(growth) = found[1] else {
            panic!("{found:?}");
        };
        assert_eq!(growth.blocks_per_interval, 1.0);
        assert!(!is_growing(&[1.0, 2.0, 3.0], &[0.0; 3], 0.5), "too short");
        let mut step = vec![0.0; 30];
        step.extend([1.0; 10]);
        assert!(!is_growing(&step, &[0.0; 40], 0.99), "grown once");
        // Each block may replace one that was freed.
        assert_eq!(
            courses(std::slice::from_ref(&leak), &leak, 0.99),
            [Course::Replacing]
        );
        let levelling: Vec<f64> = (0..40).map(|i| 900.0 * (1.0 - 0.93f64.powi(i))).collect();
        assert_eq!(courses(&[levelling], &[0.0; 40], 0.99), [Course::Levelling]);
    }
}
