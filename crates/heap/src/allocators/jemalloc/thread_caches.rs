//! Thread caches (`tcache_t`, tcache_structs.h): free regions that their slabs count as allocated.
//!
//! An arena lists its caches, and each cache links to its neighbours. The list is found in the first block of an
//! arena's own data, by two structures that point to each other. The search therefore does not depend on the kind of
//! thread-local storage, and also finds caches without a thread.

use super::extents::Extents;
use super::layout::SLAB_CLASSES;
use super::tree::each_word;
use crate::glibc::walk::Finding;
use crate::live_memory::Memory;
use crate::snapshot::Snapshot;
use rustc_hash::FxHashSet;
use std::collections::BTreeSet;
use std::ops::Range;

/// An arena is near the beginning of its blocks: only nodes and leaves of the tree may precede it.
const ARENA_REACH: u64 = 8 << 20;
/// Upper bound on the number of caches in a process.
const MOST_CACHES: usize = 1 << 20;
/// Upper bound on the number of bins of a cache (TCACHE_NBINS_MAX).
const MOST_BINS: u64 = 256;
const BIN_BYTES: u64 = 24;
/// Upper bound on the size of a cache's lists.
const LISTS_REACH: u64 = 1 << 20;
/// Upper bound on the distance between the two parts of a cache in thread-local storage.
const PARTS_REACH: u64 = 16 << 10;
/// Upper bound on the stack frames of jemalloc and of a signal handler above them.
const FRAMES_BYTES: u64 = 64 << 10;
/// A leaf function keeps its frame below the stack pointer (psABI, 3.2.2).
const RED_ZONE_BYTES: u64 = 128;
/// Upper bound on the distance from the thread pointer down to a cache in static thread-local storage.
const STORAGE_REACH: u64 = 256 << 10;

/// Regions that thread caches hold.
#[derive(Default)]
pub struct ThreadCaches {
    /// The caches.
    pub all: Vec<Cache>,
    /// The cached regions.
    pub cached: FxHashSet<u64>,
    /// Starts of the regions in which caches keep their lists.
    pub own: BTreeSet<u64>,
    /// The lists of all caches.
    pub lists: Vec<Lists>,
    /// Findings about regions in lists that contradict the extents.
    pub findings: Vec<Finding>,
}

/// The memory of a cache.
#[derive(Clone, Debug)]
pub struct Lists {
    /// Memory of the lists.
    pub memory: Range<u64>,
    /// The cache itself.
    cache: Range<u64>,
}

/// A cache.
#[derive(Clone, Copy, Debug)]
pub struct Cache {
    version: Version,
    /// Pointers to the next cache and to the previous one.
    links: u64,
    /// Addresses of the bins for slabs and of the bins for large blocks, which may directly follow each other.
    pub bins: u64,
    large_bins: u64,
    /// An address in the region that holds its lists.
    lists: u64,
}

#[derive(Clone, Copy, Debug)]
enum Version {
    /// Since 5.3: `tcache_slow_t` and `tcache_t`. The former begins with the links and a descriptor of the bins (since
    /// 5.4, with the descriptor, which contains the links). The latter begins with a pointer back to the former.
    Two,
    /// 5.2: `tcache_t` alone, whose descriptor points into itself.
    One,
}

/// Offsets in `tcache_slow_t` since 5.3: the bins, with and without links before the descriptor; and the pointer to the
/// cache, directly after the pointer to the memory of the lists.
const BINS: [u64; 2] = [32, 16];
const CACHE_FIELD: Range<u64> = 32..1024;
/// Offsets in `tcache_t` of 5.2: the bins for slabs, the links, the descriptor's two pointers, the other bins.
const OLD_BINS: u64 = 16;
const OLD_LINKS: u64 = OLD_BINS + SLAB_CLASSES * BIN_BYTES;
const OLD_DESCRIPTOR: u64 = OLD_LINKS + 56;
const OLD_LARGE_BINS: u64 = OLD_DESCRIPTOR + 64;
/// Offset of the end of the list in `cache_bin_t` of 5.2.
const OLD_END: u64 = 16;

/// Finds the caches of a heap whose own data is in `blocks`.
pub fn find(snapshot: &Snapshot, blocks: &[Range<u64>], extents: &Extents) -> ThreadCaches {
    let mut caches = ThreadCaches::default();
    let mut seen: BTreeSet<u64> = BTreeSet::new();
    let mut waiting: Vec<u64> = Vec::new();
    for block in blocks {
        let reach = block.start..block.end.min(block.start + ARENA_REACH);
        each_word(snapshot, reach, |_, word| {
            if !seen.contains(&word) && cache_at(snapshot, word).is_some() {
                waiting.push(word);
                seen.insert(word);
            }
        });
    }
    // jemalloc lists no caches if it was built without statistics (`--disable-stats`), which is the case in most Rust
    // programs.
    if seen.is_empty() {
        return of_threads(snapshot, blocks, extents);
    }
    while let Some(at) = waiting.pop() {
        let Some(cache) = cache_at(snapshot, at) else {
            continue;
        };
        for link in [cache.links, cache.links + 8] {
            let next = snapshot.word(link).unwrap_or(0);
            if seen.len() < MOST_CACHES && cache_at(snapshot, next).is_some() && seen.insert(next) {
                waiting.push(next);
            }
        }
        cache.read_into(snapshot, blocks, extents, &mut caches);
    }
    caches
}

/// Finds the caches in the static thread-local storage of threads, by a pointer to a nearby slow part that points back.
fn of_threads(snapshot: &Snapshot, blocks: &[Range<u64>], extents: &Extents) -> ThreadCaches {
    let mut caches = ThreadCaches::default();
    for thread in &snapshot.meta.threads {
        let Some(region) = snapshot.region(thread.fs_base.saturating_sub(8)) else {
            continue;
        };
        let reach = thread.fs_base.saturating_sub(STORAGE_REACH);
        let storage = region.start.max(reach)..thread.fs_base;
        let mut found = Vec::new();
        each_word(snapshot, storage.clone(), |place, slow| {
            if slow < place && storage.contains(&slow) {
                found.extend(cache_with_slow_part(snapshot, slow, place));
            }
        });
        for cache in found {
            cache.read_into(snapshot, blocks, extents, &mut caches);
        }
    }
    caches
}

/// Returns the cache at this address in an arena's list.
fn cache_at(snapshot: &Snapshot, at: u64) -> Option<Cache> {
    // User-space addresses end here.
    if at == 0 || at >= 1 << 47 || !at.is_multiple_of(8) {
        return None;
    }
    cache_of_two(snapshot, at).or_else(|| cache_of_one(snapshot, at))
}

fn cache_of_two(snapshot: &Snapshot, slow: u64) -> Option<Cache> {
    let cache_by = |bins: u64| {
        let cache = snapshot.word(slow + bins)?.checked_sub(8)?;
        let is_cache = cache.is_multiple_of(8) && snapshot.word(cache)? == slow;
        is_cache.then_some(cache)
    };
    cache_with_slow_part(snapshot, slow, BINS.into_iter().find_map(cache_by)?)
}

fn cache_with_slow_part(memory: &impl Memory, slow: u64, cache: u64) -> Option<Cache> {
    let bins = cache + 8;
    let mut fields = CACHE_FIELD.step_by(8);
    let field = fields.find(|field| memory.word(slow + field) == Some(cache))?;
    Some(Cache {
        version: Version::Two,
        links: slow,
        bins,
        large_bins: bins + SLAB_CLASSES * BIN_BYTES,
        lists: memory.word(slow + field - 8)?,
    })
}

fn cache_of_one(memory: &impl Memory, cache: u64) -> Option<Cache> {
    let (bins, large_bins) = (cache + OLD_BINS, cache + OLD_LARGE_BINS);
    let described = |offset| memory.word(cache + OLD_DESCRIPTOR + offset);
    if described(0)? != bins || described(8)? != large_bins {
        return None;
    }
    Some(Cache {
        version: Version::One,
        links: cache + OLD_LINKS,
        bins,
        large_bins,
        lists: memory.word(bins + OLD_END)?.checked_sub(8)?,
    })
}

impl Cache {
    /// Returns the cache of the same version with its bins at another address, if there is one.
    pub fn at(&self, memory: &impl Memory, bins: u64) -> Option<Cache> {
        match self.version {
            Version::Two => {
                let cache = bins.checked_sub(8)?;
                cache_with_slow_part(memory, memory.word(cache)?, cache)
            }
            Version::One => cache_of_one(memory, bins.checked_sub(OLD_BINS)?),
        }
    }

    /// Returns true if a list may be one of this cache's lists: all of them are in one region.
    pub fn may_have(&self, list: &Range<u64>) -> bool {
        let near = self.lists.saturating_sub(LISTS_REACH)..self.lists.saturating_add(LISTS_REACH);
        near.contains(&list.start) && near.contains(&list.end)
    }

    /// Returns the list of a size class, as addresses of its entries.
    pub fn list(&self, memory: &impl Memory, class: u64) -> Option<Range<u64>> {
        let bin = self.bin(class);
        match self.version {
            Version::Two => {
                let head = memory.word(bin)?;
                // Each of these fields has only the low bits of an address in the list: the low-water mark, the full
                // position, and the empty position.
                let empty = (memory.word(bin + 16)? >> 32) as u16;
                Some(head..head.checked_add(u64::from(empty.wrapping_sub(head as u16)))?)
            }
            Version::One => {
                let end = memory.word(bin + OLD_END)?;
                let count = u64::from(memory.half(bin + 4)?);
                Some(end.checked_sub(count * 8)?..end)
            }
        }
    }

    /// Returns the address of the bin of a size class.
    fn bin(&self, class: u64) -> u64 {
        match class.checked_sub(SLAB_CLASSES) {
            None => self.bins + class * BIN_BYTES,
            Some(large) => self.large_bins + large * BIN_BYTES,
        }
    }

    /// Returns the memory of the cache, up to the bin of the last size class that has a list.
    fn range(&self, last: u64) -> Range<u64> {
        let end = self.bin(last) + BIN_BYTES;
        let first = self.links.min(self.bins);
        // If the program itself has created the cache, its two parts may be far apart.
        if self.bins - first < PARTS_REACH {
            first..end
        } else {
            self.bins - 8..end
        }
    }

    fn read_into(
        &self,
        snapshot: &Snapshot,
        blocks: &[Range<u64>],
        extents: &Extents,
        found: &mut ThreadCaches,
    ) {
        found.all.push(*self);
        let region = extents
            .find(self.lists)
            .and_then(|extent| extent.taken_around(self.lists));
        let lists = match &region {
            Some(region) => region.clone(),
            // Since 5.3.1, these are in jemalloc's own data.
            None => match blocks.iter().find(|block| block.contains(&self.lists)) {
                Some(block) => self.lists..block.end.min(self.lists + LISTS_REACH),
                None => {
                    found.findings.push(Finding {
                        address: self.links,
                        what: "the lists of a jemalloc thread cache are outside jemalloc's memory"
                            .into(),
                    });
                    return;
                }
            },
        };
        let (mut end, mut last) = (lists.start, 0);
        for class in 0..MOST_BINS {
            // The largest classes have no bins. The lists of classes that are not cached are elsewhere.
            let list = self.list(snapshot, class);
            if let Some(list) = list.filter(|l| lists.start <= l.start && l.end <= lists.end) {
                (end, last) = (end.max(list.end), class);
                found.read_list(snapshot, extents, class, list);
            }
        }
        found.own.extend(region.as_ref().map(|region| region.start));
        found.lists.push(Lists {
            memory: region.unwrap_or(lists.start..end),
            cache: self.range(last),
        });
    }
}

impl ThreadCaches {
    /// Returns the memory of lists that a thread may be changing. Until a thread has filled a list, only the list knows
    /// the regions that the thread has taken from an arena. During that time, a register or a stack frame contains the
    /// address of the cache or of the list, because the thread writes to both at the end (`cache_bin_finish_fill`).
    pub fn in_change(&self, snapshot: &Snapshot) -> Vec<Range<u64>> {
        let memory = self.lists.iter().enumerate();
        let parts = memory.flat_map(|(i, l)| [(l.memory.clone(), i), (l.cache.clone(), i)]);
        let mut parts: Vec<(Range<u64>, usize)> = parts.collect();
        parts.sort_unstable_by_key(|(part, _)| part.start);
        let mut is_held = vec![!self.findings.is_empty(); self.lists.len()];
        let part_of = |address: u64| {
            let after = parts.partition_point(|(part, _)| part.start <= address);
            let part = after.checked_sub(1).map(|last| &parts[last])?;
            part.0.contains(&address).then_some(part.1)
        };
        let mut look_at = |word: u64| {
            if let Some(cache) = part_of(word) {
                is_held[cache] = true;
            }
        };
        for thread in &snapshot.meta.threads {
            thread.words.iter().for_each(|&word| look_at(word));
            let frames =
                thread.rsp.saturating_sub(RED_ZONE_BYTES)..thread.rsp.saturating_add(FRAMES_BYTES);
            // The thread-local storage that contains the cache is at the end of the stack. There, the two parts of a
            // cache point to each other.
            each_word(snapshot, frames, |place, word| {
                if part_of(place).is_none() {
                    look_at(word);
                }
            });
        }
        let lists = self.lists.iter().zip(is_held);
        let held = lists.filter(|(_, is_held)| *is_held);
        held.map(|(lists, _)| lists.memory.clone()).collect()
    }

    /// Reads the regions of a size class from a list.
    fn read_list(&mut self, snapshot: &Snapshot, extents: &Extents, class: u64, list: Range<u64>) {
        for place in list.step_by(8) {
            let region = snapshot.word(place).unwrap_or(0);
            let extent = extents.find(region);
            let is_taken = extent.is_some_and(|e| e.bits.class == class && e.has_taken(region));
            if !is_taken || !self.cached.insert(region) {
                self.findings.push(Finding {
                    address: place,
                    what: format!(
                        "a jemalloc thread cache has {region:#x}, which is not a free region of its class"
                    ),
                });
                return;
            }
        }
    }
}
