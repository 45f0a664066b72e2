//! Blocks that were leaked at two moments and have not changed between them.

use crate::blocks::BlockTable;
use crate::graph::finder::{Finder, MarkOptions};
use crate::graph::leaks::{Leak, kept};
use crate::snapshot::Snapshot;
use ring::digest::{Context, SHA256};
use rustc_hash::FxHashMap;

/// Identity of a block's contents. Verdicts carry it from one machine to another, so its definition
/// does not depend on the machine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint {
    /// Usable bytes.
    pub bytes: u64,
    /// The first half of the SHA-256 of the contents.
    pub contents: u128,
}

/// Leaked blocks by address.
pub struct Fingerprints(FxHashMap<u64, Fingerprint>);

impl FromIterator<(u64, Fingerprint)> for Fingerprints {
    fn from_iter<I: IntoIterator<Item = (u64, Fingerprint)>>(blocks: I) -> Fingerprints {
        Fingerprints(blocks.into_iter().collect())
    }
}

impl Fingerprints {
    /// Returns all fingerprints, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Fingerprint)> {
        self.0
            .iter()
            .map(|(&address, &fingerprint)| (address, fingerprint))
    }

    /// Forgets the block at an address.
    pub fn remove(&mut self, address: u64) {
        self.0.remove(&address);
    }
}

/// Computes the fingerprints of leaked blocks.
pub fn fingerprints(snapshot: &Snapshot, blocks: &BlockTable, leaks: &[Leak]) -> Fingerprints {
    let finder = Finder::new(snapshot, blocks, MarkOptions::default());
    let all = leaks.iter().map(|leak| {
        let block = blocks.get(leak.block);
        let mut digest = Context::new(&SHA256);
        for piece in finder.contents(leak.block) {
            digest.update(piece.bytes());
        }
        let digest = digest.finish();
        let half = digest.as_ref().first_chunk().copied();
        let fingerprint = Fingerprint {
            bytes: block.bytes,
            contents: u128::from_be_bytes(half.unwrap_or_default()),
        };
        (block.address, fingerprint)
    });
    all.collect()
}

/// Keeps only the leaks that also existed earlier, with the same contents. A block that was
/// reachable only through a dropped leak becomes a direct leak.
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
    kept(leaks.iter().copied(), same)
}
