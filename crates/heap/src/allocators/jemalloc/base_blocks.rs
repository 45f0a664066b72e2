//! Blocks of address space in which jemalloc keeps its own data (`base_block_t`, base.h).

use crate::snapshot::Snapshot;
use rustc_hash::FxHashMap;
use std::ops::Range;

/// Alignment of the blocks, and the unit of their sizes (HUGEPAGE).
const UNIT_BYTES: u64 = 2 << 20;
/// Upper bound on the size of a block.
const MOST_BYTES: u64 = 1 << 32;
const MOST_UNITS: u64 = 256;
/// `size`, `next`, then the extent of the unused rest: its `e_addr` and its `e_bsize`.
const NEXT: u64 = 8;
const REST: u64 = 24;
const REST_BYTES: u64 = 32;

/// The blocks found so far.
pub struct BaseBlocks<'a> {
    snapshot: &'a Snapshot,
    /// The block at each unit of address space.
    known: FxHashMap<u64, Option<(u64, u64)>>,
}

impl<'a> BaseBlocks<'a> {
    pub fn new(snapshot: &'a Snapshot) -> BaseBlocks<'a> {
        BaseBlocks {
            snapshot,
            known: FxHashMap::default(),
        }
    }

    /// Returns the block that contains an address.
    pub fn around(&mut self, address: u64) -> Option<Range<u64>> {
        let unit = address / UNIT_BYTES;
        let snapshot = self.snapshot;
        let found = self.known.entry(unit).or_insert_with(|| {
            let region = snapshot.region(address)?;
            (0..MOST_UNITS)
                .map_while(|back| unit.checked_sub(back))
                .map(|unit| unit * UNIT_BYTES)
                .take_while(|&start| start >= region.start)
                .filter_map(|start| block_at(snapshot, start))
                .find(|block| block.contains(&address))
                .map(|block| (block.start, block.end))
        });
        found.map(|(start, end)| start..end)
    }

    /// Returns all blocks found, and the blocks that they link to.
    pub fn all(&self) -> Vec<Range<u64>> {
        let mut found: FxHashMap<u64, u64> = FxHashMap::default();
        for &(start, end) in self.known.values().flatten() {
            let mut next = Some(start..end);
            while let Some(block) = next {
                if found.insert(block.start, block.end).is_some() {
                    break;
                }
                let link = self
                    .snapshot
                    .word(block.start + NEXT)
                    .filter(|&link| link != 0);
                next = link.and_then(|link| block_at(self.snapshot, link));
            }
        }
        let mut all: Vec<_> = found.into_iter().map(|(start, end)| start..end).collect();
        all.sort_unstable_by_key(|block| block.start);
        all
    }
}

/// Returns the block that begins here. Its unused rest ends where the block ends, regardless of the
/// parts handed out.
fn block_at(snapshot: &Snapshot, start: u64) -> Option<Range<u64>> {
    if !start.is_multiple_of(UNIT_BYTES) {
        return None;
    }
    let word = |offset| snapshot.word(start.checked_add(offset)?);
    let bytes = word(0)?;
    let end = start.checked_add(bytes)?;
    let rest = word(REST)?;
    let is_sound = bytes.is_multiple_of(UNIT_BYTES)
        && (UNIT_BYTES..=MOST_BYTES).contains(&bytes)
        && word(NEXT)?.is_multiple_of(UNIT_BYTES)
        && rest > start
        && rest.checked_add(word(REST_BYTES)?) == Some(end);
    is_sound.then_some(start..end)
}
