//! Checks whether regions of a running process are live, by their extents and the caches of all
//! threads.

use super::extents::only_block_bytes;
use super::layout::{BITMAP, CLASSES, MOST_REGIONS, PAGE_BYTES, class_bytes};
use super::thread_caches::Cache;
use super::tree::Tree;
use crate::allocators::live_check::{LiveCheck, Standstill};
use crate::blocks::Block;
use crate::live_memory::Memory;
use crate::snapshot::Snapshot;
use rustc_hash::FxHashSet;
use std::collections::{BTreeMap, BTreeSet};

/// Upper bound on the distance of static thread-local storage below the thread pointer.
const TLS_REACH: u64 = 1 << 20;
/// Upper bound on the size of a cached block (TCACHE_MAXCLASS_LIMIT).
const MOST_CACHED_BYTES: u64 = 8 << 20;

/// Everything that has to be read to check whether a region is live.
#[derive(Debug)]
pub struct Live {
    tree: Tree,
    /// Size by which an extent exceeds its only block, in bytes.
    padding: u64,
    /// The cache of one thread. All caches have the same layout.
    example: Cache,
    /// Distance of a thread's cache below its thread pointer. A thread has a cache after its first
    /// allocation.
    below: u64,
    /// Caches without a thread.
    others: Vec<Cache>,
}

impl Live {
    /// Returns `None` if the location of a future thread's cache is unknown.
    pub fn of(snapshot: &Snapshot, tree: Tree, padding: u64, caches: &[Cache]) -> Option<Live> {
        let mut pointers: Vec<u64> = snapshot.meta.threads.iter().map(|t| t.fs_base).collect();
        pointers.sort_unstable();
        let below = |cache: &Cache| {
            let owner = pointers.get(pointers.partition_point(|&pointer| pointer <= cache.bins));
            owner.map(|pointer| pointer - cache.bins)
        };
        let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
        for distance in caches.iter().filter_map(below) {
            if distance < TLS_REACH {
                *counts.entry(distance).or_default() += 1;
            }
        }
        let most = counts.values().max()?;
        let mut often = counts.iter().filter(|(_, count)| *count == most);
        let (&distance, _) = often.next().filter(|_| often.next().is_none())?;
        let is_threads = |cache: &&Cache| below(cache) == Some(distance);
        Some(Live {
            tree,
            padding,
            example: *caches.iter().find(is_threads)?,
            below: distance,
            others: caches.iter().filter(|c| !is_threads(c)).copied().collect(),
        })
    }

    /// Returns true if the extent of a region does not mark it as free.
    fn is_taken(&self, memory: &impl Memory, block: &Block) -> Option<bool> {
        let descriptor = self.tree.entry_of(memory, block.address)?.descriptor;
        let word = |offset: u64| memory.word(descriptor.checked_add(offset)?);
        let bits = self.tree.layout.bits(word(0)?);
        let (address, bytes) = (word(8)?, word(16)? & !(PAGE_BYTES - 1));
        let start = address & !(PAGE_BYTES - 1);
        let offset = block.address.checked_sub(start)?;
        if bits.state != 0 || offset >= bytes {
            return Some(false);
        }
        if !bits.is_slab {
            let is_whole = only_block_bytes(&bits, address - start, bytes, self.padding);
            return Some(address == block.address && is_whole == Some(block.bytes));
        }
        if class_bytes(bits.class) != Some(block.bytes) {
            return Some(false);
        }
        let index = offset / block.bytes;
        if !offset.is_multiple_of(block.bytes) || index >= MOST_REGIONS {
            return Some(false);
        }
        Some(word(BITMAP + index / 64 * 8)? >> (index % 64) & 1 == 0)
    }

    /// Adds the regions of these size classes that a cache holds.
    fn add_cached(
        memory: &impl Memory,
        cache: &Cache,
        classes: &BTreeSet<u64>,
        cached: &mut FxHashSet<u64>,
    ) -> Option<()> {
        for &class in classes {
            let list = cache.list(memory, class)?;
            // A class that this cache does not cover.
            if !cache.may_have(&list) {
                continue;
            }
            for place in list.step_by(8) {
                cached.insert(memory.word(place)?);
            }
        }
        Some(())
    }
}

impl LiveCheck for Live {
    fn are_live(&self, still: &Standstill, blocks: &[Block]) -> Result<Vec<bool>, &'static str> {
        let memory = &still.memory;
        let class_of = |block: &Block| (0..CLASSES).find(|&c| class_bytes(c) == Some(block.bytes));
        let small = blocks.iter().filter(|b| b.bytes <= MOST_CACHED_BYTES);
        let classes: BTreeSet<u64> = small.filter_map(class_of).collect();
        let mut cached = FxHashSet::default();
        let unread = "the cache of a thread could not be read";
        for pointer in &still.thread_pointers {
            let bins = pointer.checked_sub(self.below).ok_or(unread)?;
            memory.word(bins).ok_or(unread)?;
            // A thread has no cache before its first allocation.
            if let Some(cache) = self.example.at(memory, bins) {
                Live::add_cached(memory, &cache, &classes, &mut cached).ok_or(unread)?;
            }
        }
        for other in &self.others {
            let cache = self.example.at(memory, other.bins);
            let cache = cache.ok_or("a cache that belonged to no thread is gone")?;
            Live::add_cached(memory, &cache, &classes, &mut cached).ok_or(unread)?;
        }
        let is_live = |block: &Block| {
            self.is_taken(memory, block) == Some(true) && !cached.contains(&block.address)
        };
        Ok(blocks.iter().map(is_live).collect())
    }
}
