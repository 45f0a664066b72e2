//! Where the stacks of threads are.

use crate::glibc::ended_threads::{bounds, ended_stacks};
use crate::ranges::joined;
use crate::snapshot::{AreaKind, Snapshot};
use std::ops::Range;

/// Whose a stack is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackOwner {
    /// The thread with this id.
    Thread(i32),
    /// Threads that have ended: glibc keeps their stacks for the next ones.
    Ended,
}

/// The stacks with their thread-local storage, in address order and apart from each other.
pub fn stacks(snapshot: &Snapshot) -> Vec<(Range<u64>, StackOwner)> {
    let mut found: Vec<(Range<u64>, StackOwner)> = Vec::new();
    for thread in &snapshot.meta.threads {
        let area = snapshot.area(thread.rsp);
        // The initial thread's is a mapping of its own, which has no descriptor at its end.
        let range = match area.filter(|area| area.kind == AreaKind::Stack) {
            Some(area) => Some(area.start..area.end),
            None => bounds(snapshot, thread.fs_base),
        };
        // A thread that no C library made has its stack wherever its stack pointer says.
        let range = range.or_else(|| area.map(|area| area.start..area.end));
        found.extend(range.map(|range| (range, StackOwner::Thread(thread.tid))));
    }
    for range in joined(ended_stacks(snapshot)) {
        // Up to the end of the page with the descriptor.
        let end = range.end.next_multiple_of(4096);
        let whole = bounds(snapshot, range.end).unwrap_or(range.start..end);
        found.push((whole, StackOwner::Ended));
    }
    found.sort_by_key(|(range, _)| (range.start, range.end));
    let mut end = 0;
    for (range, _) in &mut found {
        range.start = range.start.max(end);
        end = end.max(range.end);
    }
    found.retain(|(range, _)| range.start < range.end);
    found
}
