//! Blocks sorted into classes by what they are: traced ones by call stack, C++ objects by type, all others by size.

use crate::glibc::layout::ALIGNMENT;
use crate::graph::types::Types;
use crate::ranges::{Runs, joined};
use crate::snapshot::Snapshot;
use memhook_foreign::size_text;
use rustc_hash::FxHashMap;

/// The largest usable size that malloc keeps a list of its own for (the last small bin of the thread cache).
const MAX_EXACT_BYTES: u64 = 1032;

/// A live block whose allocation was traced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TracedBlock {
    /// Its address.
    pub address: u64,
    /// The id of the call stack that allocated it.
    pub stack: u32,
    /// When, in nanoseconds since the attach.
    pub time_ns: u64,
    /// How many blocks it stands for: more than one where allocations were sampled.
    pub stands_for: f64,
}

/// What the blocks of a class have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassName {
    /// Their type or their size; empty if it is a call stack.
    pub name: String,
    /// The call stack that allocated them, and the time of the first of these allocations.
    pub traced: Option<(u32, u64)>,
}

/// The classes that were met so far.
pub struct Classes<'a, 'b> {
    /// By address.
    traced: &'b [TracedBlock],
    by_stack: FxHashMap<u32, u32>,
    snapshot: &'a Snapshot,
    types: &'b mut Types<'a>,
    /// Where vtables can be.
    data: Runs,
    by_word: FxHashMap<u64, Option<u32>>,
    by_name: FxHashMap<String, u32>,
    by_size: FxHashMap<u64, u32>,
    names: Vec<ClassName>,
}

impl<'a, 'b> Classes<'a, 'b> {
    /// None yet. `traced` is in the order of addresses.
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

    /// The number of a block's class.
    pub fn of(&mut self, address: u64, usable: u64) -> u32 {
        if let Ok(index) = self
            .traced
            .binary_search_by_key(&address, |block| block.address)
        {
            return self.of_stack(&self.traced[index]);
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

    /// The class of objects that begin with this word.
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

    /// Their names, by number.
    pub fn names(self) -> Vec<ClassName> {
        self.names
    }
}

/// The first usable size of the class that a size belongs to: those of malloc's large bins (malloc.c,
/// `largebin_index_64`) beyond the sizes that have lists of their own.
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
        // Each power of two in eight parts, so that the number of classes stays small.
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
