//! Memory of glibc's malloc whose heap layout is unknown.
//!
//! The walk needs fewer structures than a dissection, and only structures that have not changed for
//! many releases: headers of chunks (malloc.c, `mchunk_size`), links of cached chunks
//! (PROTECT_PTR), `heap_info` at the start of an arena's heap (arena.c), and bins that point to
//! themselves. They show which chunks are free. Chunks in use that a ledger knows are blocks. The
//! other chunks in use are roots, regardless of their contents.

use crate::dissect::Heap;
use crate::glibc::arenas::find_bins;
use crate::glibc::layout::{
    ALIGNMENT, FLAGS, HEADER_BYTES, HEAP_ALIGNMENT, HEAP_MAX_BYTES, IS_MMAPPED,
};
use crate::glibc::walk::{Piece, in_use};
use crate::ranges::{Runs, add_run};
use crate::snapshot::{AreaKind, Snapshot};
use rustc_hash::FxHashSet;
use std::ops::Range;

const PAGE_BYTES: u64 = 4096;
/// Upper bound on the size of `heap_info` and `malloc_state`.
const MOST_HEADERS_BYTES: u64 = 8192;

impl Heap {
    /// Classifies all memory of glibc's malloc outside `blocks` (addresses): free memory belongs to
    /// the allocator, and memory in use is a root. Returns true if the heap could be walked and
    /// contains all of the blocks.
    ///
    /// Call it after [`Heap::add_foreign`], for a process whose only allocator is glibc's.
    pub fn take_undissected(&mut self, snapshot: &Snapshot, blocks: &[u64]) -> bool {
        // Bins point to free chunks, whose first word still belongs to the previous block. They are
        // not roots.
        let bins = snapshot.libc().and_then(|libc| find_bins(snapshot, libc));
        let Some((bins, pieces)) = bins.zip(pieces(snapshot)) else {
            return false;
        };
        let known: FxHashSet<u64> = blocks.iter().copied().collect();
        let mut of_chunks = 0;
        let mut others = Vec::new();
        for (range, chunks) in pieces {
            add_run(&mut self.ranges, range);
            for chunk in chunks {
                if known.contains(&chunk.0) {
                    of_chunks += 1;
                } else {
                    others.push(chunk);
                }
            }
        }
        for &block in blocks {
            let header = snapshot.word(block.wrapping_sub(8)).unwrap_or(0);
            if header & IS_MMAPPED != 0 {
                of_chunks += 1;
                let start = block - HEADER_BYTES;
                self.ranges
                    .push(start..start.saturating_add(header & !FLAGS));
            }
        }
        self.ranges.push(bins);
        let addresses: FxHashSet<u64> = others.iter().map(|chunk| chunk.0).collect();
        for (address, bytes) in others {
            let next = snapshot.word(address).unwrap_or(0) ^ (address >> 12);
            // The chunk may be in a thread's cache, or in a fastbin, whose links point to chunk
            // headers.
            let is_cached = next == 0
                || addresses.contains(&next)
                || addresses.contains(&next.wrapping_add(HEADER_BYTES));
            if !is_cached {
                add_run(&mut self.unparsed, address..address + bytes);
            }
        }
        of_chunks == blocks.len()
    }
}

/// A range of heap, with the user addresses and usable bytes of its chunks in use, including cached
/// ones.
type InUse = (Range<u64>, Vec<(u64, u64)>);

/// Returns the heaps of all arenas; `None` if one cannot be walked.
fn pieces(snapshot: &Snapshot) -> Option<Vec<InUse>> {
    let mut ranges = Runs::new();
    for area in &snapshot.meta.areas {
        if area.kind == AreaKind::Brk {
            add_run(&mut ranges, area.start..area.end);
        }
    }
    let main = ranges.len();
    let areas = snapshot.meta.areas.iter();
    ranges.extend(
        areas
            .filter(|area| area.start.is_multiple_of(HEAP_ALIGNMENT))
            .filter_map(|area| arena_heap(snapshot, area.start)),
    );
    let walked = ranges.into_iter().enumerate().map(|(number, range)| {
        let is_main = number < main;
        let headers = if is_main { 0 } else { MOST_HEADERS_BYTES };
        let first = range.start.next_multiple_of(ALIGNMENT);
        let last = range.end.min(first + headers);
        let mut starts = (first..=last).step_by(ALIGNMENT as usize);
        let chunks = starts.find_map(|start| {
            let piece = Piece {
                start,
                end: range.end,
                top: None,
                arena: u32::from(!is_main),
            };
            in_use(snapshot, piece)
        })?;
        Some((range, chunks))
    });
    walked.collect()
}

/// Returns the heap at this address if it belongs to an arena other than the main one (`ar_ptr`,
/// `prev`, `size`).
fn arena_heap(snapshot: &Snapshot, start: u64) -> Option<Range<u64>> {
    let arena = snapshot.word(start)?;
    let size = snapshot.word(start + 16)?;
    // The arena follows the header of its first heap.
    let first = arena & !(PAGE_BYTES - 1);
    let fits = arena != first
        && snapshot.word(first) == Some(arena)
        && size > 0
        && size.is_multiple_of(4096)
        && size <= HEAP_MAX_BYTES;
    fits.then_some(start..start + size)
}
