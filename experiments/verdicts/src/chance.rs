//! Reproducible pseudo-random numbers.

/// Xorshift generator (Marsaglia 2003).
pub struct Chance(pub u32);

impl Chance {
    pub fn next(&mut self) -> u32 {
        let mut x = self.0.max(1);
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        self.0 = x;
        x
    }

    pub fn below(&mut self, limit: u32) -> u32 {
        (self.next() >> 4) % limit
    }
}
