//! Choice of the blocks that a ledger of bounded memory keeps.
//!
//! A block of `size` bytes is kept with probability min(1, size / threshold): all large blocks,
//! which dominate the sums, and enough small ones, so that each represents about as many bytes as
//! any other. The choice depends on a hash of the address, so that it is the same for the
//! allocation and the release of a block. A block that is kept with some threshold is also kept
//! with every lower one, so a ledger can raise the threshold at any time. A kept block counts for 1
//! / probability blocks (D. G. Horvitz and D. J. Thompson, "A generalization of sampling without
//! replacement from a finite universe", 1952), and the variance of a sum follows from that weight.
//!
//! Releases of blocks that are not kept leave tombstones like all other releases, because the size
//! of the block is unknown. If so many releases arrive in a few passes that their tombstones alone
//! exceed the bound, whole addresses are left out: one in 2^`shift` is kept, and events of the
//! others are dropped on arrival.

/// Rule for the blocks that are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Thinning {
    /// Size in bytes from which all blocks are kept; 0 keeps all.
    pub threshold: u64,
    /// Number of bits for the choice of addresses: one in 2^shift is kept.
    pub shift: u32,
}

/// Threshold above every size, and low enough that products with a hash lose no bits.
const MAX_THRESHOLD: u64 = 1 << 62;
const MAX_SHIFT: u32 = 32;

/// Austin Appleby's finalizer of MurmurHash3: each bit of the result depends on all of `key`. It
/// must differ from the function that chooses a block's position in the table.
fn mix(mut key: u64) -> u64 {
    key ^= key >> 33;
    key = key.wrapping_mul(0xff51_afd7_ed55_8ccd);
    key ^= key >> 33;
    key = key.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    key ^ key >> 33
}

impl Thinning {
    /// Returns the rule that keeps the blocks that both rules keep.
    pub fn with(self, other: Thinning) -> Thinning {
        Thinning {
            threshold: self.threshold.max(other.threshold),
            shift: self.shift.max(other.shift),
        }
    }

    pub fn is_on(self) -> bool {
        self.threshold > 0 || self.shift > 0
    }

    /// Returns true if this address is left out.
    pub fn excludes(self, address: u64) -> bool {
        mix(address >> 3) & ((1 << self.shift) - 1) != 0
    }

    pub fn keeps(self, address: u64, size: u64) -> bool {
        // The upper bits of the hash form a number below 1, and are independent of the lower ones.
        let scaled = (u128::from(mix(address >> 3)) * u128::from(self.threshold)) >> 64;
        !self.excludes(address) && scaled < u128::from(size.max(1))
    }

    /// Returns the number of blocks of this size that a kept block represents.
    pub fn weight(self, size: u64) -> f64 {
        let one_in = (self.threshold as f64 / size.max(1) as f64).max(1.0);
        one_in * (1u64 << self.shift) as f64
    }

    /// Drops more blocks, so that about `room` of the given entries remain.
    pub fn to_fit(mut self, entries: &Census, room: f64) -> Thinning {
        let now = self;
        let blocks = |next: Thinning| -> f64 {
            let share = |size: u64| now.weight(size) / next.weight(size);
            let classes = entries.classes.iter().filter(|class| class.0 > 0);
            classes.map(|&(n, bytes)| n as f64 * share(bytes / n)).sum()
        };
        while blocks(self) > room && self.threshold < MAX_THRESHOLD {
            self.threshold = (self.threshold * 2).max(16);
        }
        let mut all = blocks(self) + entries.tombstones as f64;
        while all > room * 1.5 && self.shift < MAX_SHIFT {
            self.shift += 1;
            all /= 2.0;
        }
        self
    }
}

/// Contents of a table.
pub(crate) struct Census {
    /// Kept blocks and their bytes, by significant bits of the size.
    pub classes: [(u64, u64); 65],
    /// Tombstones that are still needed.
    pub tombstones: u64,
}

impl Default for Census {
    fn default() -> Self {
        Self {
            classes: [(0, 0); 65],
            tombstones: 0,
        }
    }
}

impl Census {
    pub fn count(&mut self, size: u64) {
        let class = &mut self.classes[64 - size.leading_zeros() as usize];
        class.0 += 1;
        class.1 = class.1.saturating_add(size);
    }
}

/// The live heap, estimated from the kept blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Estimate {
    pub kept_blocks: u64,
    pub blocks: f64,
    pub bytes: f64,
}

impl Estimate {
    pub fn add(&mut self, weight: f64, size: u64) {
        self.kept_blocks += 1;
        self.blocks += weight;
        self.bytes += weight * size as f64;
    }

    pub fn remove(&mut self, weight: f64, size: u64) {
        self.kept_blocks = self.kept_blocks.saturating_sub(1);
        // Rounding errors must not lead to negative numbers.
        self.blocks = (self.blocks - weight).max(0.0);
        self.bytes = (self.bytes - weight * size as f64).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_kept_at_first() {
        let all = Thinning::default();
        assert!(!all.is_on());
        assert!((0..1000).all(|n| all.keeps(n * 16, 0) && !all.excludes(n * 16)));
        assert_eq!((all.weight(0), all.weight(1 << 40)), (1.0, 1.0));
    }

    /// Blocks kept with a higher threshold are kept with every lower one.
    #[test]
    fn samples_are_nested_and_as_large_as_they_say() {
        let addresses = || (1..40_000u64).map(|n| 0x7f12_3456_0010 + n * 48);
        for size in [1, 100, 4096, 1 << 20] {
            let mut before = Thinning::default();
            for (threshold, shift) in [(16, 0), (1024, 0), (1 << 14, 0), (1 << 14, 2), (1 << 16, 3)]
            {
                let next = Thinning { threshold, shift };
                let kept = addresses().filter(|&a| next.keeps(a, size)).count() as f64;
                assert!(addresses().all(|a| !next.keeps(a, size) || before.keeps(a, size)));
                // Six standard errors of a binomial distribution.
                let expected = 39_999.0 / next.weight(size);
                assert!(
                    (kept - expected).abs() <= 6.0 * expected.sqrt() + 1e-9,
                    "{kept} of {size} bytes, {expected} expected"
                );
                before = next;
            }
        }
    }

    #[test]
    fn enough_is_dropped_and_large_blocks_last() {
        let mut census = Census::default();
        (0..100_000).for_each(|_| census.count(64));
        (0..100).for_each(|_| census.count(1 << 20));
        let thinned = Thinning::default().to_fit(&census, 10_000.0);
        assert_eq!(thinned.shift, 0);
        assert!(
            thinned.threshold > 64 && thinned.threshold < 1 << 16,
            "{thinned:?}"
        );
        // Nothing to drop.
        assert_eq!(thinned.to_fit(&Census::default(), 1.0), thinned);
        // Releases alone.
        let releases = Census {
            tombstones: 100_000,
            ..Census::default()
        };
        let thinned = Thinning::default().to_fit(&releases, 10_000.0);
        assert_eq!((thinned.threshold, thinned.shift), (0, 3));
        // Sizes that no process can have do not cause an endless loop.
        let mut absurd = Census::default();
        absurd.classes[64] = (1 << 40, u64::MAX);
        let thinned = Thinning::default().to_fit(&absurd, 1.0);
        assert!(thinned.weight(u64::MAX) > 1.0);
    }
}
