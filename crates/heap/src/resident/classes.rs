//! Blocks sorted into classes: traced blocks by call stack, C++ objects by type, all others by
//! size.

use crate::blocks::Block;
use crate::glibc::layout::ALIGNMENT;
use crate::graph::types::Types;
use crate::ranges::{Runs, joined};
use crate::snapshot::Snapshot;
use memhook_foreign::size_text;
use rustc_hash::FxHashMap;

/// The largest usable size for which malloc has a separate list (the last small bin of the thread
/// cache).
const MAX_EXACT_BYTES: u64 = 1032;

/// A live block whose allocation was traced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TracedBlock {
    /// Address of the block.
    pub address: u64,
    /// The id of the call stack that allocated it.
    pub stack: u32,
    /// Time of the allocation, in nanoseconds since the attach.
    pub time_ns: u64,
    /// Number of blocks that this block represents; more than one if allocations were sampled.
    pub stands_for: f64,
}

/// Common property of the blocks of a class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassName {
    /// Type or size of the blocks; empty for a call stack.
    pub name: String,
    /// The call stack that allocated the blocks, and the time of its first allocation.
    pub traced: Option<(u32, u64)>,
}

/// The classes that were found so far.
pub struct Classes<'a, 'b> {
    /// Traced blocks by address.
    traced: &'b [TracedBlock],
    by_stack: FxHashMap<u32, u32>,
    snapshot: &'a Snapshot,
    types: &'b mut Types<'a>,
    /// Memory in which vtables may be.
    data: Runs,
    by_word: FxHashMap<u64, Option<u32>>,
    by_name: FxHashMap<String, u32>,
    by_size: FxHashMap<u64, u32>,
    names: Vec<ClassName>,
}

impl<'a, 'b> Classes<'a, 'b> {
    /// Returns an empty set of classes. `traced` is sorted by address.
    pub fn new(
        snapshot: &'a Snapshot,
        types: &'b mut Types<'a>,
        traced: &'b [TracedBlock],
    ) -> Classes<'a, 'b> {
        let modules = snapshot.meta.modules.iter();
        Classes {
            traced,
            by_stack: FxHashMap::default(),
            snapshot,
            types,
            data: joined(modules.flat_map(|module| module.data.clone()).collect()),
            by_word: FxHashMap::default(),
            by_name: FxHashMap::default(),
            by_size: FxHashMap::default(),
            names: Vec::new(),
        }
    }

    /// Returns the number of a block's class.
    pub fn of(&mut self, address: u64, usable: u64) -> u32 {
        let block = Block {
            address,
            bytes: usable,
        };
        if let Some(known) = block.holding(self.traced, |known| known.address) {
            return self.of_stack(known);
        }
        if let Some(word) = self.snapshot.word(address)
            && let Some(class) = self.of_word(word)
        {
            return class;
        }
        let first = size_class(usable);
        if let Some(&class) = self.by_size.get(&first) {
            return class;
        }
        let class = self.add(size_name(usable));
        self.by_size.insert(first, class);
        class
    }

    fn of_stack(&mut self, block: &TracedBlock) -> u32 {
        let next = self.names.len() as u32;
        let class = *self.by_stack.entry(block.stack).or_insert(next);
        if class == next {
            self.names.push(ClassName::default());
        }
        let traced = &mut self.names[class as usize].traced;
        let oldest = traced.map_or(block.time_ns, |(_, oldest)| oldest.min(block.time_ns));
        *traced = Some((block.stack, oldest));
        class
    }

    /// Returns the class of objects that begin with this word.
    fn of_word(&mut self, word: u64) -> Option<u32> {
        let near = self.data.partition_point(|data| data.end <= word);
        if !word.is_multiple_of(8) || self.data.get(near).is_none_or(|data| word < data.start) {
            return None;
        }
        if let Some(&known) = self.by_word.get(&word) {
            return known;
        }
        let class = self
            .types
            .class(word)
            .map(|name| match self.by_name.get(&name) {
                Some(&class) => class,
                None => {
                    let class = self.add(name.clone());
                    self.by_name.insert(name, class);
                    class
                }
            });
        self.by_word.insert(word, class);
        class
    }

    fn add(&mut self, name: String) -> u32 {
        self.names.push(ClassName { name, traced: None });
        self.names.len() as u32 - 1
    }

    /// Returns the names of the classes, by number.
    pub fn names(self) -> Vec<ClassName> {
        self.names
    }
}

/// Returns the first usable size of the class that a size belongs to. Above the sizes with separate
/// lists, these are the classes of malloc's large bins (`largebin_index_64` of malloc.c).
fn size_class(usable: u64) -> u64 {
    if usable <= MAX_EXACT_BYTES {
        return usable;
    }
    let step = step(usable);
    usable / step * step
}

fn step(usable: u64) -> u64 {
    match usable {
        ..=3072 => 64,
        3073..=10_752 => 512,
        10_753..=45_056 => 4096,
        45_057..=163_840 => 32_768,
        // Each power of two is divided into eight classes, to keep the number of classes small.
        _ => (1 << usable.ilog2()) / 8,
    }
}

fn size_name(usable: u64) -> String {
    if usable <= MAX_EXACT_BYTES {
        return format!("blocks of {usable} bytes");
    }
    let first = size_class(usable);
    let last = first + step(usable) - ALIGNMENT / 2;
    format!("blocks of {} to {}", size_text(first), size_text(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_near_each_other_are_one_class_and_small_ones_are_exact() {
        assert_ne!(size_class(24), size_class(40));
        assert_eq!(size_class(1032), 1032);
        assert_eq!(size_class(2000), size_class(1984));
        assert_ne!(size_class(2000), size_class(2048));
        assert_eq!(size_class(1 << 20), size_class((1 << 20) + 4096));
        assert_eq!(size_name(24), "blocks of 24 bytes");
        assert!(
            size_name(2000).starts_with("blocks of 1.9"),
            "{}",
            size_name(2000)
        );
    }
}
