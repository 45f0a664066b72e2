//! Random choices, reproducible by a seed.

/// The random number generator SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
/// generators).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates the sequence of this seed.
    pub fn seeded(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }

    /// Returns a number uniform in [0, 1).
    pub fn share(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a uniformly distributed number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(bound)) >> 64) as u64
    }
}

/// Mixes the bits of a number.
pub fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
