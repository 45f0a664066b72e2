//! Memory of a process outside of all heaps: it belongs to an unknown allocator, or to the program
//! itself.

use super::roots::dead_stacks;
use crate::dissect::Heap;
use crate::ranges::{Runs, intersection, joined, run_bytes};
use crate::snapshot::{Area, AreaKind, Snapshot};

/// Returns the bytes of written anonymous memory outside of heaps and stacks. This memory is
/// searched for pointers, but no report includes its contents.
pub fn unknown_memory(snapshot: &Snapshot, heap: &Heap) -> u64 {
    let threads = &snapshot.meta.threads;
    let is_stack = |area: &&Area| {
        let is_in = |address: u64| (area.start..area.end).contains(&address);
        threads.iter().any(|thread| is_in(thread.rsp))
    };
    let mut known = heap.ranges.clone();
    known.extend(dead_stacks(snapshot));
    let known = joined(known);
    let mut written = Runs::new();
    let areas = snapshot.meta.areas.iter();
    for area in areas.filter(|area| area.kind == AreaKind::Anonymous && !is_stack(area)) {
        let runs = snapshot.region(area.start).map_or(&[][..], |r| &r.runs[..]);
        let first = runs.partition_point(|run| run.end <= area.start);
        let runs = runs[first..].iter().take_while(|run| run.start < area.end);
        written.extend(runs.map(|run| run.start.max(area.start)..run.end.min(area.end)));
    }
    run_bytes(&written) - run_bytes(&intersection(&written, &known))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::ThreadState;
    use crate::testing::snapshot;

    #[test]
    fn what_is_in_no_heap_and_no_stack_is_unknown() {
        let bytes = |count: usize| vec![1; count];
        let (one, other, stack) = (0x10_0000, 0x50_0000, 0x90_0000);
        let mut snapshot = snapshot(vec![
            (one, bytes(0x4000)),
            (other, bytes(0x2000)),
            (stack, bytes(0x8000)),
        ]);
        snapshot.meta.threads.push(ThreadState {
            rsp: stack + 0x7000,
            ..ThreadState::default()
        });
        let mut heap = Heap::empty();
        assert_eq!(unknown_memory(&snapshot, &heap), 0x6000);
        heap.ranges.push(one..one + 0x3000);
        assert_eq!(unknown_memory(&snapshot, &heap), 0x3000);
        heap.ranges.push(other - 0x1000..other + 0x2000);
        assert_eq!(unknown_memory(&snapshot, &heap), 0x1000);
    }
}
