//! Blocks with their own mapping, if malloc's count of them was not found or disagrees.
//!
//! glibc recognizes such a chunk only by a flag and a size, and any page may happen to begin with
//! these values. If malloc's own count agrees with the number found, each of them is a chunk.
//! Otherwise, only the traced chunks are certain. Any other may be a mapping that the program
//! itself made, so it counts as reachable, and there is no verdict on it.

use crate::reached::{Search, Traced};
use memhook_heap::{Heap, SegmentKind};
use memhook_report::{bytes, counted};

/// Trusts the mapped chunks that were traced. Returns the other chunks, which count as reachable.
/// Unless all blocks were traced, adds a gap about these chunks.
pub(crate) fn doubtful_mappings(
    heap: &mut Heap,
    traced: &Traced,
    search: Search,
    gaps: &mut Vec<String>,
) -> Vec<u64> {
    if heap.mmapped_exact {
        return Vec::new();
    }
    heap.mmapped_exact = true;
    let unknown = unknown_mappings(heap, traced);
    if !unknown.is_empty() && !search.is_complete {
        let sizes = unknown.iter().filter_map(|&address| {
            let (number, _) = heap.blocks.find(address)?;
            Some(heap.blocks.get(number).bytes)
        });
        gaps.push(format!(
            "{} of {} in mappings of their own disagree with malloc's own count: whether they leaked is not known",
            counted(unknown.len() as u64, "block"),
            bytes(sizes.sum())
        ));
    }
    unknown
}

/// Returns untraced blocks that have their own mapping.
pub(crate) fn unknown_mappings(heap: &Heap, traced: &Traced) -> Vec<u64> {
    let segments = heap.blocks.segments().iter().enumerate();
    let mapped = segments.filter(|(_, s)| matches!(s.kind, SegmentKind::Mapped { .. }));
    let places = mapped.flat_map(|(index, _)| heap.blocks.places(index));
    let blocks = places.map(|place| heap.blocks.at(place).0);
    blocks
        .filter(|&block| traced.of(block).is_none())
        .map(|block| block.address)
        .collect()
}
