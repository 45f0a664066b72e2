//! Values that the hook needs if it does not record every allocation.

use crate::Region;
use memhook_abi::{FILTER_WORDS, LEAST_FILTER_WORDS, SAMPLE_OFFSET, SAMPLE_QUANTILES};

/// Returns the number of entries in the table of recorded blocks, or of passed blocks. The table takes a small part of
/// the attach's memory allowance (bytes).
pub(crate) fn table_entries(allowance: u64) -> u64 {
    let affordable = (allowance / 16 / 8).clamp(LEAST_FILTER_WORDS as u64, FILTER_WORDS as u64);
    1 << affordable.ilog2()
}

impl Region {
    /// Writes the quantiles from which the hook draws its sampling intervals.
    pub(crate) fn write_sample_intervals(&self, mean_bytes: u64) {
        let quantiles = exponential_quantiles().into_iter();
        let intervals = quantiles.map(|quantile| (quantile * mean_bytes as f64) as u64);
        self.memory.tell_u64s(SAMPLE_OFFSET, intervals);
    }
}

/// Returns quantiles of the exponential distribution of mean 1, for linear interpolation between neighbours. The last
/// quantile, which should be infinite, is chosen to make the mean exact.
fn exponential_quantiles() -> Vec<f64> {
    let n = SAMPLE_QUANTILES;
    let mut quantiles: Vec<f64> = (0..n).map(|i| -(1.0 - i as f64 / n as f64).ln()).collect();
    let inner: f64 = quantiles.windows(2).map(|w| (w[0] + w[1]) / 2.0).sum();
    quantiles.push(2.0 * (n as f64 - inner) - quantiles[n - 1]);
    quantiles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpolated_quantiles_have_mean_one_and_ascend() {
        let quantiles = exponential_quantiles();
        assert_eq!(quantiles.len(), SAMPLE_QUANTILES + 1);
        assert!(quantiles.windows(2).all(|w| w[0] < w[1]));
        let sum: f64 = quantiles.windows(2).map(|w| (w[0] + w[1]) / 2.0).sum();
        assert!((sum / SAMPLE_QUANTILES as f64 - 1.0).abs() < 1e-9);
        // The distribution between the quantiles: P(interval <= s) is 1 - exp(-s).
        for s in [0.01f64, 0.5, 1.0, 3.0] {
            let below = quantiles.partition_point(|&q| q <= s) as f64 / SAMPLE_QUANTILES as f64;
            assert!((below - (1.0 - (-s).exp())).abs() < 3e-4, "{s}");
        }
    }
}
