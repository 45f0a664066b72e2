//! Blocks that pin resident pages: the allocator cannot return these pages while the blocks are
//! live.
//!
//! For each class of blocks, all its blocks are treated as freed. Neighbouring free chunks are then
//! merged, as in `free`. The result is the memory that malloc_trim would return from the merged
//! chunks. Blocks that thread caches would keep (seven of each size in each thread) are treated as
//! free too.

use crate::resident::chunk_list::{ChunkList, Owner};
use crate::resident::pages::ResidentPages;
use crate::resident::trim::{self, TopLimits};
use std::ops::Range;

/// Memory that one class of blocks pins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// Number of blocks in the class.
    pub blocks: u64,
    /// Usable bytes of these blocks.
    pub own_bytes: u64,
    /// Resident bytes that the allocator would return if the blocks were freed and the heap
    /// trimmed.
    pub pinned_bytes: u64,
    /// Part of these bytes that malloc_trim alone returns.
    pub trimmable_bytes: u64,
}

impl Pinned {
    /// Adds a block whose chunk has its own mapping, which is unmapped when the block is freed.
    pub fn add_mapped(&mut self, usable: u64, resident: u64) {
        self.blocks += 1;
        self.own_bytes += usable;
        self.pinned_bytes += resident;
    }
}

/// Adds up the memory that each class pins. `found` has one entry for each class.
pub struct PinCount<'a> {
    resident: &'a ResidentPages,
    limits: TopLimits,
    found: &'a mut [Pinned],
    /// For each class, the index after the last run of its chunks.
    done: Vec<usize>,
}

impl<'a> PinCount<'a> {
    /// Counts the pins of one piece, and adds them to `found`.
    pub fn new(
        resident: &'a ResidentPages,
        limits: TopLimits,
        found: &'a mut [Pinned],
    ) -> PinCount<'a> {
        PinCount {
            resident,
            limits,
            done: vec![0; found.len()],
            found,
        }
    }

    /// Adds the chunks of an arena's piece.
    pub fn add(mut self, list: &ChunkList) {
        for index in 0..list.len() {
            let Owner::Class(class) = list.owner(index) else {
                continue;
            };
            let Some(found) = self.found.get_mut(class as usize) else {
                continue;
            };
            found.blocks += 1;
            let chunk = list.range(index);
            found.own_bytes += chunk.end - chunk.start - 8;
            if index >= self.done[class as usize] {
                self.add_run(list, index, class);
            }
        }
    }

    /// Adds the run of chunks that would be free without this class. `first` is the first chunk of
    /// the class in the run.
    fn add_run(&mut self, list: &ChunkList, first: usize, class: u32) {
        let is_free = |&index: &usize| match list.owner(index) {
            Owner::Free => true,
            Owner::Class(other) => other == class,
            _ => false,
        };
        let from = (0..first).rev().take_while(is_free).last().unwrap_or(first);
        let to = (first + 1..list.len())
            .find(|index| !is_free(index))
            .unwrap_or(list.len());
        self.done[class as usize] = to;
        let top = (to < list.len() && list.owner(to) == Owner::Top).then(|| list.range(to));
        let run = list.range(from).start..list.range(to - 1).end;
        // Most runs are far too short to contain a whole page.
        if top.is_none() && trim::of_chunk(&run).is_empty() {
            return;
        }
        let is_main = list.piece.arena == 0;
        let mut trimmable: u64 = (from..to)
            .filter(|&index| list.owner(index) == Owner::Free)
            .map(|index| self.resident.bytes(&trim::of_chunk(&list.range(index))))
            .sum();
        let freed: Range<u64> = match top {
            None => trim::of_chunk(&run),
            Some(top) => {
                let with_run = run.start..top.end;
                if is_main {
                    trimmable += self.resident.bytes(&trim::of_main_top(&top));
                    trim::of_main_top(&with_run)
                } else {
                    self.limits.of_top(&with_run)
                }
            }
        };
        let found = &mut self.found[class as usize];
        let pinned = self.resident.bytes(&freed);
        found.pinned_bytes += pinned;
        found.trimmable_bytes += trimmable.min(pinned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dissect::Heap;
    use crate::glibc::walk::Piece;
    use crate::resident::arena_use::{self, ArenaUse};
    use crate::testing::snapshot;

    const START: u64 = 0x10_0000;

    /// Lays out a main arena from chunk sizes, with true for chunks in use. The last chunk is the
    /// top.
    fn arena(chunks: &[(u64, bool)]) -> (crate::Snapshot, Piece) {
        let bytes: u64 = chunks.iter().map(|chunk| chunk.0).sum();
        let mut memory = vec![0u8; bytes as usize];
        let mut put = |at: u64, word: u64| {
            if let Some(place) = memory.get_mut(at as usize..at as usize + 8) {
                place.copy_from_slice(&word.to_le_bytes());
            }
        };
        let (mut at, mut was_used) = (0, true);
        for &(size, is_used) in chunks {
            put(at + 8, size | u64::from(was_used));
            if !is_used {
                put(at + size, size);
            }
            at += size;
            was_used = is_used;
        }
        let top = START + bytes - chunks.last().map_or(0, |chunk| chunk.0);
        let piece = Piece {
            start: START,
            end: START + bytes,
            top: Some(top),
            arena: 0,
        };
        (snapshot(vec![(START, memory)]), piece)
    }

    /// Class 0 has the blocks of 64 bytes, class 1 all others.
    fn class(_: u64, usable: u64) -> u32 {
        u32::from(usable != 56)
    }

    #[test]
    fn a_small_block_between_free_chunks() {
        // In address order: three free pages and part of a page, the pin, five free pages, a block
        // of another class, and the top.
        let chunks = [
            (0x3100, false),
            (0x40, true),
            (0x5000, false),
            (0x1ec0, true),
            (0x3000, true),
        ];
        let (snapshot, piece) = arena(&chunks);
        let heap = Heap::empty();
        let list = ChunkList::of(&snapshot, &heap, piece, class);
        assert_eq!((list.len(), list.classes()), (5, 2));
        let all = ResidentPages::new(vec![piece.start..piece.end]);
        let mut found = [Pinned::default(); 2];
        PinCount::new(&all, TopLimits::of(None), &mut found).add(&list);
        // The range is [0x30, 0x8140) rounded inwards. 2 and 4 pages of it are returned without the
        // pin.
        let pin = Pinned {
            blocks: 1,
            own_bytes: 56,
            pinned_bytes: 0x7000,
            trimmable_bytes: 0x2000 + 0x4000,
        };
        assert_eq!(found[0], pin);
        // Without the other block, memory is free up to the top.
        assert_eq!(found[1].pinned_bytes, (0xd000 - 0x3140 - 33) & !0xfff);

        let mut used = ArenaUse::of(piece.start);
        let pages = piece.start..piece.end.next_multiple_of(PAGE);
        arena_use::count(&mut used, &heap, &list, pages.clone(), &all);
        assert_eq!(used.live_bytes, 0x40 - 8 + 0x1ec0 - 8);
        assert_eq!(used.top_bytes + used.bins_bytes, used.free_bytes());
        let sum = used.live_bytes + used.overhead_bytes + used.free_bytes();
        assert_eq!(sum, used.resident_bytes);
        assert_eq!(used.trim_bytes, 0x6000 + 0x2000);

        // Pages that are not in memory cannot be returned.
        let some = ResidentPages::new(vec![piece.start + 0x3000..piece.start + 0x4000]);
        let mut found = [Pinned::default(); 2];
        PinCount::new(&some, TopLimits::of(None), &mut found).add(&list);
        assert_eq!(
            (found[0].pinned_bytes, found[0].trimmable_bytes),
            (0x1000, 0)
        );
    }

    const PAGE: u64 = 0x1000;
}
