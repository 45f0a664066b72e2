//! Checks whether blocks of glibc's malloc are live, by looking them up in its lists of freed
//! chunks.
//!
//! A chunk that is freed into the cache of a thread or into a fast list keeps its header, and so
//! does the next chunk. Only its first word changes, which becomes the link to the next chunk, and,
//! in a cache since 2.29, its second word (`tcache_put`, `_int_free` of malloc.c). If a chunk was
//! taken from such a list and never written to, freeing it may store exactly the link that it
//! already contains.

use crate::allocators::live_check::{LiveCheck, Standstill};
use crate::blocks::Block;
use crate::glibc::layout::{ALIGNMENT, FLAGS, HEADER_BYTES, Layout, MIN_CHUNK_BYTES};
use crate::live_memory::Memory;
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;

/// Maximum length of a list. A longer one is a ring.
const MOST_CHUNKS: usize = 1 << 20;

/// Facts that are needed to read the lists.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub layout: Layout,
    /// Addresses of all arenas.
    pub arenas: Vec<u64>,
    /// Distance from each thread's TCB down to the pointer to the thread's cache; `None` if no
    /// cache was found.
    pub cache_distance: Option<u64>,
}

/// Lists of chunks of one size: fast list, and bin of a thread cache.
type Lists = (Option<u64>, Option<u64>);

impl Live {
    /// Returns true if freeing this block, which is in use, could leave its contents unchanged.
    pub fn may_look_the_same(&self, memory: &impl Memory, block: &Block) -> bool {
        let header = block.address.checked_sub(8);
        let header = header.and_then(|at| memory.word(at));
        let (Some(header), Some(word)) = (header, memory.word(block.address)) else {
            return true;
        };
        let (fast, bin) = self.lists_of(header & !FLAGS);
        if fast.or(bin).is_none() {
            return false;
        }
        let link = self.layout.unmangle(block.address, word);
        let bytes_at = |entry: u64| {
            let header = memory.word(entry.checked_sub(8)?)?;
            entry.is_multiple_of(ALIGNMENT).then_some(header & !FLAGS)
        };
        let is_chunk = || {
            let bytes = bytes_at(link.wrapping_add(HEADER_BYTES));
            bytes.is_some_and(|bytes| fast.is_some() && self.fast_list(bytes) == fast)
        };
        let is_entry = || {
            let bytes = bytes_at(link);
            bytes.is_some_and(|bytes| bin.is_some() && self.cache_bin(bytes) == bin)
        };
        link == 0 || is_chunk() || is_entry()
    }

    fn lists_of(&self, chunk_bytes: u64) -> Lists {
        (self.fast_list(chunk_bytes), self.cache_bin(chunk_bytes))
    }

    /// `fastbin_index`.
    fn fast_list(&self, chunk_bytes: u64) -> Option<u64> {
        let index = chunk_bytes.checked_sub(MIN_CHUNK_BYTES)? / ALIGNMENT;
        (index < self.layout.fastbins).then_some(index)
    }

    fn cache_bin(&self, chunk_bytes: u64) -> Option<u64> {
        (0..self.layout.tcache_bins).find(|&bin| self.layout.is_of_bin(bin, chunk_bytes))
    }

    /// Returns the user addresses of the free chunks in these lists of all arenas and threads;
    /// `None` if a list cannot be followed.
    fn free(&self, still: &Standstill, (fast, bin): Lists) -> Option<FxHashSet<u64>> {
        let memory = &still.memory;
        let mut free = FxHashSet::default();
        if let Some(index) = fast {
            for arena in &self.arenas {
                let head = arena.checked_add(self.layout.first_fastbin() + index * 8)?;
                // In fast lists, links are addresses of headers.
                self.follow(memory, memory.word(head)?, HEADER_BYTES, &mut free)?;
            }
        }
        if let Some(bin) = bin {
            for pointer in &still.thread_pointers {
                let cache = memory.word(pointer.wrapping_sub(self.cache_distance?))?;
                if cache != 0 {
                    let entries = self.layout.tcache_bins * self.layout.tcache_count;
                    let head = cache.checked_add(entries + bin * 8)?;
                    self.follow(memory, memory.word(head)?, 0, &mut free)?;
                }
            }
        }
        Some(free)
    }

    /// Adds the user addresses of the chunks of a list. The links of the list point `before` bytes
    /// before the user addresses.
    fn follow(
        &self,
        memory: &impl Memory,
        mut link: u64,
        before: u64,
        free: &mut FxHashSet<u64>,
    ) -> Option<()> {
        while link != 0 {
            let entry = link.checked_add(before)?;
            let is_sound = entry.is_multiple_of(ALIGNMENT) && free.len() < MOST_CHUNKS;
            if !is_sound || !free.insert(entry) {
                return None;
            }
            link = self.layout.unmangle(entry, memory.word(entry)?);
        }
        Some(())
    }
}

impl LiveCheck for Live {
    fn are_live(&self, still: &Standstill, blocks: &[Block]) -> Result<Vec<bool>, &'static str> {
        let memory = &still.memory;
        let mut lists: BTreeMap<Lists, Option<FxHashSet<u64>>> = BTreeMap::new();
        let mut is_live = |block: &Block| {
            let header = memory.word(block.address.checked_sub(8)?)?;
            let of_size = self.lists_of(header & !FLAGS);
            let free = lists
                .entry(of_size)
                .or_insert_with(|| self.free(still, of_size));
            Some(!free.as_ref()?.contains(&block.address))
        };
        Ok(blocks.iter().map(|b| is_live(b) == Some(true)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::snapshot;

    const ARENA: u64 = 0x1_0000;
    const HEAP: u64 = 0x2_0000;
    const CACHE: u64 = 0x3_0000;
    const THREAD: u64 = 0x4_0100;
    const CHUNK: u64 = 0x30;

    fn live(minor: u32) -> Live {
        Live {
            layout: Layout::candidates(minor).next().unwrap(),
            arenas: vec![ARENA],
            cache_distance: Some(0x100),
        }
    }

    /// Blocks of one size with these first words. The heads of the fast list and of the bin are
    /// either empty or one of these blocks.
    struct Case {
        live: Live,
        words: Vec<u64>,
        fast: Option<u64>,
        cached: Option<u64>,
    }

    fn block(index: u64) -> Block {
        Block {
            address: HEAP + index * CHUNK + HEADER_BYTES,
            bytes: CHUNK - 8,
        }
    }

    impl Case {
        fn of(minor: u32, words: impl Fn(&Live) -> Vec<u64>) -> Case {
            let live = live(minor);
            Case {
                words: words(&live),
                live,
                fast: None,
                cached: None,
            }
        }

        fn look(&self) -> (Vec<bool>, Vec<bool>) {
            let layout = &self.live.layout;
            let mut state = vec![0u64; 300];
            let chunk = |index| block(index).address - HEADER_BYTES;
            if layout.fastbins > 0 {
                state[(layout.first_fastbin() / 8 + 1) as usize] = self.fast.map_or(0, chunk);
            }
            let mut heap = Vec::new();
            for &word in &self.words {
                heap.extend([0, CHUNK | 1, word, 0, 0, 0]);
            }
            heap.extend([0; 2]);
            let mut cache = vec![0u64; 120];
            let entries = layout.tcache_bins * layout.tcache_count / 8;
            cache[entries as usize + 1] = self.cached.map_or(0, |index| block(index).address);
            let bytes = |words: Vec<u64>| words.iter().flat_map(|w| w.to_le_bytes()).collect();
            let memory = snapshot(vec![
                (ARENA, bytes(state)),
                (HEAP, bytes(heap)),
                (CACHE, bytes(cache)),
                (THREAD - 0x100, bytes(vec![CACHE, 0])),
            ]);
            let blocks: Vec<Block> = (0..self.words.len() as u64).map(block).collect();
            let still = Standstill {
                memory: &memory,
                thread_pointers: vec![THREAD],
            };
            let same = blocks.iter();
            (
                same.map(|b| self.live.may_look_the_same(&memory, b))
                    .collect(),
                self.live.are_live(&still, &blocks).unwrap(),
            )
        }
    }

    /// Encodes links the way this glibc version stores them in each of the blocks.
    fn links(live: &Live, links: &[u64]) -> Vec<u64> {
        let place = |i: usize| block(i as u64).address;
        let stored = links.iter().enumerate();
        stored
            .map(|(i, &link)| live.layout.unmangle(place(i), link))
            .collect()
    }

    #[test]
    fn blocks_in_a_fast_list_are_free() {
        for minor in [26, 31, 36, 42] {
            let mut case = Case::of(minor, |live| {
                links(live, &[0, block(0).address - HEADER_BYTES, 0, 0x77])
            });
            case.fast = Some(1);
            let (same, live) = case.look();
            assert_eq!(same, [true, true, true, false], "2.{minor}");
            assert_eq!(live, [false, false, true, true], "2.{minor}");
        }
    }

    #[test]
    fn blocks_in_the_cache_of_a_thread_are_free() {
        for minor in [26, 28, 36, 42, 43] {
            let mut case = Case::of(minor, |live| links(live, &[0, block(0).address, 0, 0x77]));
            case.cached = Some(1);
            let (same, live) = case.look();
            assert_eq!(same, [true, true, true, false], "2.{minor}");
            assert_eq!(live, [false, false, true, true], "2.{minor}");
        }
    }

    #[test]
    fn lists_that_cannot_be_followed_leave_nothing_live() {
        let ring = [
            block(1).address - HEADER_BYTES,
            block(0).address - HEADER_BYTES,
        ];
        for odd in [ring, [0x1234_5678_0000, 0], [24, 0]] {
            let mut case = Case::of(31, |live| links(live, &odd));
            case.fast = Some(0);
            assert_eq!(case.look().1, [false, false], "{odd:x?}");
        }
        let mut case = Case::of(31, |live| links(live, &[0]));
        case.live.cache_distance = None;
        assert_eq!(case.look().1, [false]);
    }
}
