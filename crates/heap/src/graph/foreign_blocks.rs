//! Blocks of allocators whose heap we cannot walk. Only blocks that a ledger has recorded are
//! included.
//!
//! All other memory of these allocators counts as roots: blocks from before the trace, free blocks,
//! and the allocators' own data. So a leaked block may look reachable, but a reachable block never
//! looks leaked.

use crate::blocks::{Segment, SegmentKind};
use crate::dissect::Heap;
use crate::ranges::{Runs, add_run};
use crate::snapshot::Snapshot;
use std::ops::Range;

/// Minimum distance at which two blocks are put into different segments.
const GAP_BYTES: u64 = 1 << 20;
const WORD_BYTES: u64 = 8;

/// Adds a block to the last segment if that is near, otherwise to a new segment. Returns false if
/// it fits into neither.
pub(super) fn add_block(
    segments: &mut Vec<Segment>,
    block: Range<u64>,
    kind: SegmentKind,
    may_hold: impl Fn(&Segment) -> bool,
) -> bool {
    let bytes = block.end - block.start;
    let is_near = |last: &&mut Segment| block.start < last.end + GAP_BYTES && may_hold(last);
    if let Some(last) = segments.last_mut().filter(is_near)
        && last.push(block.start, bytes)
    {
        last.end = block.end;
        return true;
    }
    let mut new = Segment::new(block.start, block.end, kind);
    let fits = new.push(block.start, bytes);
    segments.extend(fits.then_some(new));
    fits
}

impl Heap {
    /// Adds blocks (address, bytes) in any order, skipping blocks that are inside glibc's heap,
    /// were not copied completely, or overlap. They must have been live when the snapshot was
    /// taken. Returns the number of blocks added.
    pub fn add_foreign(&mut self, snapshot: &Snapshot, known: &mut [(u64, u64)]) -> u64 {
        known.sort_unstable();
        self.ranges.sort_unstable_by_key(|r| (r.start, r.end));
        let mut segments: Vec<Segment> = Vec::new();
        let mut places = Runs::new();
        let mut added = 0;
        let mut last_end = 0;
        let mut last_behind = 0;
        for &(address, bytes) in known.iter() {
            let words = bytes.max(1).div_ceil(WORD_BYTES);
            let end = address.saturating_add(words.saturating_mul(WORD_BYTES));
            let behind = self.ranges.partition_point(|r| r.end <= address);
            let of_malloc = self.ranges.get(behind).is_some_and(|r| r.start < end);
            if of_malloc || address % WORD_BYTES != 0 || address < last_end {
                continue;
            }
            let Some(region) = snapshot.region(address).filter(|r| end <= r.end()) else {
                continue;
            };
            // A segment lies within one region and contains no memory of malloc.
            let is_near = |last: &Segment| last.start >= region.start && behind == last_behind;
            if add_block(&mut segments, address..end, SegmentKind::Foreign, is_near) {
                (last_end, last_behind) = (end, behind);
                added += 1;
                add_run(&mut places, address..end);
            }
        }
        self.blocks = std::mem::take(&mut self.blocks).with(segments);
        self.ranges.extend(places);
        added
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::BlockTable;
    use crate::graph::finder::MarkOptions;
    use crate::graph::mark::mark;
    use crate::testing;

    #[test]
    fn blocks_of_malloc_between_them() {
        let start = 0x7000_0000u64;
        let mut memory = vec![0u8; 0x1_0000];
        let after = start + 0x9000;
        memory[..8].copy_from_slice(&after.to_le_bytes());
        let snapshot = testing::snapshot(vec![(start, memory)]);
        let mut heap = Heap::empty();
        // A fake chunk that looks as if it had its own mapping, in the middle of another
        // allocator's memory.
        let (low, high) = (start + 0x4000, start + 0x8000);
        let mut mapped = Segment::new(low, high, SegmentKind::Mapped { tight: true });
        assert!(mapped.push(low + 16, high - low));
        heap.blocks = BlockTable::new(vec![mapped]);
        heap.ranges = vec![low..high];
        let known = [(start + 0x1000, 64), (after, 64), (start + 0x40, u64::MAX)];
        assert_eq!(heap.add_foreign(&snapshot, &mut known.to_vec()), 2);
        let (number, offset) = heap.blocks.find(after).unwrap();
        assert_eq!(heap.blocks.get(number).address + offset, after);
        let marked = mark(&snapshot, &heap, MarkOptions::default());
        assert!(marked.reached.contains(number));
    }

    #[test]
    fn known_blocks_are_searched_and_the_rest_are_roots() {
        let start = 0x7000_0000u64;
        let mut memory = vec![0u8; 0x30_0000];
        let mut put = |at: u64, word: u64| {
            let at = (at - start) as usize;
            memory[at..at + 8].copy_from_slice(&word.to_le_bytes());
        };
        // Four blocks are known; the last one is far from the others. The word at +0x1000 is not in
        // a known block.
        let [a, b, c, d] = [
            start + 0x100,
            start + 0x108,
            start + 0x200,
            start + 0x28_0000,
        ];
        put(start + 0x1000, a);
        put(a, d + 5);
        put(b, c);
        let snapshot = testing::snapshot(vec![(start, memory)]);
        let mut heap = Heap::empty();
        heap.ranges = vec![start + 0x2000..start + 0x3000];
        let known = [
            (c, 60),
            (a, 8),
            (d, 10),
            (b, 3),
            (b, 8),
            (start + 0x2ff8, 16),
            (start + 0x2f_fff8, 9),
        ];
        assert_eq!(heap.add_foreign(&snapshot, &mut known.to_vec()), 4);
        assert_eq!(heap.blocks.len(), 4);
        let marked = mark(&snapshot, &heap, MarkOptions::default());
        let reached = [a, b, c, d].map(|block| {
            let (number, offset) = heap.blocks.find(block).unwrap();
            assert_eq!(offset, 0);
            marked.reached.contains(number)
        });
        assert_eq!(reached, [true, false, false, true]);
    }
}
