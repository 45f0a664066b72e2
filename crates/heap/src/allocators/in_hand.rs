//! Blocks in transit: while a thread is in the middle of malloc or free, the block that it takes or returns is in no
//! list. Only the thread's registers and the allocator's stack frames have its address.

use crate::snapshot::{Snapshot, ThreadState, words};
use rustc_hash::FxHashSet;

/// Upper bound on the size of an allocator's stack frames.
const FRAMES_BYTES: u64 = 1024;

/// Returns the words in the registers of some threads and at the tops of their stacks.
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
