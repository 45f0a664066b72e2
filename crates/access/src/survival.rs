//! Estimates the share of untouched memory from watched words.
//!
//! A random word is watched from a moment that is independent of it. It is either touched after
//! some time, or not touched during the watch. If the times between touches follow some
//! distribution that does not change, the time from a random moment to the next touch has the
//! distribution of the time back to the last touch. So the share of memory that was not touched for
//! a time T is the share that will not be touched for a time T.
//!
//! The model is a mixture. A share `s` of the words is never touched within T. The other words are
//! touched at rates from twice in T upwards, in unknown proportions, which are fitted by maximum
//! likelihood for each `s` (expectation maximization). The interval consists of all `s` whose
//! likelihood is not too much smaller than the largest one (Wilks: twice the logarithm of the ratio
//! is about chi-squared). With few observations, the interval is wide.

/// Result of a look.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Watched {
    /// Seconds until the word was touched or the look was abandoned.
    pub seconds: f64,
    /// True if the word was touched at that time.
    pub is_touched: bool,
}

/// Stale share, with a 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Best estimate.
    pub estimate: f64,
    /// Low end of the interval.
    pub low: f64,
    /// High end of the interval.
    pub high: f64,
}

impl Share {
    /// Returns a share that is certain.
    pub fn certain(share: f64) -> Share {
        Share {
            estimate: share,
            low: share,
            high: share,
        }
    }

    /// Returns a share that is unknown. `estimate` is a guess.
    pub fn unknown(estimate: f64) -> Share {
        Share {
            estimate,
            low: 0.0,
            high: 1.0,
        }
    }
}

/// The 95 % quantile of chi-squared with three degrees of freedom. Words touched once or twice in T
/// can hardly be distinguished from stale words, so their share counts as a parameter too. So does
/// the share of words touched once in twice T, some of which are stale at any moment.
/// `adversary.rs` has programs with such words.
const CHI_SQUARED: f64 = 7.815;
/// Lowest rate of touches of words that are not stale, per time T. At this rate, few words are
/// untouched within T.
const LOWEST_RATE: f64 = 2.0;
/// Factor between two rates.
const RATE_STEP: f64 = 4.0;
/// Highest rate, per second.
const HIGHEST_RATE: f64 = 1000.0;
const STEPS: usize = 100;
const ROUNDS: usize = 60;
/// Resolution of times. Times that differ by a smaller fraction count as the same, which saves time
/// and loses little.
const TIMES_A_FACTOR: f64 = 12.0;

/// A number of similar observations.
struct Alike {
    watched: Watched,
    count: f64,
}

fn grouped(watched: &[Watched]) -> Vec<Alike> {
    let key = |one: &Watched| {
        let bin = (one.seconds.max(1e-6).ln() * TIMES_A_FACTOR).round() as i64;
        (one.is_touched, bin)
    };
    let mut sorted: Vec<&Watched> = watched.iter().collect();
    sorted.sort_unstable_by_key(|one| key(one));
    let groups = sorted.chunk_by(|a, b| key(a) == key(b));
    groups
        .map(|group| {
            let sum: f64 = group.iter().map(|one| one.seconds).sum();
            Alike {
                watched: Watched {
                    seconds: sum / group.len() as f64,
                    is_touched: group[0].is_touched,
                },
                count: group.len() as f64,
            }
        })
        .collect()
}

/// Returns the share of words that are not touched within `older_s`; `None` without observations.
pub fn stale_share(watched: &[Watched], older_s: f64) -> Option<Share> {
    if watched.is_empty() {
        return None;
    }
    let groups = grouped(watched);
    let first = LOWEST_RATE / older_s;
    let rates: Vec<f64> = std::iter::successors(Some(first), |rate| Some(rate * RATE_STEP))
        .take_while(|&rate| rate < HIGHEST_RATE.max(2.0 * first))
        .collect();
    // Likelihood of each observation at each rate.
    let likely: Vec<Vec<f64>> = groups
        .iter()
        .map(|Alike { watched: one, .. }| {
            let at = |rate: &f64| {
                let left = (-rate * one.seconds).exp();
                if one.is_touched { rate * left } else { left }
            };
            rates.iter().map(at).collect()
        })
        .collect();
    let fits: Vec<f64> = (0..=STEPS)
        .map(|step| fit(&groups, &likely, step as f64 / STEPS as f64))
        .collect();
    let best = (0..=STEPS)
        .max_by(|&a, &b| fits[a].total_cmp(&fits[b]))
        .unwrap_or(0);
    let is_within = |&step: &usize| 2.0 * (fits[best] - fits[step]) <= CHI_SQUARED;
    let low = (0..=best).find(is_within).unwrap_or(best);
    let high = (best..=STEPS).rev().find(is_within).unwrap_or(best);
    let share = |step: usize| step as f64 / STEPS as f64;
    Some(Share {
        estimate: share(best),
        // The true value may lie between two steps.
        low: (share(low) - 0.5 / STEPS as f64).max(0.0),
        high: (share(high) + 0.5 / STEPS as f64).min(1.0),
    })
}

/// Returns the log-likelihood if this share is stale, with the best proportions of rates.
fn fit(groups: &[Alike], likely: &[Vec<f64>], stale: f64) -> f64 {
    let count = likely.first().map_or(0, Vec::len);
    let mut weights = vec![(1.0 - stale) / count as f64; count];
    let of_stale = |one: &Watched| if one.is_touched { 0.0 } else { stale };
    let probability = |weights: &[f64], one: &Watched, likely: &[f64]| {
        of_stale(one) + weights.iter().zip(likely).map(|(w, l)| w * l).sum::<f64>()
    };
    if stale < 1.0 {
        for _ in 0..ROUNDS {
            let mut next = vec![0.0; count];
            for (Alike { watched, count }, likely) in groups.iter().zip(likely) {
                let whole = probability(&weights, watched, likely);
                if whole > 0.0 {
                    for ((next, weight), likely) in next.iter_mut().zip(&weights).zip(likely) {
                        *next += count * weight * likely / whole;
                    }
                }
            }
            let sum: f64 = next.iter().sum();
            if sum <= 0.0 {
                break;
            }
            weights = next.iter().map(|part| part / sum * (1.0 - stale)).collect();
        }
    }
    let pairs = groups.iter().zip(likely);
    pairs
        .map(|(Alike { watched, count }, likely)| {
            count * probability(&weights, watched, likely).max(1e-300).ln()
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn hits(seconds: f64, count: usize) -> Vec<Watched> {
        let one = Watched {
            seconds,
            is_touched: true,
        };
        vec![one; count]
    }

    fn misses(seconds: f64, count: usize) -> Vec<Watched> {
        let one = Watched {
            seconds,
            is_touched: false,
        };
        vec![one; count]
    }

    #[test]
    fn nothing_watched_is_nothing_known() {
        assert_eq!(stale_share(&[], 30.0), None);
    }

    #[test]
    fn all_hot_and_all_cold() {
        let hot = stale_share(&hits(0.01, 20), 30.0).unwrap();
        assert_eq!((hot.estimate, hot.low), (0.0, 0.0));
        assert!(hot.high < 0.25, "{hot:?}");
        let cold = stale_share(&misses(30.0, 20), 30.0).unwrap();
        assert_eq!((cold.estimate, cold.high), (1.0, 1.0));
        assert!(cold.low > 0.75, "{cold:?}");
        // A look that is short compared with T tells little about words that are touched rarely.
        let short = stale_share(&misses(0.1, 20), 30.0).unwrap();
        assert!(short.low < 0.05, "{short:?}");
    }

    #[test]
    fn more_looks_make_the_interval_narrower() {
        let of = |n| {
            let watched = [hits(0.01, n), misses(30.0, n)].concat();
            stale_share(&watched, 30.0).unwrap()
        };
        let (few, many) = (of(4), of(100));
        assert!((few.estimate - 0.5).abs() < 0.05 && (many.estimate - 0.5).abs() < 0.05);
        assert!(many.high - many.low < 0.25, "{many:?}");
        assert!(few.high - few.low > 0.5, "{few:?}");
    }

    /// Checks the share of intervals that contain the truth. Some of the blocks are stale, and the
    /// other blocks are touched at several rates, or periodically.
    #[test]
    fn intervals_hold() {
        let older = 10.0;
        let mut random = Random::seeded(7);
        let mut in_all = 0;
        for is_periodic in [false, true] {
            for stale in [0.0, 0.1, 0.5, 0.9, 1.0] {
                let mut held = 0;
                for _ in 0..100 {
                    let watched: Vec<Watched> = (0..60)
                        .map(|i| {
                            let limit = [1.0, 2.0, 5.0, 10.0][i % 4];
                            let until = if random.share() < stale {
                                f64::INFINITY
                            } else if is_periodic {
                                [0.1, 2.0, 5.0][random.below(3) as usize] * random.share()
                            } else {
                                -(1.0 - random.share()).ln() * [0.01, 0.5, 3.0][i % 3]
                            };
                            Watched {
                                seconds: until.min(limit),
                                is_touched: until < limit,
                            }
                        })
                        .collect();
                    let share = stale_share(&watched, older).unwrap();
                    held += usize::from((share.low..=share.high).contains(&stale));
                }
                assert!(held >= 90, "{stale} periodic {is_periodic}: {held}");
                in_all += held;
            }
        }
        assert!(in_all >= 950, "{in_all} of 1000");
    }
}
