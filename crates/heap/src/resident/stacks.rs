//! Address ranges of the threads' stacks.

use crate::ended_threads::{bounds, ended_stacks};
use crate::ranges::joined;
use crate::snapshot::{AreaKind, Snapshot};
use std::ops::Range;

/// Owner of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackOwner {
    /// The thread with this id.
    Thread(i32),
    /// Ended threads. glibc keeps their stacks for new threads.
    Ended,
}

/// Returns the stacks with their thread-local storage, in address order and disjoint.
pub fn stacks(snapshot: &Snapshot) -> Vec<(Range<u64>, StackOwner)> {
    let mut found: Vec<(Range<u64>, StackOwner)> = Vec::new();
    for thread in &snapshot.meta.threads {
        let area = snapshot.area(thread.rsp);
        // The initial thread's stack has its own mapping, without a descriptor at its end.
        let range = match area.filter(|area| area.kind == AreaKind::Stack) {
            Some(area) => Some(area.start..area.end),
            None => bounds(snapshot, thread.fs_base),
        };
        // For a thread that no C library created, the stack pointer shows where the stack is.
        let range = range.or_else(|| area.map(|area| area.start..area.end));
        found.extend(range.map(|range| (range, StackOwner::Thread(thread.tid))));
    }
    for range in joined(ended_stacks(snapshot)) {
        // The stack extends to the end of the page with the descriptor.
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
