//! Tests the dissection of a real program's jemalloc heap with damaged structures.

use super::base_blocks::BaseBlocks;
use super::layout::LAYOUTS;
use super::tree::{self, each_word};
use crate::snapshot::Snapshot;
use crate::testing::{changes, shell_on, while_changed};
use crate::{Heap, dissect};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// Checks that the blocks are in memory of the allocator and do not overlap.
fn check(heap: &Heap) {
    let mut end = 0;
    for (_, block) in heap.blocks.iter() {
        assert!(block.address >= end, "{block:x?} begins before {end:#x}");
        end = block.address + block.bytes;
        let after = heap
            .ranges
            .partition_point(|range| range.end <= block.address);
        let range = heap.ranges.get(after);
        let is_inside = range.is_some_and(|r| r.start <= block.address && end <= r.end);
        assert!(is_inside, "{block:x?} is outside of all ranges");
    }
}

/// Returns the addresses of the words in jemalloc's own data and in the lists of its thread caches.
fn places(snapshot: &Snapshot) -> Vec<u64> {
    let mut found = Vec::new();
    let mut base = BaseBlocks::new(snapshot);
    for tree in tree::find(snapshot, LAYOUTS[0], &mut base) {
        tree.each_entry(snapshot, &mut base, |_| {});
        each_word(snapshot, tree.root_range(), |place, _| found.push(place));
    }
    for block in base.all() {
        each_word(snapshot, block, |place, _| found.push(place));
    }
    for thread in &snapshot.meta.threads {
        each_word(
            snapshot,
            thread.fs_base - 0x1000..thread.fs_base,
            |place, _| {
                found.push(place);
            },
        );
    }
    found
}

#[test]
fn a_damaged_heap_is_no_wrong_one() {
    let mut snapshot = shell_on(Some("libjemalloc.so.2"));
    let whole = dissect(&snapshot).expect("it has a heap");
    assert!(whole.findings.is_empty(), "{:?}", whole.findings);
    assert!(whole.others[0].allocator == "jemalloc" && whole.blocks.len() > 3000);
    check(&whole);
    let places = places(&snapshot);
    assert!(places.len() > 1000);
    let mut runner = TestRunner::new(ProptestConfig::with_cases(300));
    let snapshot = std::cell::RefCell::new(&mut snapshot);
    let checked = runner.run(&changes(), |changes| {
        while_changed(&mut snapshot.borrow_mut(), &places, changes, |snapshot| {
            if let Ok(heap) = dissect(snapshot) {
                check(&heap);
            }
        });
        Ok(())
    });
    checked.expect("no damage does harm");
}
