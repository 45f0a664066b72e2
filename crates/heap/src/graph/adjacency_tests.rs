//! Adjacent memory is searched as one range, regardless of the bounds of mappings, pages with
//! contents and blocks. A plain search over all bytes must find the same pointers, at any byte
//! offset.

use crate::blocks::{BlockTable, Segment, SegmentKind};
use crate::dissect::Heap;
use crate::graph::finder::MarkOptions;
use crate::graph::mark::mark;
use crate::snapshot::{Area, AreaKind, CopiedRegion, Snapshot};
use crate::testing;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::ops::Range;

const START: u64 = 0x5555_0000_1000;
/// Number of chunks of the heap. Each has words at its ends that belong to the allocator.
const CHUNKS: u64 = 6;
const CHUNK_BYTES: u64 = 48;
const USABLE_BYTES: u64 = CHUNK_BYTES - 8;
const HEADER_BYTES: u64 = 16;

/// A mapping: its length, whether it is copied, and whether its page has contents.
type Part = (usize, bool, bool);

#[derive(Clone, Debug)]
struct Memory {
    parts: Vec<Part>,
    /// Number of parts before the heap.
    heap_at: usize,
    /// Pointers: offset as a fraction of all bytes, block, byte in the block, value of the bits
    /// above the address, and number of bytes written.
    pointers: Vec<(prop::sample::Index, u64, u64, u64, usize)>,
}

fn memories() -> impl Strategy<Value = Memory> {
    let part = (
        1usize..40,
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.8),
    );
    let upper = prop_oneof![Just(0u64), any::<u64>()];
    let pointer = (
        any::<prop::sample::Index>(),
        0..CHUNKS,
        0..=USABLE_BYTES,
        upper,
        6usize..=8,
    );
    let parts = prop::collection::vec(part, 1..10);
    (parts, 0usize..10, prop::collection::vec(pointer, 0..5)).prop_map(
        |(parts, heap_at, pointers)| Memory {
            heap_at: heap_at % (parts.len() + 1),
            parts,
            pointers,
        },
    )
}

/// Lays out a process with this memory and its blocks.
fn lay_out(memory: &Memory) -> (Snapshot, Heap, Vec<Range<u64>>) {
    let heap_bytes = (HEADER_BYTES + CHUNKS * CHUNK_BYTES) as usize;
    let mut parts = memory.parts.clone();
    parts.insert(memory.heap_at, (heap_bytes, true, true));
    let all: usize = parts.iter().map(|part| part.0).sum();
    let mut bytes = vec![0u8; all];
    let before: usize = parts[..memory.heap_at].iter().map(|part| part.0).sum();
    let heap_start = START + before as u64;
    let first = heap_start + HEADER_BYTES;
    let starts = (0..CHUNKS).map(|i| first + i * CHUNK_BYTES);
    let blocks: Vec<Range<u64>> = starts.map(|start| start..start + USABLE_BYTES).collect();
    for (at, block, inside, upper, written) in &memory.pointers {
        let word = (blocks[*block as usize].start + inside) | (upper << 48);
        let at = at.index(all);
        let place = &mut bytes[at..all.min(at + written)];
        place.copy_from_slice(&word.to_le_bytes()[..place.len()]);
    }
    let mut snapshot = testing::snapshot(Vec::new());
    let mut at = START;
    for &(length, is_copied, has_contents) in &parts {
        let area = at..at + length as u64;
        at = area.end;
        if !is_copied {
            continue;
        }
        let from = (area.start - START) as usize;
        let copied = match has_contents {
            true => bytes[from..from + length].to_vec(),
            false => vec![0; length],
        };
        match snapshot.regions.last_mut() {
            Some(last) if last.end() == area.start => {
                last.bytes = [&last.bytes[..], &copied[..]].concat().into()
            }
            _ => snapshot.regions.push(CopiedRegion {
                start: area.start,
                bytes: copied.into(),
                runs: Vec::new(),
            }),
        }
        let region = snapshot.regions.last_mut().expect("one");
        region.runs.extend(has_contents.then_some(area.clone()));
        snapshot.meta.areas.push(Area {
            start: area.start,
            end: area.end,
            kind: AreaKind::Anonymous,
            name: String::new(),
        });
    }
    let heap_range = heap_start..heap_start + heap_bytes as u64;
    let mut segment = Segment::new(heap_range.start, heap_range.end, SegmentKind::Arena(0));
    for block in &blocks {
        assert!(segment.push(block.start, CHUNK_BYTES));
    }
    let heap = Heap {
        blocks: BlockTable::new(vec![segment]),
        ranges: vec![heap_range],
        ..Heap::empty()
    };
    (snapshot, heap, blocks)
}

/// Returns the blocks that are the target of a word with a byte in this range.
fn pointed_to(snapshot: &Snapshot, range: &Range<u64>, blocks: &[Range<u64>]) -> BTreeSet<usize> {
    let byte = |at: u64| {
        let region = snapshot.region(at)?;
        Some(region.bytes[(at - region.start) as usize])
    };
    let mut found = BTreeSet::new();
    for start in range.start - 7..range.end {
        // The value is unknown if its lower bytes were not copied.
        if (start..range.start).any(|at| byte(at).is_none()) {
            continue;
        }
        let bytes = (start..start + 8).map_while(byte);
        let word = bytes
            .zip(0..)
            .fold(0, |word, (byte, i)| word | (u64::from(byte) << (8 * i)));
        for address in [word, word & 0xffff_ffff_ffff] {
            let held = blocks
                .iter()
                .position(|block| block.start <= address && address <= block.end);
            found.extend(held);
        }
    }
    found
}

fn searched_plainly(snapshot: &Snapshot, heap: &Heap, blocks: &[Range<u64>]) -> BTreeSet<usize> {
    let heap = &heap.ranges[0];
    let mut waiting = BTreeSet::new();
    for run in snapshot.regions.iter().flat_map(|region| &region.runs) {
        for part in [
            run.start..run.end.min(heap.start),
            run.start.max(heap.end)..run.end,
        ] {
            if part.start < part.end {
                waiting.extend(pointed_to(snapshot, &part, blocks));
            }
        }
    }
    let mut reached = BTreeSet::new();
    while let Some(block) = waiting.pop_first() {
        if reached.insert(block) {
            waiting.extend(pointed_to(snapshot, &blocks[block], blocks));
        }
    }
    reached
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]
    #[test]
    fn a_pointer_over_any_edge_is_found(memory in memories()) {
        let (snapshot, heap, blocks) = lay_out(&memory);
        let marked = mark(&snapshot, &heap, MarkOptions::to_reclaim());
        let found: BTreeSet<usize> = (0..blocks.len()).filter(|&b| marked.reached.contains(b as u32)).collect();
        prop_assert_eq!(found, searched_plainly(&snapshot, &heap, &blocks));
    }
}
