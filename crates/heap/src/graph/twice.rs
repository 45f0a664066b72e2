//! Blocks that were leaked at two moments and have not changed between them.

use crate::blocks::BlockTable;
use crate::graph::leaks::Leak;
use crate::graph::mark::{Finder, MarkOptions};
use crate::snapshot::Snapshot;
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::Hasher;

/// Leaked blocks by address: size and a hash of the contents.
pub struct Fingerprints(FxHashMap<u64, (u64, u64)>);

impl Fingerprints {
    /// Forgets the block at an address.
    pub fn remove(&mut self, address: u64) {
        self.0.remove(&address);
    }
}

/// Remembers leaked blocks.
pub fn fingerprints(snapshot: &Snapshot, blocks: &BlockTable, leaks: &[Leak]) -> Fingerprints {
    let finder = Finder::new(snapshot, blocks, MarkOptions::default());
    let all = leaks.iter().map(|leak| {
        let block = blocks.get(leak.block);
        let mut hasher = FxHasher::default();
        for bytes in finder.contents(leak.block) {
            hasher.write(bytes);
        }
        (block.address, (block.bytes, hasher.finish()))
    });
    Fingerprints(all.collect())
}

/// Keeps the leaks that were there before with the same contents. A block whose owner is not among them
/// becomes a direct leak.
pub fn still_leaked(
    before: &Fingerprints,
    snapshot: &Snapshot,
    blocks: &BlockTable,
    leaks: &[Leak],
) -> Vec<Leak> {
    let now = fingerprints(snapshot, blocks, leaks);
    let same = |block: u32| {
        let address = blocks.get(block).address;
        now.0
            .get(&address)
            .is_some_and(|f| before.0.get(&address) == Some(f))
    };
    leaks
        .iter()
        .filter(|l| same(l.block))
        .map(|l| Leak {
            block: l.block,
            owner: if same(l.owner) { l.owner } else { l.block },
        })
        .collect()
}
