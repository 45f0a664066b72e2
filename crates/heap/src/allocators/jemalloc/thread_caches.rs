//! Thread caches (`tcache_t`, tcache_structs.h): free regions that their slabs call allocated.
//!
//! An arena lists its caches, and so does each cache its neighbours. The list is found in the first block of jemalloc's
//! own data that an arena has, by what it leads to: two structures with pointers to each other. Where a thread has its
//! cache, in which kind of thread-local storage, does not matter then, and caches that no thread has are found, too.

use super::extents::Extents;
use super::layout::SLAB_CLASSES;
use super::tree::each_word;
use crate::glibc::walk::Finding;
use crate::live_memory::Memory;
use crate::snapshot::Snapshot;
use rustc_hash::FxHashSet;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// An arena is among the first things that are in its blocks: only nodes and leaves of the tree may be before it.
const ARENA_REACH: u64 = 8 << 20;
/// More caches than a process has.
const MOST_CACHES: usize = 1 << 20;
/// More bins than a cache has (TCACHE_NBINS_MAX).
const MOST_BINS: u64 = 256;
const BIN_BYTES: u64 = 24;
/// The lists of a cache take less than this.
const LISTS_REACH: u64 = 1 << 20;
/// A cache in static thread-local storage is at most so far below the thread pointer.
const STORAGE_REACH: u64 = 256 << 10;

/// Regions that thread caches hold.
#[derive(Default)]
pub struct ThreadCaches {
    /// The caches.
    pub all: Vec<Cache>,
    /// The regions, sorted.
    pub cached: FxHashSet<u64>,
    /// Regions in which the caches keep their lists: where the cache is by where the region begins.
    pub own: BTreeMap<u64, u64>,
    /// Regions with lists that do not fit the extents, and why.
    pub findings: Vec<Finding>,
}

/// A cache.
#[derive(Clone, Copy, Debug)]
pub struct Cache {
    version: Version,
    /// Pointers to the next one and to the one before.
    links: u64,
    /// Its bins: those for slabs, and those for large blocks, which may go on where the others end.
    pub bins: u64,
    large_bins: u64,
    /// An address in the region that holds its lists.
    lists: u64,
}

#[derive(Clone, Copy, Debug)]
enum Version {
    /// 5.3: `tcache_slow_t`, which begins with the links and a descriptor of the bins, and a `tcache_t`, which begins with a
    /// pointer back.
    Two,
    /// 5.2: `tcache_t` alone, whose descriptor points into itself.
    One,
}

/// Fields of `tcache_slow_t` of 5.3: where the bins are; and where the pointer to the cache is, right behind the one to the
/// region with the lists.
const BINS: u64 = 32;
const CACHE_FIELD: Range<u64> = 48..1024;
/// Fields of `tcache_t` of 5.2: the bins for slabs, the links, the descriptor's two pointers, the other bins.
const OLD_BINS: u64 = 16;
const OLD_LINKS: u64 = OLD_BINS + SLAB_CLASSES * BIN_BYTES;
const OLD_DESCRIPTOR: u64 = OLD_LINKS + 56;
const OLD_LARGE_BINS: u64 = OLD_DESCRIPTOR + 64;
/// Where `cache_bin_t` of 5.2 has the end of its list.
const OLD_END: u64 = 16;

/// The caches of a heap whose own data is in `blocks`.
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
    // Without statistics (`--disable-stats`, as most Rust programs have it) nothing is listed.
    if seen.is_empty() {
        return of_threads(snapshot, extents);
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
        cache.read_into(snapshot, extents, &mut caches);
    }
    caches
}

/// The caches in the static thread-local storage of threads: a pointer to a slow part near it that points back.
fn of_threads(snapshot: &Snapshot, extents: &Extents) -> ThreadCaches {
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
            cache.read_into(snapshot, extents, &mut caches);
        }
    }
    caches
}

/// The cache that an arena's list leads to by this address.
fn cache_at(snapshot: &Snapshot, at: u64) -> Option<Cache> {
    // Addresses of the program end here.
    if at == 0 || at >= 1 << 47 || !at.is_multiple_of(8) {
        return None;
    }
    cache_of_two(snapshot, at).or_else(|| cache_of_one(snapshot, at))
}

fn cache_of_two(snapshot: &Snapshot, slow: u64) -> Option<Cache> {
    let cache = snapshot.word(slow + BINS)?.checked_sub(8)?;
    if !cache.is_multiple_of(8) || snapshot.word(cache)? != slow {
        return None;
    }
    cache_with_slow_part(snapshot, slow, cache)
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
    /// The one of the same version that has its bins at another place, if there is one.
    pub fn at(&self, memory: &impl Memory, bins: u64) -> Option<Cache> {
        match self.version {
            Version::Two => {
                let cache = bins.checked_sub(8)?;
                cache_with_slow_part(memory, memory.word(cache)?, cache)
            }
            Version::One => cache_of_one(memory, bins.checked_sub(OLD_BINS)?),
        }
    }

    /// Whether a list may be one of its own: all of them are in one region.
    pub fn may_have(&self, list: &Range<u64>) -> bool {
        let near = self.lists.saturating_sub(LISTS_REACH)..self.lists.saturating_add(LISTS_REACH);
        near.contains(&list.start) && near.contains(&list.end)
    }

    /// The list of a size class: places of regions.
    pub fn list(&self, memory: &impl Memory, class: u64) -> Option<Range<u64>> {
        let bin = match class.checked_sub(SLAB_CLASSES) {
            None => self.bins + class * BIN_BYTES,
            Some(large) => self.large_bins + large * BIN_BYTES,
        };
        match self.version {
            Version::Two => {
                let head = memory.word(bin)?;
                // The low bits of three places of the list: what it was lowest at, full, and empty.
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

    fn read_into(&self, snapshot: &Snapshot, extents: &Extents, found: &mut ThreadCaches) {
        found.all.push(*self);
        let around = |address| extents.find(address)?.taken_around(address);
        let Some(lists) = around(self.lists) else {
            found.findings.push(Finding {
                address: self.links,
                what: "the lists of a thread cache of jemalloc's are in no region".into(),
            });
            return;
        };
        found.own.insert(lists.start, self.bins);
        for class in 0..MOST_BINS {
            let list = self.list(snapshot, class);
            // It has no bins for the largest classes.
            let Some(list) = list.filter(|l| lists.start <= l.start && l.end <= lists.end) else {
                break;
            };
            found.read_list(snapshot, extents, class, list);
        }
    }
}

impl ThreadCaches {
    /// The regions of a size class that a list has.
    fn read_list(&mut self, snapshot: &Snapshot, extents: &Extents, class: u64, list: Range<u64>) {
        for place in list.step_by(8) {
            let region = snapshot.word(place).unwrap_or(0);
            let extent = extents.find(region);
            let is_taken = extent.is_some_and(|e| e.bits.class == class && e.has_taken(region));
            if !is_taken || !self.cached.insert(region) {
                self.findings.push(Finding {
                    address: place,
                    what: format!(
                        "a thread cache of jemalloc's has {region:#x}, which is no free region of its class"
                    ),
                });
                return;
            }
        }
    }
}
