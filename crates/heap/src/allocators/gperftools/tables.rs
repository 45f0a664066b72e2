//! Finds the variables of gperftools' tcmalloc by invariants of their contents (src/static_vars.h).

use crate::arch::native;
use crate::live_memory::Memory;
use crate::ranges::Runs;
use crate::snapshot::{Snapshot, words};
use rustc_hash::FxHashSet;
use std::ops::Range;

/// `kClassSizesMax`.
const MOST_CLASSES: usize = 128;
/// Lower bound on the number of size classes. Data with fewer classes is not a size map.
const FEWEST_CLASSES: usize = 20;
/// The largest block in a size class (`kMaxSize`). Larger blocks consist of whole pages.
const MOST_CLASS_BYTES: u32 = 256 << 10;
/// Upper bound on the number of pages that a class takes at a time.
const MOST_CLASS_PAGES: u64 = 256;

/// `SizeMap`: the sizes of blocks. Class 0 represents larger blocks and has no size.
#[derive(Debug)]
pub struct SizeMap {
    pub bytes: Vec<u64>,
}

/// `Static::central_cache_`: for each class, a list of spans, and chains of blocks that move between threads.
#[derive(Clone, Debug)]
pub struct Central {
    /// Head of the list of empty spans of class 0.
    first: u64,
    stride: u64,
    classes: u64,
}

// Offsets from the head of the list of empty spans, which follows a lock and the number of the class
// (src/central_freelist.h, src/span.h).
const NONEMPTY: u64 = 48;
const SPANS: u64 = 96;
const COUNTER: u64 = 104;
const SLOTS: u64 = 112;
const MOST_SLOTS: u64 = 64;
const USED_SLOTS: u64 = SLOTS + MOST_SLOTS * 16;
const LOCK_BEFORE: u64 = 16;
const CLASS_BEFORE: u64 = 8;
/// Possible distances between the entries of two classes.
const STRIDES: Range<u64> = USED_SLOTS..4096;

/// First and last block of each chain of free blocks.
pub struct Chains {
    pub settled: Vec<(u64, u64)>,
    /// Chains that a thread may be adding or removing.
    pub changing: Vec<(u64, u64)>,
}

/// `PageHeap::pagemap_`, a table of tables that maps each page to the descriptor of its span.
#[derive(Clone, Copy, Debug)]
pub struct PageMap {
    root: u64,
    /// Binary logarithm of the page size.
    pub shift: u32,
}

/// Page sizes with which gperftools can be built (configure.ac), the usual one first.
const SHIFTS: [u32; 7] = [13, 12, 14, 15, 16, 17, 18];
const ADDRESS_BITS: u32 = 48;

/// Returns the copied data of the modules, range by range.
pub fn data(snapshot: &Snapshot) -> Vec<(u64, &[u8])> {
    let ranges = snapshot.meta.modules.iter().flat_map(|m| &m.data);
    let copied = ranges.filter_map(|range| {
        let region = snapshot.region(range.start)?;
        let end = range.end.min(region.end());
        let bytes = snapshot.bytes(range.start, end.checked_sub(range.start)?)?;
        Some((range.start, bytes))
    });
    copied.collect()
}

impl SizeMap {
    /// Finds the size map in this data.
    pub fn find(snapshot: &Snapshot, data: &[(u64, &[u8])]) -> Option<SizeMap> {
        data.iter().find_map(|&(start, bytes)| {
            let (halves, _) = bytes.as_chunks::<4>();
            let halves: Vec<u32> = halves
                .iter()
                .map(|half| u32::from_le_bytes(*half))
                .collect();
            let pairs = halves.windows(2).enumerate();
            let mut likely = pairs.filter(|(_, pair)| pair[0] == 0 && matches!(pair[1], 8 | 16));
            likely.find_map(|(index, _)| SizeMap::at(snapshot, start, &halves, index))
        })
    }

    fn at(snapshot: &Snapshot, start: u64, halves: &[u32], index: usize) -> Option<SizeMap> {
        let sizes = halves.get(index..index + MOST_CLASSES)?;
        let last = sizes.iter().position(|&bytes| bytes == MOST_CLASS_BYTES)?;
        let sizes = &sizes[..=last];
        let count = sizes.len();
        if count < FEWEST_CLASSES || !sizes.is_sorted_by(|a, b| a < b) {
            return None;
        }
        if sizes.iter().any(|bytes| bytes % 8 != 0) {
            return None;
        }
        // Next come the pages of each class, then (since 2.11) the smallest number of pages of any class, and the
        // number of classes.
        let pages = start + (index + MOST_CLASSES) as u64 * 4;
        let pages = pages.next_multiple_of(8);
        let has_pages = |class: u64| {
            let pages = snapshot.word(pages + class * 8);
            pages.is_some_and(|pages| (1..=MOST_CLASS_PAGES).contains(&pages))
        };
        let after = |index: u64| snapshot.word(pages + (MOST_CLASSES as u64 + index) * 8);
        let is_counted = after(0) == Some(count as u64)
            || after(1) == Some(count as u64) && has_pages(MOST_CLASSES as u64);
        let fits = is_counted && (1..count as u64).all(has_pages);
        fits.then(|| SizeMap {
            bytes: sizes.iter().map(|&bytes| u64::from(bytes)).collect(),
        })
    }
}

impl Central {
    /// Finds the central lists in this data. Class 0 has no spans, so both of its lists point to themselves.
    pub fn find(snapshot: &Snapshot, data: &[(u64, &[u8])], classes: u64) -> Option<Central> {
        data.iter().find_map(|&(start, bytes)| {
            let words: Vec<u64> = words(bytes).collect();
            let mut likely = (2..words.len()).filter(|&index| {
                let first = start + index as u64 * 8 - 16;
                words[index] == first && words.get(index + 1) == Some(&first)
            });
            likely.find_map(|index| Central::at(snapshot, start + index as u64 * 8 - 16, classes))
        })
    }

    fn at(snapshot: &Snapshot, first: u64, classes: u64) -> Option<Central> {
        let word = |at: u64| snapshot.word(at);
        let other = first + NONEMPTY;
        if word(other + 16) != Some(other) || word(other + 24) != Some(other) {
            return None;
        }
        let mut strides = STRIDES.step_by(8);
        let stride = strides.find(|stride| {
            (0..classes).all(|class| word(first - CLASS_BEFORE + class * stride) == Some(class))
        })?;
        Some(Central {
            first,
            stride,
            classes,
        })
    }

    fn of(&self, class: u64) -> u64 {
        self.first + class * self.stride
    }

    /// Returns the memory of the lists.
    pub fn range(&self) -> Range<u64> {
        let start = self.first - LOCK_BEFORE;
        start..start + self.classes * self.stride
    }

    /// Returns the number of spans of a class and the number of free blocks in them, as counted by the allocator.
    pub fn counts(&self, memory: &impl Memory, class: u64) -> Option<(u64, u64)> {
        let spans = memory.word(self.of(class) + SPANS)?;
        Some((spans, memory.word(self.of(class) + COUNTER)?))
    }

    /// Returns the chains of a class.
    pub fn chains(&self, memory: &impl Memory, class: u64) -> Option<Chains> {
        let at = self.of(class);
        let used = u64::from(memory.half(at + USED_SLOTS)?);
        let slot = |index: u64| {
            let slot = at + SLOTS + index * 16;
            Some((memory.word(slot)?, memory.word(slot + 8)?))
        };
        if used > MOST_SLOTS {
            return None;
        }
        let mut settled = (0..used).map(slot).collect::<Option<Vec<_>>>()?;
        let mut changing = Vec::new();
        if memory.half(at - LOCK_BEFORE) != Some(0) {
            // A chain that a thread is adding is counted before it is stored. A chain that a thread is removing is
            // still stored after it is no longer counted.
            changing.extend(settled.pop());
            if used < MOST_SLOTS {
                changing.extend(slot(used));
            }
        }
        Some(Chains { settled, changing })
    }

    /// Returns one span of each class that has spans.
    pub fn some_spans(&self, snapshot: &Snapshot) -> Vec<u64> {
        let heads = (0..self.classes).flat_map(|class| {
            let empty = self.of(class);
            [empty, empty + NONEMPTY]
        });
        let spans = heads.filter_map(|head| {
            let span = snapshot.word(head + 16)?;
            (span != head).then_some(span)
        });
        spans.collect()
    }
}

impl PageMap {
    /// Finds the page map in this data. The map must contain these spans, with at most `doubts` exceptions.
    pub fn find(
        snapshot: &Snapshot,
        data: &[(u64, &[u8])],
        spans: &[u64],
        doubts: usize,
    ) -> Option<PageMap> {
        let &span = spans.first()?;
        let page = snapshot.word(span)?;
        SHIFTS.iter().find_map(|&shift| {
            let (root_index, leaf_index) = PageMap::indices(shift, page)?;
            data.iter().find_map(|&(start, bytes)| {
                let leaves = words(bytes).enumerate().filter(|&(_, leaf)| {
                    leaf != 0 && snapshot.word(leaf.wrapping_add(leaf_index * 8)) == Some(span)
                });
                let mut maps = leaves.filter_map(|(index, _)| {
                    let root = start + index as u64 * 8;
                    let root = root.checked_sub(root_index * 8)?;
                    Some(PageMap { root, shift })
                });
                maps.find(|map| {
                    let missing = spans.iter().filter(|&&span| {
                        let page = snapshot.word(span);
                        page.and_then(|page| map.get(snapshot, page)) != Some(span)
                    });
                    missing.count() <= doubts
                })
            })
        })
    }

    fn leaf_bits(shift: u32) -> u32 {
        (ADDRESS_BITS - shift).div_ceil(2)
    }

    fn indices(shift: u32, page: u64) -> Option<(u64, u64)> {
        let bits = PageMap::leaf_bits(shift);
        let is_page = page >> (ADDRESS_BITS - shift) == 0;
        is_page.then_some((page >> bits, page & ((1 << bits) - 1)))
    }

    pub fn get(self, memory: &impl Memory, page: u64) -> Option<u64> {
        let (root, leaf) = PageMap::indices(self.shift, page)?;
        let table = memory.word(self.root + root * 8).filter(|&t| t != 0)?;
        memory.word(table.wrapping_add(leaf * 8))
    }

    /// Returns the tables of the second level, as the first page and the address of each.
    pub fn leaves(self, snapshot: &Snapshot) -> Vec<(u64, Range<u64>)> {
        let bits = PageMap::leaf_bits(self.shift);
        let roots = 1u64 << (ADDRESS_BITS - self.shift - bits);
        let table = snapshot.bytes(self.root, roots * 8).unwrap_or_default();
        let leaves = words(table).enumerate().filter(|&(_, leaf)| leaf != 0);
        leaves
            .map(|(index, leaf)| ((index as u64) << bits, leaf..leaf.saturating_add(8 << bits)))
            .collect()
    }
}

/// Caches of threads.
#[derive(Debug)]
pub struct Caches {
    /// Addresses of the caches.
    pub all: Vec<u64>,
    /// Variables that point to the first cache: the head of the list, and the next cache to steal from.
    heads: Vec<u64>,
    links: Links,
}

/// Offset of the pointer to the next cache. The pointer to the previous cache follows it.
#[derive(Clone, Copy, Debug)]
struct Links(u64);

/// `ThreadCache` has a list for each class (32 bytes each), then counters and (up to 2.10) the thread's identifier,
/// then its list links.
const LIST_BYTES: u64 = 32;
const AFTER_LISTS: u64 = MOST_CLASSES as u64 * LIST_BYTES;
const LINKS: [Links; 2] = [Links(AFTER_LISTS + 48), Links(AFTER_LISTS + 32)];
/// Size of the cache of one thread.
const CACHE_BYTES: u64 = AFTER_LISTS + 128;
/// Upper bound on the number of threads of a process.
const MOST_CACHES: usize = 1 << 20;
/// Upper bound on the size of static thread-local storage, which is below the thread pointer.
const STATIC_TLS_BYTES: u64 = 64 << 10;

impl Caches {
    /// Returns all caches of the list whose head is in the data, or `None` if no such list contains the caches of all
    /// threads. The data also contains pointers to caches of threads that have ended.
    pub fn find(snapshot: &Snapshot, data: &[(u64, &[u8])], sizes: &SizeMap) -> Option<Caches> {
        let found = LINKS.map(|links| Caches::linked_by(snapshot, data, sizes, links));
        // A wrong offset may contain zeros, which look like a list of one cache.
        let found = found.into_iter().flatten();
        found.max_by_key(|caches| caches.all.len())
    }

    fn linked_by(
        snapshot: &Snapshot,
        data: &[(u64, &[u8])],
        sizes: &SizeMap,
        links: Links,
    ) -> Option<Caches> {
        let is_cache = |&at: &u64| at >= 4096 && is_cache(snapshot, at, sizes);
        let places = data.iter().flat_map(|&(start, bytes)| {
            let places = (start..).step_by(8);
            places.zip(words(bytes))
        });
        let places: Vec<(u64, u64)> = places
            .filter(|(_, word)| is_cache(word))
            .filter(|&(_, cache)| links.before(snapshot, cache) == Some(0))
            .collect();
        let heads: FxHashSet<u64> = places.iter().map(|&(_, head)| head).collect();
        let threads = snapshot.meta.threads.iter();
        let of_threads = threads.flat_map(|thread| {
            let memory = snapshot.region(thread.fs_base);
            let memory = memory.map_or(0..0, |region| region.start..region.end());
            let storage = native::static_storage(thread.fs_base, STATIC_TLS_BYTES, memory);
            let bytes = storage.end.saturating_sub(storage.start);
            let bytes = snapshot.bytes(storage.start, bytes);
            words(bytes.unwrap_or_default()).filter(is_cache)
        });
        // The stack of an ended thread, or a list of free blocks, may point to an emptied cache.
        let is_gone = |&cache: &u64| {
            let is_linked = match links.before(snapshot, cache) {
                Some(0) => {
                    heads.contains(&cache) && links.list_from(snapshot, cache, is_cache).is_some()
                }
                Some(before) => links.next(snapshot, before) == Some(cache),
                None => false,
            };
            let is_empty = |class| matches!(Caches::list(snapshot, cache, class), Some((_, 0)));
            !is_linked && (1..sizes.bytes.len() as u64).all(is_empty)
        };
        let of_threads: FxHashSet<u64> = of_threads.filter(|cache| !is_gone(cache)).collect();
        let mut lists = heads
            .iter()
            .filter_map(|&head| links.list_from(snapshot, head, is_cache));
        let all = lists.find(|list| of_threads.is_subset(&list.iter().copied().collect()))?;
        let to_first = |(_, head): &&(u64, u64)| Some(head) == all.first();
        let heads = places.iter().filter(to_first).map(|place| place.0);
        Some(Caches {
            heads: heads.collect(),
            all,
            links,
        })
    }

    /// Returns the current addresses of the caches, found through the same variables.
    pub fn now(&self, memory: &impl Memory, sizes: &SizeMap) -> Option<Vec<u64>> {
        let is_cache = |&at: &u64| at >= 4096 && is_cache(memory, at, sizes);
        let heads = self.heads.iter().filter_map(|&place| memory.word(place));
        let lists = heads.filter_map(|head| self.links.list_from(memory, head, is_cache));
        // A variable that leads to a later cache is not the head of a list.
        lists.max_by_key(Vec::len).filter(|list| !list.is_empty())
    }

    /// Returns the memory of the caches.
    pub fn ranges(&self) -> Runs {
        let caches = self.all.iter();
        caches.map(|&cache| cache..cache + CACHE_BYTES).collect()
    }

    /// Returns the first block of a class in a cache, and the cache's own count of these blocks.
    pub fn list(memory: &impl Memory, cache: u64, class: u64) -> Option<(u64, u64)> {
        let list = cache + class * LIST_BYTES;
        let length = memory.half(list + 8)?;
        Some((memory.word(list)?, u64::from(length)))
    }
}

impl Links {
    fn next(self, memory: &impl Memory, cache: u64) -> Option<u64> {
        memory.word(cache.checked_add(self.0)?)
    }

    fn before(self, memory: &impl Memory, cache: u64) -> Option<u64> {
        memory.word(cache.checked_add(self.0 + 8)?)
    }

    /// Returns the list that begins with this cache, if its links agree.
    fn list_from(
        self,
        memory: &impl Memory,
        head: u64,
        is_cache: impl Fn(&u64) -> bool,
    ) -> Option<Vec<u64>> {
        let mut caches = Vec::new();
        let mut last = 0;
        let mut cache = head;
        while cache != 0 {
            let fits = is_cache(&cache)
                && self.before(memory, cache) == Some(last)
                && caches.len() < MOST_CACHES;
            if !fits {
                return None;
            }
            caches.push(cache);
            last = cache;
            cache = self.next(memory, cache)?;
        }
        Some(caches)
    }
}

/// Checks that each of the cache's lists states the right size.
fn is_cache(memory: &impl Memory, at: u64, sizes: &SizeMap) -> bool {
    let is_of_class = |class: usize| {
        let size = at.checked_add(class as u64 * LIST_BYTES + 24);
        let size = size.and_then(|size| memory.half(size));
        size.map(u64::from) == sizes.bytes.get(class).copied()
    };
    at.is_multiple_of(8) && (1..sizes.bytes.len()).all(is_of_class)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::ThreadState;
    use crate::testing::snapshot;

    const DATA: u64 = 0x1_0000;
    const CACHES: u64 = 0x2_0000;
    const STACK: u64 = 0x4_0000;

    fn cache(index: u64) -> u64 {
        CACHES + index * 0x2000
    }

    /// A cache of two classes, with the next cache and the previous one. One class has `blocks` blocks.
    fn words_of(blocks: u64, next: u64, before: u64) -> Vec<u64> {
        let mut words = vec![0; 0x2000 / 8];
        for (class, size) in [(1, 16), (2, 32)] {
            words[(class * LIST_BYTES + 24) as usize / 8] = size;
        }
        words[(LIST_BYTES + 8) as usize / 8] = blocks;
        words[LINKS[0].0 as usize / 8] = next;
        words[LINKS[0].0 as usize / 8 + 1] = before;
        words
    }

    /// Returns the caches found when a variable leads to cache 0, cache 0 to cache 1, another variable to cache 2, and
    /// a thread's words to the caches.
    fn found(third: Vec<u64>) -> Option<Vec<u64>> {
        let bytes =
            |words: Vec<u64>| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
        let caches = [words_of(3, cache(1), 0), words_of(0, 0, cache(0)), third];
        let mut snapshot = snapshot(vec![
            (DATA, bytes(vec![7, cache(0), cache(2)])),
            (CACHES, bytes(caches.concat())),
            (STACK, bytes(vec![cache(2), cache(0), 0, 0])),
        ]);
        snapshot.meta.threads.push(ThreadState {
            rsp: STACK,
            fs_base: STACK + 16,
            ..ThreadState::default()
        });
        let sizes = SizeMap {
            bytes: vec![0, 16, 32],
        };
        let data = bytes(vec![7, cache(0), cache(2)]);
        let data: &[u8] = &data;
        Caches::find(&snapshot, &[(DATA, data)], &sizes).map(|caches| caches.all)
    }

    #[test]
    fn a_cache_of_a_thread_that_has_ended_is_none() {
        let list = vec![cache(0), cache(1)];
        // This cache followed the second cache in the list, or preceded the first.
        for links in [(0, cache(1)), (cache(0), 0)] {
            assert_eq!(found(words_of(0, links.0, links.1)), Some(list.clone()));
        }
    }

    #[test]
    fn a_cache_with_blocks_that_no_list_has_is_no_list_to_go_by() {
        assert_eq!(found(words_of(1, 0, cache(1))), None);
    }
}
