//! Mann–Kendall test, which detects a rise in a series regardless of its distribution.
//!
//! H. B. Mann, "Nonparametric tests against trend", Econometrica 13 (1945); M. G. Kendall, "Rank Correlation Methods"
//! (1975), with the correction of the variance for ties. The slope is the estimator of P. K. Sen, "Estimates of the
//! regression coefficient based on Kendall's tau" (1968).

/// Trend of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    /// Number of pairs whose later value is higher, minus the number of pairs whose later value is lower.
    pub s: i64,
    /// Probability that a series without a trend has a statistic at least as extreme (one-sided: upwards).
    pub p: f64,
    /// Median change from one value to the next.
    pub slope: f64,
}

/// Tests a series of equally spaced values.
///
/// The normal approximation is good for about ten values or more (Kendall). Fewer than four values prove nothing (p =
/// 1).
pub fn mann_kendall(series: &[f64]) -> Trend {
    test(series, 1.0)
}

/// Tests values that depend on their neighbours (Hamed and Rao 1998). The variance grows by the
/// significant autocorrelations of the ranks of the series without its trend.
pub fn corrected(series: &[f64]) -> Trend {
    let n = series.len() as f64;
    let plain = mann_kendall(series);
    if series.len() < 4 {
        return plain;
    }
    let rest: Vec<f64> = series
        .iter()
        .enumerate()
        .map(|(i, value)| value - plain.slope * i as f64)
        .collect();
    let ranks = ranks(&rest);
    let mean = ranks.iter().sum::<f64>() / n;
    let variance: f64 = ranks.iter().map(|r| (r - mean).powi(2)).sum();
    let mut sum = 0.0;
    // There are too few pairs to estimate longer lags.
    for lag in 1..series.len() / 2 {
        let pairs = ranks.iter().zip(&ranks[lag..]);
        let covariance: f64 = pairs.map(|(a, b)| (a - mean) * (b - mean)).sum();
        let k = lag as f64;
        let correlation = if variance > 0.0 {
            covariance / variance
        } else {
            0.0
        };
        if correlation > 1.96 / n.sqrt() {
            sum += (n - k) * (n - k - 1.0) * (n - k - 2.0) * correlation;
        }
    }
    test(series, 1.0 + 2.0 * sum / (n * (n - 1.0) * (n - 2.0)))
}

/// Ranks values from 1 on. Equal values share their mean rank.
fn ranks(values: &[f64]) -> Vec<f64> {
    let below = |v: f64| values.iter().filter(|&&w| w < v).count() as f64;
    let equal = |v: f64| values.iter().filter(|&&w| w == v).count() as f64;
    values
        .iter()
        .map(|&v| below(v) + (equal(v) + 1.0) / 2.0)
        .collect()
}

fn test(series: &[f64], inflation: f64) -> Trend {
    let n = series.len();
    let mut s = 0i64;
    let mut slopes = Vec::with_capacity(n * n.saturating_sub(1) / 2);
    for (i, &early) in series.iter().enumerate() {
        for (j, &late) in series.iter().enumerate().skip(i + 1) {
            s += i64::from(late > early) - i64::from(late < early);
            slopes.push((late - early) / (j - i) as f64);
        }
    }
    let slope = median(&mut slopes);
    let mut sorted = series.to_vec();
    sorted.sort_by(f64::total_cmp);
    let term = |n: f64| n * (n - 1.0) * (2.0 * n + 5.0);
    let ties: f64 = sorted
        .chunk_by(|a, b| a == b)
        .map(|group| term(group.len() as f64))
        .sum();
    let variance = (term(n as f64) - ties) / 18.0 * inflation;
    let p = if n >= 4 && variance > 0.0 {
        // This includes Kendall's continuity correction.
        upper_tail((s - s.signum()) as f64 / variance.sqrt())
    } else {
        1.0
    };
    Trend { s, p, slope }
}

/// Returns the probability that a random walk without drift rises this much, from the mean and the variance of its
/// steps.
pub fn drift(series: &[f64]) -> f64 {
    let steps: Vec<f64> = series.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let n = steps.len() as f64;
    let sum: f64 = steps.iter().sum();
    let variance: f64 = steps.iter().map(|step| (step - sum / n).powi(2)).sum();
    // Equal steps, as in a count that rises regularly, have no variance. The lower bound is the variance of a count of
    // events, which equals the count.
    let variance = variance.max(sum.abs());
    if variance > 0.0 {
        upper_tail(sum / variance.sqrt())
    } else {
        1.0
    }
}

/// Returns the probability that a standard normal variable is above `z`.
fn upper_tail(z: f64) -> f64 {
    0.5 * libm::erfc(z / std::f64::consts::SQRT_2)
}

fn median(values: &mut [f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

pub(crate) fn mean(part: &[f64]) -> f64 {
    part.iter().sum::<f64>() / part.len() as f64
}

/// Returns true if the mean of the last values is above the highest mean of equally many consecutive values in the
/// first half, not counting the first `skip` values. A site that fills up and is emptied again ends no higher.
pub(crate) fn ends_above(series: &[f64], skip: usize) -> bool {
    let width = series.len() / 8;
    let end = mean(&series[series.len() - width..]);
    let early = &series[skip..series.len() / 2];
    early.windows(width).all(|part| mean(part) < end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_values() {
        let up: Vec<f64> = (0..10).map(f64::from).collect();
        let trend = mann_kendall(&up);
        // Var = 10 * 9 * 25 / 18 = 125; z = 44 / sqrt(125) = 3.9355; one-sided p = 4.15e-5.
        assert_eq!((trend.s, trend.slope), (45, 1.0));
        assert!((trend.p - 4.15e-5).abs() < 2e-7, "{}", trend.p);
        assert_eq!(mann_kendall(&[3.0; 12]).p, 1.0);
        assert_eq!(mann_kendall(&[1.0, 2.0]).p, 1.0);
        // Ties: 1 1 2 2 has s = 4, variance (4*3*13 - 2 * 2*1*9) / 18 = 6.667, z = 1.1619.
        let ties = mann_kendall(&[1.0, 1.0, 2.0, 2.0]);
        assert!(ties.s == 4 && (ties.p - 0.1226).abs() < 1e-3, "{ties:?}");
    }

    proptest! {
        #[test]
        fn a_probability(series in prop::collection::vec(-1e6f64..1e6, 0..30)) {
            let trend = mann_kendall(&series);
            prop_assert!((0.0..=1.0).contains(&trend.p));
            let down: Vec<f64> = series.iter().rev().copied().collect();
            prop_assert_eq!(mann_kendall(&down).s, -trend.s);
        }
    }
}
