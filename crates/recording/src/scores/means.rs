//! Combines the scores of sites to the score of a run.

/// Returns the geometric mean of non-negative numbers; `None` if there are none.
pub fn geometric_mean(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut count, mut logarithms) = (0u64, 0.0);
    for number in numbers {
        count += 1;
        logarithms += number.ln();
    }
    (count > 0).then(|| (logarithms / count as f64).exp())
}

/// Returns the variance of numbers around their arithmetic mean; `None` if there are none.
pub fn variance(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    // Welford's method, which avoids subtracting large sums from each other.
    let (mut count, mut mean, mut squares) = (0u64, 0.0, 0.0);
    for number in numbers {
        count += 1;
        let distance = number - mean;
        mean += distance / count as f64;
        squares += distance * (number - mean);
    }
    (count > 0).then(|| squares / count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_variances() {
        let near = |is: Option<f64>, expected: f64| (is.unwrap() - expected).abs() < 1e-12;
        assert!(near(geometric_mean([0.25, 1.0].into_iter()), 0.5));
        assert!(near(geometric_mean([0.0, 1.0].into_iter()), 0.0));
        assert!(near(variance([0.25, 0.75].into_iter()), 0.0625));
        assert!(near(variance([0.7].into_iter()), 0.0));
        assert_eq!(geometric_mean([].into_iter()), None);
        assert_eq!(variance([].into_iter()), None);
    }
}
