//! Blocks that the program's own allocator has cut out of larger blocks.
//!
//! A pool takes slabs from malloc, or maps them, and hands out pieces. A search for leaked pieces
//! must not treat a slab as one block, because a pointer to one piece would keep all pieces
//! reachable. So each piece is a block. The rest of a slab, where the pool keeps headers, lists and
//! unused memory, counts as roots, and so do pieces from before the trace. A leaked piece may
//! therefore look reachable, but a reachable piece never looks leaked.

use crate::blocks::{BlockTable, Segment, SegmentKind};
use crate::dissect::Heap;
use crate::graph::foreign_blocks::add_block;
use crate::ranges::{Runs, joined, without};
use crate::snapshot::Snapshot;
use std::cmp::Reverse;
use std::ops::Range;

const WORD_BYTES: u64 = 8;

/// A block for the table: start, bytes, kind of segment.
type Placed = (u64, u64, SegmentKind);

fn end_of(&(address, bytes): &(u64, u64)) -> u64 {
    address.saturating_add(bytes.max(1))
}

impl Heap {
    /// Returns the heap with `pieces` (address, bytes) as blocks. Where pieces are nested, the
    /// innermost become blocks. Pieces are left out if they are not aligned, partly overlap another
    /// piece, were not copied, or are gone because their slab is free. `released` is the memory of
    /// released pieces.
    pub fn cut(
        &self,
        snapshot: &Snapshot,
        pieces: &mut Vec<(u64, u64)>,
        released: &[(u64, u64)],
    ) -> Heap {
        pieces.sort_unstable_by_key(|&(address, bytes)| (address, Reverse(bytes)));
        let of_allocator = joined(self.ranges.clone());
        let slabs = self.slabs(pieces);
        let is_alive = |piece: &(u64, u64)| {
            let end = end_of(piece);
            within_one(&slabs, piece.0, end) || is_apart(&of_allocator, piece.0, end)
        };
        pieces.retain(is_alive);
        let innermost = innermost(pieces);
        let mut placed: Vec<Placed> = innermost
            .iter()
            .map(|&(address, bytes)| (address, bytes, SegmentKind::Described))
            .collect();
        for (_, block) in self.blocks.iter() {
            let is_uncertain = !self.mmapped_exact
                && matches!(
                    self.blocks.segments()[self.segment_at(block.address)].kind,
                    SegmentKind::Mapped { .. }
                );
            if is_uncertain || within_one(&slabs, block.address, block.address + 1) {
                continue;
            }
            placed.push((block.address, block.bytes, SegmentKind::Foreign));
        }
        placed.sort_unstable_by_key(|&(address, ..)| address);
        let (segments, places) = segments(snapshot, &placed);
        let mut ranges: Runs = of_allocator
            .iter()
            .flat_map(|range| without(range.start, range.end, &slabs))
            .collect();
        ranges.extend(left_over(released, pieces));
        ranges.extend(places);
        Heap {
            blocks: BlockTable::new(segments),
            unparsed: self.unparsed.clone(),
            ranges: joined(ranges),
            ..Heap::empty()
        }
    }

    /// Returns the blocks out of which pieces are cut, sorted and disjoint.
    fn slabs(&self, pieces: &[(u64, u64)]) -> Runs {
        let blocks = self.blocks.iter().map(|(_, block)| block);
        let slabs = blocks.filter_map(|block| {
            let end = block.address + block.bytes.max(1);
            let first = pieces.partition_point(|&(address, _)| address < block.address);
            let has_piece = pieces.get(first).is_some_and(|piece| piece.0 < end);
            has_piece.then_some(block.address..end)
        });
        slabs.collect()
    }

    fn segment_at(&self, address: u64) -> usize {
        let segments = self.blocks.segments();
        let after = segments.partition_point(|segment| segment.start <= address);
        after.saturating_sub(1)
    }
}

/// Returns true if one of the sorted ranges contains this range.
fn within_one(ranges: &[Range<u64>], start: u64, end: u64) -> bool {
    let at = ranges.partition_point(|range| range.end <= start);
    let found = ranges.get(at);
    found.is_some_and(|range| range.start <= start && end <= range.end)
}

fn is_apart(ranges: &[Range<u64>], start: u64, end: u64) -> bool {
    let at = ranges.partition_point(|range| range.end <= start);
    ranges.get(at).is_none_or(|range| range.start >= end)
}

/// Returns the pieces in which no other piece begins or is contained.
fn innermost(pieces: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut next = u64::MAX;
    let from_the_end = pieces.iter().rev().filter(|piece| {
        let is_innermost = end_of(piece) <= next;
        if is_innermost {
            next = piece.0;
        }
        is_innermost
    });
    let mut found: Vec<(u64, u64)> = from_the_end.copied().collect();
    found.reverse();
    found
}

/// Returns the parts of released pieces that no other piece covers.
fn left_over(released: &[(u64, u64)], pieces: &[(u64, u64)]) -> Runs {
    let live = joined(pieces.iter().map(|p| p.0..end_of(p)).collect());
    let released = released.iter().map(|piece| piece.0..end_of(piece));
    let apart = released.filter(|range| is_apart(&live, range.start, range.end));
    apart.collect()
}

/// Returns segments for sorted blocks, and the ranges of the blocks in them.
fn segments(snapshot: &Snapshot, placed: &[Placed]) -> (Vec<Segment>, Runs) {
    let mut segments: Vec<Segment> = Vec::new();
    let mut places = Runs::new();
    let mut last_end = 0;
    for &(address, bytes, kind) in placed {
        let words = bytes.max(1).div_ceil(WORD_BYTES);
        let end = address.saturating_add(words.saturating_mul(WORD_BYTES));
        if address % WORD_BYTES != 0 || address < last_end {
            continue;
        }
        let Some(region) = snapshot.region(address).filter(|r| end <= r.end()) else {
            continue;
        };
        let is_near = |last: &Segment| last.kind == kind && last.start >= region.start;
        if add_block(&mut segments, address..end, kind, is_near) {
            last_end = end;
            places.push(address..end);
        }
    }
    (segments, places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::finder::MarkOptions;
    use crate::graph::mark::mark;
    use crate::testing;

    const START: u64 = 0x7000_0000;

    fn memory(words: &[(u64, u64)]) -> Snapshot {
        let mut memory = vec![0u8; 0x1_0000];
        for &(at, word) in words {
            let at = (at - START) as usize;
            memory[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        testing::snapshot(vec![(START, memory)])
    }

    /// Lays out malloc's memory from +0x1000 on: a block, a slab, and a free chunk after it.
    fn heap() -> Heap {
        let mut arena = Segment::new(START + 0x1010, START + 0x8000, SegmentKind::Arena(0));
        assert!(arena.push(START + 0x1010, 0x40));
        assert!(arena.push(START + 0x2010, 0x1000));
        let mut heap = Heap::empty();
        heap.blocks = BlockTable::new(vec![arena]);
        heap.ranges = std::iter::once(START + 0x1000..START + 0x8000).collect();
        heap
    }

    fn reached(snapshot: &Snapshot, heap: &Heap, address: u64) -> Option<bool> {
        let marked = mark(snapshot, heap, MarkOptions::default());
        let (number, offset) = heap.blocks.find(address)?;
        (offset == 0).then(|| marked.reached.contains(number))
    }

    #[test]
    fn pieces_are_found_one_by_one() {
        let [a, b, c, d] = [0x2020, 0x2060, 0x20a0, 0x20e0].map(|at| START + at);
        let words = [
            (START, a + 8),      // a root points into the first piece,
            (a, START + 0x1010), // which points to a block of malloc's,
            (START + 0x1010, c), // which points to another piece.
            (START + 0x3000, d), // The header of a fourth one, in the slab, does not belong to any.
            (b, b),
        ];
        let snapshot = memory(&words);
        let mut pieces = vec![(b, 40), (a, 64), (d, 10), (c, 60)];
        let cut = heap().cut(&snapshot, &mut pieces, &[]);
        let found = [a, b, c, d].map(|piece| reached(&snapshot, &cut, piece));
        assert_eq!(found, [Some(true), Some(false), Some(true), Some(true)]);
    }

    #[test]
    fn what_released_pieces_hold_keeps_nothing() {
        let [a, b] = [START + 0x2020, START + 0x2060];
        let snapshot = memory(&[(b, a), (START + 0x7000, a)]);
        let of = |released: &[(u64, u64)]| {
            let cut = heap().cut(&snapshot, &mut vec![(a, 64)], released);
            reached(&snapshot, &cut, a)
        };
        assert_eq!(of(&[]), Some(true), "it may be a header");
        assert_eq!(of(&[(b, 64)]), Some(false));
        // The memory has been cut into other pieces.
        assert_eq!(of(&[(a + 32, 64)]), Some(true));
    }

    #[test]
    fn the_innermost_are_blocks() {
        let [outer, inner] = [START + 0x2020, START + 0x2020];
        let snapshot = memory(&[(START, inner)]);
        let mut pieces = vec![(inner, 16), (outer, 512), (inner + 16, 16)];
        let cut = heap().cut(&snapshot, &mut pieces, &[]);
        assert_eq!(reached(&snapshot, &cut, inner), Some(true));
        assert_eq!(reached(&snapshot, &cut, inner + 16), Some(false));
        assert_eq!(cut.blocks.len(), 3, "the slab and the outer piece are none");
    }

    #[test]
    fn pieces_go_with_their_slab() {
        let snapshot = memory(&[]);
        let free = START + 0x4000;
        let mapped = START + 0x9000;
        let mut pieces = vec![(free, 64), (mapped, 64), (START + 0x2021, 8)];
        let cut = heap().cut(&snapshot, &mut pieces, &[]);
        assert_eq!(reached(&snapshot, &cut, free), None);
        assert_eq!(reached(&snapshot, &cut, mapped), Some(false));
        assert!(!pieces.contains(&(free, 64)));
    }
}
