//! Which blocks hold resident pages that the allocator cannot give back while they live.
//!
//! For each class of blocks, all its blocks are taken as freed. Runs of chunks that are then free become one chunk
//! each, as `free` makes them, and of those chunks come back what malloc_trim gives back. Blocks that thread caches
//! would keep (seven of a size and thread) are taken as free too.

use crate::resident::chunk_list::{ChunkList, Owner};
use crate::resident::pages::ResidentPages;
use crate::resident::trim::{self, TopLimits};
use std::ops::Range;

/// What one class of blocks holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// Its blocks.
    pub blocks: u64,
    /// Their usable bytes.
    pub own_bytes: u64,
    /// Resident bytes that would come back if they were freed and the heap trimmed.
    pub pinned_bytes: u64,
    /// How many of those come back by malloc_trim alone.
    pub trimmable_bytes: u64,
}

impl Pinned {
    /// Adds a block in a chunk that is a mapping of its own: it comes back with the block.
    pub fn add_mapped(&mut self, usable: u64, resident: u64) {
        self.blocks += 1;
        self.own_bytes += usable;
        self.pinned_bytes += resident;
    }
}

/// Adds up what each class holds; `found` has one entry for each class.
pub struct PinCount<'a> {
    resident: &'a ResidentPages,
    limits: TopLimits,
    found: &'a mut [Pinned],
    /// For each class, the index behind the last run of its chunks.
    done: Vec<usize>,
}

impl<'a> PinCount<'a> {
    /// Of one piece; begins with what is in `found`.
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

    /// Adds the run of chunks that would be free without this class, by the first chunk of the class in it.
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
        // Most runs are far too short to have a page of their own.
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
