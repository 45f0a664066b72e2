//! Blocks with the same contents in two copies of the memory. Finding them changes nothing in the
//! process.
//!
//! An untouched block keeps its contents, so the unchanged blocks are an upper bound on the stale
//! ones. The reverse does not hold, because reads leave no trace, and neither do writes of the same
//! bytes.

use crate::earlier::EarlierBlocks;
use crate::sites::{LiveBlock, Site};
use memhook_heap::Snapshot;
use rustc_hash::{FxHashMap, FxHasher};
use std::cmp::Reverse;
use std::hash::Hasher;

/// Contents of a process's blocks at one moment.
#[derive(Debug, Default)]
pub struct Contents(FxHashMap<u64, Content>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    bytes: u64,
    /// Fingerprint of the copied part; `None` if none of its pages was present.
    fingerprint: Option<u64>,
}

/// Live blocks of a site, with their unchanged part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compared {
    /// Site of the blocks.
    pub site: Site,
    /// Number of live blocks.
    pub live_blocks: u64,
    /// Bytes of the live blocks.
    pub live_bytes: u64,
    /// Bytes of the unchanged blocks.
    pub unchanged_bytes: u64,
}

impl Contents {
    /// Computes fingerprints of the contents of these blocks from a copy of the memory.
    pub fn of(snapshot: &Snapshot, blocks: &EarlierBlocks) -> Contents {
        let all = blocks.iter().map(|LiveBlock { address, bytes, .. }| {
            let fingerprint = snapshot.bytes(address, bytes).map(fingerprint);
            (address, Content { bytes, fingerprint })
        });
        Contents(all.collect())
    }

    /// Compares these contents with later contents, by site. Sites with the most unchanged bytes
    /// come first.
    pub fn compare(&self, later: &Contents, blocks: &EarlierBlocks) -> Vec<Compared> {
        let mut sums: FxHashMap<Site, Compared> = FxHashMap::default();
        for block in blocks.iter() {
            let sum = sums.entry(block.site).or_insert(Compared {
                site: block.site,
                live_blocks: 0,
                live_bytes: 0,
                unchanged_bytes: 0,
            });
            sum.live_blocks += 1;
            sum.live_bytes += block.bytes;
            let (before, now) = (self.0.get(&block.address), later.0.get(&block.address));
            if before.is_some() && before == now {
                sum.unchanged_bytes += block.bytes;
            }
        }
        let mut sums: Vec<Compared> = sums.into_values().collect();
        let order = |sum: &Compared| {
            (
                Reverse(sum.unchanged_bytes),
                Reverse(sum.live_bytes),
                sum.site,
            )
        };
        sums.sort_unstable_by_key(order);
        sums
    }
}

fn fingerprint(bytes: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(blocks: &[(u64, u64, u64)]) -> Contents {
        let blocks = blocks.iter().map(|&(address, bytes, fingerprint)| {
            let fingerprint = Some(fingerprint);
            (address, Content { bytes, fingerprint })
        });
        Contents(blocks.collect())
    }

    /// One block is unchanged. The other blocks were written, resized, allocated since, or not
    /// copied the first time.
    #[test]
    fn only_what_is_the_same_counts() {
        let later = [(1, 16, 5), (2, 16, 6), (3, 32, 7), (4, 16, 8), (5, 16, 9)];
        let mut before = contents(&[(1, 16, 5), (2, 16, 5), (3, 16, 7), (6, 16, 1)]);
        let none = Content {
            bytes: 16,
            fingerprint: None,
        };
        before.0.insert(5, none);
        let blocks = later.map(|(address, bytes, _)| (address, bytes, (address % 2) as u32));
        let blocks = EarlierBlocks::with(blocks.into_iter());
        let sums = before.compare(&contents(&later), &blocks);
        let sums: Vec<_> = sums
            .iter()
            .map(|sum| {
                (
                    sum.site,
                    sum.live_blocks,
                    sum.live_bytes,
                    sum.unchanged_bytes,
                )
            })
            .collect();
        assert_eq!(
            sums,
            [(Site::Kind(1), 3, 64, 16), (Site::Kind(0), 2, 32, 0)]
        );
    }

    #[test]
    fn one_bit_makes_a_difference() {
        let mut bytes = vec![0u8; 5000];
        let before = fingerprint(&bytes);
        bytes[4999] ^= 1;
        assert_ne!(fingerprint(&bytes), before);
    }
}
