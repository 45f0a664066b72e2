//! Numbers for the types and sizes of blocks, by position in the tree.

use super::tree::Tree;
use crate::dissect::Heap;
use crate::graph::types::Types;
use crate::large_lists::with_room;
use rustc_hash::FxHashMap;

/// Kinds of blocks. Blocks of one type and size are of one kind.
pub(super) struct Kinds {
    /// The kind at each position. Holders are of kind 0.
    at: Vec<u32>,
    /// Type number and usable bytes of each kind.
    kinds: Vec<(u32, u64)>,
}

/// Kind of all nodes that are not blocks.
pub(super) const HOLDER: u32 = 0;

impl Kinds {
    /// Computes the kinds of a heap's blocks.
    pub fn of(heap: &Heap, types: &mut Types, tree: &Tree) -> Kinds {
        let mut kinds = vec![(types.number_of("smaller holders"), 0)];
        let cache = types.number_of("malloc's cache of a thread");
        let mut numbers: FxHashMap<(u32, u64), u32> = FxHashMap::default();
        // Visits blocks in address order, because reading memory in that order is far faster.
        let mut by_block = with_room(heap.blocks.len() as usize);
        for (number, block) in heap.blocks.iter() {
            let number = match heap.caches.contains(&block.address) {
                true => cache,
                false => types.number(&heap.blocks, number, block),
            };
            let kind = *numbers.entry((number, block.bytes)).or_insert_with(|| {
                kinds.push((number, block.bytes));
                kinds.len() as u32 - 1
            });
            by_block.push(kind);
        }
        let kind_of = |at| by_block.get(tree.node(at) as usize).copied();
        let mut at = with_room(tree.len() as usize);
        at.extend((0..tree.len()).map(|at| kind_of(at).unwrap_or(HOLDER)));
        Kinds { at, kinds }
    }

    /// Returns the kind at a position.
    pub fn at(&self, position: u32) -> u32 {
        self.at[position as usize]
    }

    /// Returns the number of the type at a position.
    pub fn type_at(&self, position: u32) -> u32 {
        self.kinds[self.at(position) as usize].0
    }
}
