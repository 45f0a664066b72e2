//! Memory of glibc's malloc, where its heap is laid out in a way that is not known: recognized by the blocks in
//! it.
//!
//! It needs less than a dissection does, and what it needs has been the same in all releases: the flags in the
//! word before a block (malloc.c, `mchunk_size`), `heap_info` at the start of an arena's heap (arena.c), and
//! bins that point to themselves.

use crate::glibc::arenas::find_bins;
use crate::glibc::dissect::Heap;
use crate::glibc::layout::{FLAGS, HEADER_BYTES, HEAP_MAX_BYTES, IS_MMAPPED, NON_MAIN_ARENA};
use crate::graph::foreign_areas::threads_part;
use crate::ranges::{Runs, joined, without};
use crate::snapshot::{AreaKind, Snapshot};
use std::ops::Range;

impl Heap {
    /// Takes the memory in which `blocks` (addresses) lie, and all else that is of glibc's malloc, for the
    /// allocator's. Returns whether it is all known: then what is in it outside of blocks is free, if every block
    /// was traced.
    ///
    /// Call it after [`Heap::add_foreign`], for a process whose only allocator is glibc's.
    pub fn take_undissected(&mut self, snapshot: &Snapshot, blocks: &[u64]) -> bool {
        let Some(libc) = snapshot.libc() else {
            return false;
        };
        // Bins point to free chunks, whose first word is still of the block before: no roots.
        let Some(bins) = find_bins(snapshot, libc) else {
            return false;
        };
        let brk = |kind| matches!(kind, AreaKind::Brk);
        let areas = snapshot.meta.areas.iter();
        let mut taken: Runs = areas
            .clone()
            .filter(|area| brk(area.kind))
            .map(|area| area.start..area.end)
            .collect();
        taken.extend(
            areas
                .filter(|area| area.start.is_multiple_of(HEAP_MAX_BYTES))
                .filter_map(|area| arena_heap(snapshot, area.start)),
        );
        let mut mapped = Runs::new();
        for &block in blocks {
            let Some(header) = snapshot.word(block.wrapping_sub(8)) else {
                return false;
            };
            if header & IS_MMAPPED != 0 {
                let start = block - HEADER_BYTES;
                mapped.push(start..start.saturating_add(header & !FLAGS));
                continue;
            }
            let in_brk = snapshot.area(block).is_some_and(|area| brk(area.kind));
            let in_arena = header & NON_MAIN_ARENA != 0 && taken.iter().any(|t| t.contains(&block));
            if !in_brk && !in_arena {
                return false;
            }
        }
        for range in taken {
            let Some(kept) = threads_part(snapshot, &range) else {
                return false;
            };
            let rest = without(range.start, range.end, &joined(kept));
            self.ranges.extend(rest);
        }
        self.ranges.extend(mapped);
        self.ranges.push(bins);
        true
    }
}

/// The heap of an arena other than the main one, if there is one at this address (`ar_ptr`, `prev`, `size`).
fn arena_heap(snapshot: &Snapshot, start: u64) -> Option<Range<u64>> {
    let arena = snapshot.word(start)?;
    let size = snapshot.word(start + 16)?;
    let first = arena & !(HEAP_MAX_BYTES - 1);
    let fits = arena != first
        && snapshot.word(first) == Some(arena)
        && size > 0
        && size.is_multiple_of(4096)
        && size <= HEAP_MAX_BYTES;
    fits.then_some(start..start + size)
}
