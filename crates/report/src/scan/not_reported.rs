//! Memory of a process whose blocks are in no report.

use crate::units::bytes;
use memhook_heap::{Heap, Snapshot, unknown_memory};

/// Memory in no heap gets a note from this size on, if it is more than this share of the bytes of all blocks.
const MUCH_BYTES: u64 = 1 << 20;
const MUCH_SHARE: u64 = 4;

/// A note on each part of a process's memory whose blocks are not known; `block_bytes` are those of all that are.
pub(super) fn not_reported(snapshot: &Snapshot, heap: &Heap, block_bytes: u64) -> Vec<String> {
    let mut notes = Vec::new();
    for module in &snapshot.meta.modules {
        if let Some(allocator) = &module.allocator
            && heap.allocator_of(module).is_none()
        {
            notes.push(format!(
                "the process has {allocator} too ({}): its blocks are searched for pointers, not reported",
                module.name()
            ));
        }
    }
    for undissected in &heap.undissected {
        notes.push(format!("{undissected}: its blocks are not reported"));
    }
    let unknown = unknown_memory(snapshot, heap);
    if unknown >= MUCH_BYTES && unknown > block_bytes / MUCH_SHARE {
        notes.push(format!(
            "{} of memory are in no heap that is known, the program's own or another allocator's: searched for pointers, not reported",
            bytes(unknown)
        ));
    }
    notes
}
