//! The radix tree that leads from a page to its extent (`rtree_t`, rtree.h).
//!
//! The root is an array in the data of a module. A stripped library has no symbol for the root, but the tree can be
//! recognized: an extent states its own address, and that address is the path through the tree. So each entry of the
//! root shows where the root begins.

use super::base_blocks::BaseBlocks;
use super::layout::{Layout, PAGE_BYTES};
use crate::live_memory::Memory;
use crate::snapshot::{CopiedRegion, Snapshot};
use std::collections::BTreeSet;
use std::ops::Range;

/// Number of entries of a node that the search for a valid extent tries.
const TRIES: usize = 16;
/// Offset of an extent's own address.
const ADDRESS: u64 = 8;

/// Number of levels. It depends on the number of address bits of the processor on which jemalloc was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Height {
    /// 48 bits: nodes and leaves of 2^18 entries. A leaf entry is one word, with the size class in the upper 16 bits.
    Two,
    /// 57 bits: nodes and leaves of 2^15 entries. A leaf entry is two words: the extent's address, and its properties.
    Three,
}

impl Height {
    /// Returns the number of address bits in an index into a node or a leaf.
    fn index_bits(self) -> u32 {
        match self {
            Height::Two => 18,
            Height::Three => 15,
        }
    }

    fn entries(self) -> u64 {
        1 << self.index_bits()
    }

    fn leaf_bytes(self) -> u64 {
        match self {
            Height::Two => 8,
            Height::Three => 16,
        }
    }

    /// Returns the number of node levels above the leaves.
    fn nodes(self) -> u32 {
        match self {
            Height::Two => 1,
            Height::Three => 2,
        }
    }
}

/// A radix tree: the address of its root, and its height.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    root: u64,
    height: Height,
    /// Layout of the extents.
    pub layout: Layout,
}

/// Leaf entry of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Address of the page.
    pub page: u64,
    /// Address of the extent's descriptor.
    pub descriptor: u64,
    /// Index of the size class.
    pub class: u64,
    /// True if the extent has regions.
    pub is_slab: bool,
}

/// Finds the trees in the data of modules, for one layout.
pub fn find(snapshot: &Snapshot, layout: Layout, base: &mut BaseBlocks) -> Vec<Tree> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for data in snapshot.meta.modules.iter().flat_map(|m| &m.data) {
        for height in [Height::Two, Height::Three] {
            let root_bytes = height.entries() * 8;
            if data.end - data.start.min(data.end) < root_bytes {
                continue;
            }
            each_word(snapshot, data.clone(), |place, word| {
                let is_pointer = word.is_multiple_of(64) && word >= PAGE_BYTES;
                // An entry of a root that is already known.
                let is_known = |tree: &Tree| (tree.root..tree.root + root_bytes).contains(&place);
                if !is_pointer || found.iter().any(is_known) || base.around(word).is_none() {
                    return;
                }
                let searched = Tree {
                    root: 0,
                    height,
                    layout,
                };
                if let Some(root) = searched.root_of(snapshot, base, place, word) {
                    let is_inside = root >= data.start && root + root_bytes <= data.end;
                    if is_inside && seen.insert(root) {
                        found.push(Tree { root, ..searched });
                    }
                }
            });
        }
    }
    found
}

impl Tree {
    /// Returns the start of the root, if the root's entry at `place` leads to `node`.
    fn root_of(
        &self,
        snapshot: &Snapshot,
        base: &mut BaseBlocks,
        place: u64,
        node: u64,
    ) -> Option<u64> {
        let mut leaves = vec![node];
        for _ in 1..self.height.nodes() {
            let nodes = std::mem::take(&mut leaves);
            for node in nodes {
                let words = self.first_words(snapshot, node, 8);
                let children = words.into_iter().map(|(_, word)| word);
                leaves.extend(children.filter(|&child| base.around(child).is_some()));
            }
        }
        let root_shift = 12 + self.height.index_bits() * self.height.nodes();
        leaves.into_iter().find_map(|leaf| {
            let step = self.height.leaf_bytes();
            let words = self.first_words(snapshot, leaf, step);
            words.into_iter().find_map(|(offset, word)| {
                let descriptor = self.layout.descriptor(address_of(word));
                base.around(descriptor)?;
                let stated = snapshot.word(descriptor + ADDRESS)? & !(PAGE_BYTES - 1);
                let index = offset / step;
                let is_there = stated >> 12 & (self.height.entries() - 1) == index;
                let in_root = stated >> root_shift;
                (is_there && stated != 0 && in_root < self.height.entries())
                    .then(|| place.checked_sub(in_root * 8))
                    .flatten()
            })
        })
    }

    /// Returns the offset and the value of the first nonzero words of a node or a leaf with entries of `step` bytes.
    fn first_words(&self, snapshot: &Snapshot, node: u64, step: u64) -> Vec<(u64, u64)> {
        let end = node.saturating_add(self.height.entries() * step);
        let mut found = Vec::new();
        each_word(snapshot, node..end, |place, word| {
            let offset = place - node;
            if found.len() < TRIES && offset.is_multiple_of(step) {
                found.push((offset, word));
            }
        });
        found
    }

    /// Returns the memory of the root.
    pub fn root_range(&self) -> Range<u64> {
        self.root..self.root + self.height.entries() * 8
    }

    /// Calls `each` for every page of an extent, in address order.
    pub fn each_entry(
        &self,
        snapshot: &Snapshot,
        base: &mut BaseBlocks,
        mut each: impl FnMut(Entry),
    ) {
        let bits = self.height.index_bits();
        let mut nodes = vec![(0u64, self.root)];
        for _ in 0..self.height.nodes() {
            let above = std::mem::take(&mut nodes);
            for (key, node) in above {
                let end = node.saturating_add(self.height.entries() * 8);
                each_word(snapshot, node..end, |place, child| {
                    if base.around(child).is_some() {
                        nodes.push(((key << bits) + (place - node) / 8, child));
                    }
                });
            }
        }
        let step = self.height.leaf_bytes();
        for (key, leaf) in nodes {
            let end = leaf.saturating_add(self.height.entries() * step);
            each_word(snapshot, leaf..end, |place, word| {
                let offset = place - leaf;
                if !offset.is_multiple_of(step) {
                    return;
                }
                let entry = self.entry(snapshot, place, word);
                // A page that no longer belongs to an extent keeps an invalid size class.
                if entry.descriptor != 0 {
                    each(Entry {
                        page: ((key << bits) + offset / step) << 12,
                        ..entry
                    });
                }
            });
        }
    }

    /// Returns the entry for the page of an address.
    pub fn entry_of(&self, memory: &impl Memory, address: u64) -> Option<Entry> {
        let (bits, mask) = (self.height.index_bits(), self.height.entries() - 1);
        let mut node = self.root;
        for above in (1..=self.height.nodes()).rev() {
            let index = address >> (12 + bits * above) & mask;
            node = memory.word(node + index * 8).filter(|&child| child != 0)?;
        }
        let index = address >> 12 & mask;
        let place = node.checked_add(index * self.height.leaf_bytes())?;
        let entry = self.entry(memory, place, memory.word(place)?);
        (entry.descriptor != 0).then_some(entry)
    }

    fn entry(&self, memory: &impl Memory, place: u64, word: u64) -> Entry {
        let (is_slab, class) = match self.height {
            Height::Two => (word & 1 == 1, word >> 48),
            Height::Three => self.layout.leaf_knows(memory.word(place + 8).unwrap_or(0)),
        };
        Entry {
            page: 0,
            descriptor: self.layout.descriptor(address_of(word)),
            class,
            is_slab,
        }
    }
}

/// Returns the user-space address in a leaf entry, without the data in its upper bits.
fn address_of(word: u64) -> u64 {
    word & ((1 << 47) - 1)
}

/// Calls `each` with the address and the value of every nonzero word.
pub fn each_word(snapshot: &Snapshot, range: Range<u64>, mut each: impl FnMut(u64, u64)) {
    let mut at = range.start;
    while let Some(region) = snapshot.region(at).filter(|_| at < range.end) {
        each_word_of(region, at..range.end, &mut each);
        at = region.end();
    }
}

fn each_word_of(region: &CopiedRegion, range: Range<u64>, each: &mut impl FnMut(u64, u64)) {
    let first = region.runs.partition_point(|run| run.end <= range.start);
    for run in region.runs[first..]
        .iter()
        .take_while(|run| run.start < range.end)
    {
        let start = run.start.max(range.start).next_multiple_of(8);
        let end = run.end.min(range.end).max(start);
        let bytes = (start - region.start) as usize..(end - region.start) as usize;
        let words = crate::snapshot::words(region.bytes.get(bytes).unwrap_or_default());
        for (i, word) in words.enumerate() {
            if word != 0 {
                each(start + i as u64 * 8, word);
            }
        }
    }
}
