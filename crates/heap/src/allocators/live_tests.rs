//! Damages heaps of a real program, and checks that every block that passes the last live check is also live in a
//! dissection.

use super::live_check::Standstill;
use crate::blocks::Block;
use crate::snapshot::words;
use crate::testing::{changes, shell_on, while_changed};
use crate::{Heap, Snapshot, dissect};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::RefCell;

/// Returns the blocks that pass a heap's live check, which reads the memory of a snapshot. Returns none if the check
/// cannot decide.
fn live(heap: &Heap, snapshot: &Snapshot, blocks: &[Block]) -> Vec<bool> {
    let check = heap.others[0].live_check.as_ref().expect("it has one");
    let threads = snapshot.meta.threads.iter();
    let still = Standstill {
        memory: snapshot,
        thread_pointers: threads.map(|thread| thread.fs_base).collect(),
    };
    let live = check.are_live(&still, blocks);
    live.unwrap_or_else(|_| vec![false; blocks.len()])
}

/// Returns words of the heap that may be links, and words of the allocator's own data.
fn places(heap: &Heap, snapshot: &Snapshot) -> Vec<u64> {
    let ranges = &heap.others[0].ranges;
    let leads_in = |word: u64| ranges.iter().any(|range| range.contains(&word));
    let mut found = Vec::new();
    for range in ranges {
        let bytes = snapshot.bytes(range.start, range.end - range.start);
        let words = words(bytes.unwrap_or_default());
        for (place, word) in (range.start..).step_by(8).zip(words) {
            let is_data = heap.blocks.find(place).is_none();
            if word != 0 && (is_data || leads_in(word)) {
                found.push(place);
            }
        }
    }
    found
}

fn check(library: &str) {
    let mut snapshot = shell_on(Some(library));
    let whole = dissect(&snapshot).expect("it has a heap");
    assert!(whole.findings.is_empty(), "{:?}", whole.findings);
    let is_its = |block: &Block| {
        let ranges = &whole.others[0].ranges;
        ranges.iter().any(|range| range.contains(&block.address))
    };
    let blocks: Vec<Block> = whole.blocks.iter().map(|(_, b)| b).filter(is_its).collect();
    assert!(blocks.len() > 3000);
    let dead = live(&whole, &snapshot, &blocks);
    assert_eq!(dead.iter().filter(|is_live| !**is_live).count(), 0);
    // No block may begin between two of the blocks, and none may have another size.
    let beside = blocks
        .iter()
        .flat_map(|b| [(b.address + 8, b.bytes), (b.address - 8, b.bytes)]);
    let is_no_block = |&(address, _): &(u64, u64)| {
        let found = whole.blocks.find(address);
        found.is_none_or(|(_, offset)| offset != 0)
    };
    let larger = blocks.iter().map(|b| (b.address, b.bytes * 2 + 64));
    let wrong = beside.filter(is_no_block).chain(larger);
    let wrong: Vec<Block> = wrong
        .map(|(address, bytes)| Block { address, bytes })
        .collect();
    assert!(!live(&whole, &snapshot, &wrong).contains(&true));

    let places = places(&whole, &snapshot);
    assert!(places.len() > 1000, "{}", places.len());
    let mut runner = TestRunner::new(ProptestConfig::with_cases(150));
    let snapshot = RefCell::new(&mut snapshot);
    let checked = runner.run(&changes(), |changes| {
        while_changed(&mut snapshot.borrow_mut(), &places, changes, |snapshot| {
            let live = live(&whole, snapshot, &blocks);
            if let Ok(heap) = dissect(snapshot)
                && heap.findings.is_empty()
                && !heap.others.is_empty()
            {
                for (block, _) in blocks.iter().zip(live).filter(|(_, is_live)| *is_live) {
                    let found = heap.blocks.find(block.address);
                    prop_assert!(found.is_some_and(|f| f.1 == 0), "{block:x?} is not live");
                }
            }
            Ok(())
        })
    });
    checked.expect("no damage revives a block");
}

#[test]
fn of_jemalloc() {
    check("libjemalloc.so.2");
}

#[test]
fn of_mimalloc() {
    check("libmimalloc.so.2");
}

#[test]
fn of_tcmalloc() {
    check("libtcmalloc_minimal.so.4");
}
