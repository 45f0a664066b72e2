//! Decides which sites have blocks that grow while their number stays constant, such as a buffer
//! that is appended to and never emptied, or a queue of ever longer strings.
//!
//! Such a block is often young, because each realloc(3) creates it again, so the test of blocks
//! that outlive requests does not detect it. This test therefore uses all live blocks of a site:
//! their bytes and their mean size. More load makes more blocks, not larger blocks, so a site whose
//! number of blocks has risen is left to that other test. A site grows if both series meet the
//! other test's criteria for a rise: over the whole window and over its second half, by more than a
//! random walk would, above every earlier level, and without steadily slowing down.
//!
//! Some of the freed blocks from before the attach may have been replaced at this site. Their
//! number is at most the number of blocks that the site has gained since its minimum, and none of
//! them is larger than the site's largest block. If a site still grows after that amount is
//! subtracted, the growth is certain.

use crate::growth::{Course, Growth, GrowthKind, LEAST_MOMENTS};
use crate::trend::{Trend, corrected, drift, ends_above, mean};

/// p-value below which a rise in the number of a site's blocks counts as real.
const SAME_NUMBER: f64 = 0.05;
/// Ratio of the growth in the second half to the growth in the first half, below which a site may
/// be levelling off.
const STEADY_SHARE: f64 = 0.75;
/// Number of standard deviations beyond which the sum of a site's steps is not attributed to
/// chance.
const DEVIATIONS: f64 = 3.0;
/// Stricter limit for a size that fluctuates, because no other test covers that case.
const CAUTION: f64 = 4.0;
/// Fraction (1/n) of moments at which a block may be missing because realloc(3) is moving it.
const EMPTY_SHARE: usize = 8;

/// All live blocks of a site at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Held {
    pub blocks: f64,
    pub bytes: f64,
    /// Largest block that the site has ever had.
    pub largest: f64,
    /// Number of blocks from before the attach that have been freed.
    pub freed: f64,
}

/// Returns true if a site may grow in size, and therefore gets a share of the false-alarm
/// probability.
pub fn may_grow(moments: &[Held]) -> bool {
    let Some((first, last)) = moments.first().zip(moments.last()) else {
        return false;
    };
    moments.len() >= LEAST_MOMENTS && last.bytes > first.bytes
}

/// Returns the course of the size of a site's blocks.
pub fn course_of_size(moments: &[Held], alpha: f64) -> Course {
    let held: Vec<Held> = moments.iter().copied().filter(|m| m.blocks > 0.0).collect();
    let empty = moments.len() - held.len();
    if !may_grow(&held) || empty > moments.len() / EMPTY_SHARE {
        return Course::Steady;
    }
    let blocks: Vec<f64> = held.iter().map(|m| m.blocks).collect();
    let number = corrected(&blocks);
    if number.s > 0 && number.p < SAME_NUMBER {
        return Course::Steady;
    }
    let means =
        |bytes: &[f64]| -> Vec<f64> { bytes.iter().zip(&blocks).map(|(b, n)| b / n).collect() };
    let bytes: Vec<f64> = held.iter().map(|m| m.bytes).collect();
    let (Some(sum), Some(mean)) = (rise(&bytes, alpha), rise(&means(&bytes), alpha)) else {
        return Course::Steady;
    };
    let at_least = at_least(&held);
    if at_least != bytes
        && (rise(&at_least, alpha).is_none() || rise(&means(&at_least), alpha).is_none())
    {
        return Course::Replacing;
    }
    if levels_off(&means(&at_least)) || levels_off(&at_least) {
        return Course::Levelling;
    }
    Course::Growing(Growth {
        kind: GrowthKind::Size,
        p: sum.p.max(mean.p),
        blocks_per_interval: number.slope,
        bytes_per_interval: sum.slope,
    })
}

/// Returns the bytes, not counting blocks that may have replaced blocks from before the attach.
fn at_least(held: &[Held]) -> Vec<f64> {
    let (mut least, freed_before) = (f64::MAX, held[0].freed);
    let bytes = held.iter().map(|m| {
        least = least.min(m.blocks);
        let successors = (m.freed - freed_before).min(m.blocks - least);
        m.bytes - successors * m.largest
    });
    bytes.collect()
}

/// Returns the less certain of two trends, that of the whole series and that of its second half, if
/// both are upward.
fn rise(series: &[f64], alpha: f64) -> Option<Trend> {
    let late = &series[series.len() / 2..];
    let trends = [corrected(series), corrected(late)];
    let rises = |trend: &Trend| trend.p < alpha && trend.s > 0;
    let goes_on = trends.iter().all(rises)
        && drift(&in_usual_steps(series)) < alpha / CAUTION
        && drift(&in_usual_steps(late)) < alpha;
    let [whole, late] = trends;
    (goes_on && ends_above(series, 0)).then(|| Trend {
        p: whole.p.max(late.p),
        ..late
    })
}

fn steps(series: &[f64]) -> impl Iterator<Item = f64> {
    series.windows(2).map(|pair| pair[1] - pair[0])
}

/// Returns the series in units of its typical step, if it has one. A rise is then measured in
/// steps, and a single jump is one step, whatever its height.
fn in_usual_steps(series: &[f64]) -> Vec<f64> {
    let taken: Vec<f64> = steps(series).filter(|step| *step != 0.0).collect();
    let usual = taken.iter().map(|step| step.abs()).sum::<f64>() / taken.len().max(1) as f64;
    let unit = if usual > 0.0 { usual } else { 1.0 };
    series.iter().map(|value| value / unit).collect()
}

/// Returns true if the series rises significantly less in the second half than in the first.
fn levels_off(series: &[f64]) -> bool {
    let (width, middle) = (series.len() / 8, series.len() / 2);
    let begin = mean(&series[..width]);
    let half = mean(&series[middle - width / 2..middle + width.div_ceil(2)]);
    let end = mean(&series[series.len() - width..]);
    let (early, later) = (half - begin, end - half);
    let usual = steps(series).sum::<f64>() / (series.len() - 1) as f64;
    let variance: f64 = steps(series).map(|step| (step - usual).powi(2)).sum();
    later < early * STEADY_SHARE && early - later > DEVIATIONS * variance.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::growth_simulation::exponential;
    use fastrand::Rng;

    const RUNS: u64 = 200;
    /// Just less than one percent of the runs.
    const FEW: usize = RUNS as usize / 100 - 1;
    const MOMENTS: usize = 60;
    const ENTRIES: usize = 50;

    #[derive(Clone, Copy, Debug)]
    enum Site {
        /// A buffer to which data is appended.
        Buffer,
        /// Entries. At each moment, the given number of them are replaced with longer entries.
        LongerEntries(usize),
        /// Entries. At each moment, the given number of them are replaced with entries of any size.
        Entries(usize),
        /// Like the variant above, with a few very large entries.
        HeavyTail(usize),
        /// Requests of any size, as many as a varying load demands.
        Load,
        /// Requests, as many as a continuously rising load demands.
        RisingLoad,
        /// A buffer that is as large as the largest request so far.
        HighWater,
        /// A buffer that is written out when it is full.
        Sawtooth,
        /// A size that rises and falls by chance.
        Walk,
        /// Entries that reach their full length early in the window.
        WarmingUp,
        /// Many small blocks, and a few large ones from before the attach that are replaced one
        /// after another.
        Successors,
    }

    fn simulate(site: Site, seed: u64) -> Vec<Held> {
        let mut random = Rng::with_seed(seed);
        let any_size = |random: &mut Rng| 16.0 + random.f64() * 4000.0;
        let mut entries: Vec<f64> = (0..ENTRIES).map(|_| any_size(&mut random)).collect();
        let (mut buffer, mut limit) = (1000.0, 20_000.0);
        let phase = random.f64() * 6.3;
        let (mut freed, mut largest): (f64, f64) = (0.0, 0.0);
        let mut moments = Vec::new();
        for moment in 0..MOMENTS {
            let at = moment as f64;
            let load = match site {
                Site::Load => 200.0 * (1.0 + 0.8 * (at / 9.0 + phase).sin()),
                Site::RisingLoad => 200.0 + 5.0 * at,
                _ => 0.0,
            };
            let replaced = match site {
                Site::LongerEntries(n) | Site::Entries(n) | Site::HeavyTail(n) => n,
                Site::WarmingUp => ENTRIES,
                _ => 0,
            };
            for _ in 0..replaced {
                let victim = random.usize(..ENTRIES);
                entries[victim] = match site {
                    Site::LongerEntries(_) => 1000.0 + 60.0 * at + random.f64() * 200.0,
                    Site::HeavyTail(_) => (3.0 + exponential(2.0, &mut random)).exp(),
                    Site::WarmingUp => 4000.0 * (1.0 - 0.7f64.powf(at)) + random.f64() * 200.0,
                    _ => any_size(&mut random),
                };
            }
            let requests = (load * (0.8 + 0.4 * random.f64())) as usize;
            let (blocks, bytes): (f64, f64) = match site {
                Site::Load | Site::RisingLoad => {
                    let sizes = (0..requests).map(|_| any_size(&mut random));
                    (requests as f64, sizes.sum())
                }
                Site::Buffer => {
                    buffer += exponential(500.0, &mut random);
                    (1.0, buffer)
                }
                Site::HighWater => {
                    for _ in 0..50 {
                        buffer = f64::max(buffer, (3.0 + exponential(2.0, &mut random)).exp());
                    }
                    (1.0, buffer)
                }
                Site::Sawtooth => {
                    buffer += exponential(2000.0, &mut random);
                    if buffer > limit {
                        (buffer, limit) = (1000.0, 15_000.0 + random.f64() * 20_000.0);
                    }
                    (1.0, buffer)
                }
                Site::Walk => {
                    buffer = (buffer + (random.f64() - 0.5) * 500.0).max(16.0);
                    (1.0, buffer)
                }
                Site::Successors => {
                    let large = (at * 0.8).floor();
                    freed = large;
                    let small = 1000.0 + (random.f64() - 0.5) * 200.0;
                    largest = 100_000.0;
                    (small + large, small * 100.0 + large * largest)
                }
                _ => (ENTRIES as f64, entries.iter().sum()),
            };
            largest = largest.max(bytes / blocks);
            moments.push(Held {
                blocks,
                bytes,
                largest,
                freed,
            });
        }
        moments
    }

    /// Returns the number of runs that were judged to grow, and the number of runs without a
    /// verdict.
    fn said(site: Site) -> (usize, usize) {
        let courses = (1..=RUNS).map(|seed| course_of_size(&simulate(site, seed), 0.01));
        let courses: Vec<Course> = courses.collect();
        let count = |is: fn(&Course) -> bool| courses.iter().filter(|course| is(course)).count();
        (
            count(|course| matches!(course, Course::Growing(_))),
            count(|course| matches!(course, Course::Replacing | Course::Levelling)),
        )
    }

    #[test]
    fn sizes_that_grow_are_told_from_those_that_do_not() {
        let mut faults = Vec::new();
        for site in [
            Site::Buffer,
            Site::LongerEntries(10),
            Site::LongerEntries(50),
        ] {
            let (grows, unclear) = said(site);
            println!("{site:?}: grows {grows}, unclear {unclear}");
            if grows < RUNS as usize - FEW {
                faults.push(format!("{site:?}: {grows} grow, {unclear} are unclear"));
            }
        }
        for site in [
            Site::Entries(3),
            Site::Entries(25),
            Site::Entries(50),
            Site::HeavyTail(3),
            Site::HeavyTail(50),
            Site::Load,
            Site::RisingLoad,
            Site::HighWater,
            Site::Sawtooth,
            Site::Walk,
            Site::WarmingUp,
            Site::Successors,
        ] {
            let (grows, unclear) = said(site);
            println!("{site:?}: grows {grows}, unclear {unclear}");
            if grows > FEW {
                faults.push(format!("{site:?}: {grows} grow"));
            }
        }
        assert!(faults.is_empty(), "{faults:#?}");
    }

    #[test]
    fn a_moment_within_realloc_and_a_site_that_is_not_always_there() {
        let grown = |empty: &[usize]| -> Vec<Held> {
            let moment = |i: usize| {
                let is_there = f64::from(u8::from(!empty.contains(&i)));
                Held {
                    blocks: is_there,
                    bytes: is_there * (1000.0 + 300.0 * i as f64),
                    largest: 20_000.0,
                    freed: 0.0,
                }
            };
            (0..MOMENTS).map(moment).collect()
        };
        let is_growing = |moments: &[Held]| match course_of_size(moments, 0.01) {
            Course::Growing(growth) => {
                assert_eq!(growth.kind, GrowthKind::Size);
                assert!(
                    (growth.bytes_per_interval - 300.0).abs() < 30.0,
                    "{growth:?}"
                );
                true
            }
            _ => false,
        };
        assert!(is_growing(&grown(&[])));
        assert!(is_growing(&grown(&[7, 30, 41])));
        assert!(!is_growing(&grown(&(0..20).collect::<Vec<_>>())));
        assert!(!is_growing(&grown(&[])[..LEAST_MOMENTS - 1]));
        assert!(!may_grow(&[]));
    }
}
