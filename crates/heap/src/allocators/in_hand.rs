//! Blocks in the hands of threads: while a thread is in the middle of malloc or free, what it takes or puts back is in
//! no list, and only its registers and the allocator's frames on its stack have the address.

use crate::snapshot::{Snapshot, ThreadState, words};
use rustc_hash::FxHashSet;

/// Frames of an allocator take less than this.
const FRAMES_BYTES: u64 = 1024;

/// Words in the registers of some of the threads and at the tops of their stacks.
pub(super) fn in_hand(
    snapshot: &Snapshot,
    is_wanted: impl Fn(&ThreadState) -> bool,
) -> FxHashSet<u64> {
    let mut found = FxHashSet::default();
    for thread in snapshot
        .meta
        .threads
        .iter()
        .filter(|thread| is_wanted(thread))
    {
        found.extend(thread.words.iter().copied());
        let end = snapshot.region(thread.rsp).map_or(0, |region| region.end());
        let bytes = end.saturating_sub(thread.rsp).min(FRAMES_BYTES);
        let stack = snapshot.bytes(thread.rsp, bytes);
        found.extend(words(stack.unwrap_or_default()));
    }
    found
}
