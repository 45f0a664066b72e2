//! How many allocations the recorded ones stand for.

/// Sums over all allocations, weighted when they are samples.
#[derive(Clone, Copy)]
pub struct Counts {
    /// Mean bytes between samples.
    pub sample_bytes: Option<u64>,
    /// Allocations; zero unless they are samples.
    pub allocations: f64,
    /// Their bytes.
    pub bytes: f64,
}

impl Counts {
    /// Nothing counted; `sample_bytes`: mean bytes between samples.
    pub fn new(sample_bytes: Option<u64>) -> Counts {
        Counts {
            sample_bytes,
            allocations: 0.0,
            bytes: 0.0,
        }
    }

    /// Whether recorded allocations stand for others too.
    pub fn is_sampled(&self) -> bool {
        self.sample_bytes.is_some()
    }

    /// How many allocations one recorded allocation of this size stands for: 1 / the probability
    /// that a Poisson process over the bytes hits it (Horvitz-Thompson).
    pub fn weight(&self, size: u64) -> f64 {
        match self.sample_bytes {
            None => 1.0,
            Some(mean) => 1.0 / -(-(size.max(1) as f64) / mean as f64).exp_m1(),
        }
    }

    /// Counts an event.
    #[inline]
    pub fn count_allocation(&mut self, size: u64) {
        if self.sample_bytes.is_some() {
            let weight = self.weight(size);
            self.allocations += weight;
            self.bytes += weight * size as f64;
        }
    }
}
