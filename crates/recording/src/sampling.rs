//! Estimates from sampled allocations.

use crate::Amount;

/// How many allocations one recorded allocation of `size` bytes stands for, if one in
/// `mean_bytes` bytes is recorded at random: 1 / the probability that a Poisson process over the
/// bytes hits it (Horvitz-Thompson).
pub fn sample_weight(size: u64, mean_bytes: u64) -> f64 {
    1.0 / -(-(size.max(1) as f64) / mean_bytes.max(1) as f64).exp_m1()
}

/// What one recorded allocation stands for.
pub(crate) fn estimate(size: u64, mean_bytes: u64) -> Amount {
    let weight = sample_weight(size, mean_bytes);
    let bytes = size as f64;
    Amount {
        blocks: weight,
        bytes: weight * bytes,
        // Horvitz-Thompson: (1 - p) / p^2 * bytes^2 for each block, p = 1 / weight.
        variance: (weight - 1.0) * weight * bytes * bytes,
    }
}
