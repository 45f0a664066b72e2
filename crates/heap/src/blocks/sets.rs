//! Sets of blocks, one bit each.

use crate::blocks::BlockTable;
use crate::blocks::segment::{BlockStart, Near};

/// Set of blocks, identified by their positions, with one bit for each unit of heap.
#[derive(Debug)]
pub struct BlockStartSet(Vec<u64>);

impl BlockStartSet {
    /// An empty set.
    pub fn new(table: &BlockTable) -> BlockStartSet {
        let last = table.segments().last();
        let units = last.map_or(0, |s| s.first_unit + s.units());
        BlockStartSet(vec![0; (units / 64 + 1) as usize])
    }

    /// Adds a block. Returns true if it was new.
    #[inline]
    pub fn insert(&mut self, table: &BlockTable, place: BlockStart) -> bool {
        let segment = &table.segments()[place.segment as usize];
        let at = segment.first_unit + u64::from(place.unit);
        let word = &mut self.0[(at / 64) as usize];
        let bit = 1 << (at % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Prefetches the memory that [`BlockStartSet::insert`] needs for a block near this place.
    #[inline]
    pub fn touch(&self, table: &BlockTable, near: Near) -> u64 {
        let at = table.segments()[near.segment as usize].first_unit + near.unit;
        self.0.get((at / 64) as usize).copied().unwrap_or(0)
    }

    /// Returns the set by block numbers.
    pub fn numbers(&self, table: &BlockTable) -> BlockSet {
        let mut set = BlockSet::new(table.len());
        for segment in table.segments() {
            for (number, &unit) in (segment.first..).zip(&segment.offsets) {
                let at = segment.first_unit + u64::from(unit);
                if self.0[(at / 64) as usize] >> (at % 64) & 1 != 0 {
                    set.insert(number);
                }
            }
        }
        set
    }
}

/// A set of blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockSet(Vec<u64>);

impl BlockSet {
    /// An empty set for `count` blocks.
    pub fn new(count: u32) -> BlockSet {
        BlockSet(vec![0; count as usize / 64 + 1])
    }

    /// Adds a block. Returns true if it was new.
    #[inline]
    pub fn insert(&mut self, block: u32) -> bool {
        let word = &mut self.0[block as usize / 64];
        let bit = 1 << (block % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Returns the blocks that are not in the other set, which must have the same size.
    pub fn without(&self, other: &BlockSet) -> BlockSet {
        let words = self.0.iter().zip(&other.0);
        BlockSet(words.map(|(word, other)| word & !other).collect())
    }

    /// Returns true if the set has a block.
    #[inline]
    pub fn contains(&self, block: u32) -> bool {
        self.0[block as usize / 64] >> (block % 64) & 1 != 0
    }
}
