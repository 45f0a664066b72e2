//! Parts of a process's heap that a search does not cover, and memory outside of all heaps.

use crate::units::{bytes, counted};
use memhook_heap::{Heap, Snapshot, unknown_memory};

/// Minimum number of bytes outside of all heaps for a note about them, if they also exceed a share
/// of the bytes of all blocks.
const MUCH_BYTES: u64 = 1 << 20;
const MUCH_SHARE: u64 = 4;

/// Returns each part of the process's heaps in which the search would miss a leak. Empty if it
/// covers all parts.
pub fn not_searched(snapshot: &Snapshot, heap: &Heap) -> Vec<String> {
    let mut parts = Vec::new();
    if !heap.findings.is_empty() {
        let places = counted(heap.findings.len() as u64, "place");
        parts.push(format!(
            "the heap does not parse at {places}: blocks there may be missing, and what they may hold counts as reachable"
        ));
    }
    for undissected in &heap.undissected {
        parts.push(format!("{undissected}: its blocks are not reported"));
    }
    for module in &snapshot.meta.modules {
        if let Some(allocator) = &module.allocator
            && heap.allocator_of(module).is_none()
            && !heap.undissected.iter().any(|u| u.allocator == allocator)
        {
            parts.push(format!(
                "the process has {allocator} too ({}): its blocks are searched for pointers, not reported",
                module.name()
            ));
        }
    }
    if !heap.mmapped_exact {
        let (count, bytes) = heap.mmapped;
        parts.push(match heap.parameters {
            Some(p) => format!(
                "{count} mapped chunks of {bytes} bytes were found, malloc counts {} of {}: all are treated as reachable",
                p.mmapped_chunks, p.mmapped_bytes
            ),
            None => format!(
                "malloc's own count of mapped chunks was not found: all {count} that were found are treated as reachable"
            ),
        });
    }
    parts
}

/// Returns a note on memory outside of all heaps. `block_bytes` are the bytes of all blocks.
pub(super) fn in_no_heap(snapshot: &Snapshot, heap: &Heap, block_bytes: u64) -> Option<String> {
    let unknown = unknown_memory(snapshot, heap);
    (unknown >= MUCH_BYTES && unknown > block_bytes / MUCH_SHARE).then(|| {
        format!(
            "{} of memory belong to no known heap, but to the program's own or to another allocator: searched for pointers, not reported",
            bytes(unknown)
        )
    })
}
