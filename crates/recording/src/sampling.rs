//! Estimates from sampled allocations.

/// How many allocations one recorded allocation of `size` bytes stands for, if one in
/// `mean_bytes` bytes is recorded at random: 1 / the probability that a Poisson process over the
/// bytes hits it (Horvitz-Thompson).
pub fn sample_weight(size: u64, mean_bytes: u64) -> f64 {
    1.0 / -(-(size.max(1) as f64) / mean_bytes.max(1) as f64).exp_m1()
}
