//! A heap of mimalloc 3, made by hand: whole, and damaged.

use crate::allocators::live_check::Standstill;
use crate::blocks::Block;
use crate::snapshot::{ModuleInfo, Snapshot};
use crate::testing::{changes, put, snapshot, while_changed};
use crate::{Heap, dissect};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

const DATA: u64 = 0x40_0000;
const TABLE: u64 = 0x1000_0000;
const SECOND: u64 = 0x1100_0000;
const ARENA: u64 = 0x2000_0000;
const SLICE: u64 = 64 << 10;
const TABLE_BYTES: u64 = 4096;
const DESCRIPTION: u64 = 120;
const PAGES: u64 = 8;
/// Free blocks of each page, in its two lists of the own thread and in that of the others.
const FREE: [u64; 3] = [3, 1, 2];

fn description(page: u64) -> u64 {
    ARENA + 0x1000 + page * DESCRIPTION
}

/// Address, size and number of the blocks of a page.
fn blocks(page: u64) -> (u64, u64, u64) {
    let bytes = 64 << page;
    (ARENA + (1 + page) * SLICE, bytes, SLICE / bytes)
}

/// Each page has blocks of twice the size of the one before.
fn heap() -> Snapshot {
    let bytes = |count: u64| vec![0; count as usize];
    let mut found = snapshot(vec![
        (DATA, bytes(4096)),
        (TABLE, bytes(TABLE_BYTES + SLICE)),
        (SECOND, bytes(SLICE)),
        (ARENA, bytes(2 * PAGES * SLICE)),
    ]);
    found.meta.modules.push(ModuleInfo {
        data: std::iter::once(DATA..DATA + 4096).collect(),
        ..ModuleInfo::default()
    });
    let mut words = vec![
        (DATA + 64, TABLE),
        (TABLE, TABLE + TABLE_BYTES),
        (TABLE + 8, SECOND),
        (ARENA + 40, 512),
        (ARENA + 48, 1),
    ];
    for page in 0..PAGES {
        let (start, bytes, count) = blocks(page);
        let at = description(page);
        let used = count - FREE[0] - FREE[1];
        let list = |first: u64, many: u64| {
            let block = move |i: u64| start + (first + i) * bytes;
            (0..many).map(move |i| (block(i), if i + 1 < many { block(i + 1) } else { 0 }))
        };
        words.extend(list(0, FREE[0]));
        words.extend(list(FREE[0], FREE[1]));
        words.extend(list(FREE[0] + FREE[1], FREE[2]));
        words.extend([
            (SECOND + 8 * (1 + page), at),
            (at, 0x7000_0000),
            (at + 8, start),
            (at + 16, used | count << 16 | count << 32),
            (at + 24, start + FREE[0] * bytes),
            // Its lowest bit says that it has an owner.
            (at + 32, (start + (FREE[0] + FREE[1]) * bytes) | 1),
            (at + 40, bytes),
            (at + 48, start),
            (at + 96, ARENA),
            (at + 104, (1 + page) | 1 << 32),
            (at + 112, 7),
        ]);
    }
    for (place, word) in words {
        put(&mut found, place, word);
    }
    found
}

/// Checks that blocks are those of the pages, or not there.
fn check(heap: &Heap) {
    let mut end = 0;
    for (_, block) in heap.blocks.iter() {
        assert!(block.address >= end, "{block:x?} begins before {end:#x}");
        end = block.address + block.bytes;
        let mut ranges = heap.ranges.iter();
        let is_inside = ranges.any(|r| r.start <= block.address && end <= r.end);
        assert!(is_inside, "{block:x?} is outside of all ranges");
    }
}

#[test]
fn what_is_in_no_list_is_live() {
    let heap = dissect(&heap()).expect("a heap");
    assert_eq!(heap.others[0].to_string(), "mimalloc 3.2 or 3.3");
    assert!(heap.findings.is_empty(), "{:?}", heap.findings);
    let mut expected = Vec::new();
    for page in 0..PAGES {
        let (start, bytes, count) = blocks(page);
        let live = FREE.iter().sum()..count;
        expected.extend(live.map(|i| (start + i * bytes, bytes)));
    }
    let found = heap.blocks.iter().map(|(_, block)| block);
    let found: Vec<_> = found.map(|block| (block.address, block.bytes)).collect();
    assert_eq!(found, expected);
    check(&heap);
}

/// Which blocks are live when they are asked for once more.
fn live(heap: &Heap, snapshot: &Snapshot, blocks: &[Block]) -> Vec<bool> {
    let check = heap.others[0].live_check.as_ref().expect("it has one");
    let still = Standstill {
        memory: snapshot,
        thread_pointers: Vec::new(),
    };
    check.are_live(&still, blocks).expect("it knows")
}

#[test]
fn what_is_released_is_live_no_more() {
    let mut snapshot = heap();
    let heap = dissect(&snapshot).expect("a heap");
    let found: Vec<Block> = heap.blocks.iter().map(|(_, block)| block).collect();
    assert!(!live(&heap, &snapshot, &found).contains(&false));
    let other = |address: u64, bytes| Block { address, bytes };
    let first = found[0];
    let wrong = [
        other(first.address + 8, first.bytes),
        other(first.address, first.bytes * 2),
        other(blocks(0).0, first.bytes),
        other(ARENA - SLICE, 64),
        other(8, 8),
    ];
    assert!(!live(&heap, &snapshot, &wrong).contains(&true));
    // Another thread releases it.
    let list = description(0) + 32;
    let before = snapshot.word(list).expect("a list");
    put(&mut snapshot, first.address, before & !1);
    put(&mut snapshot, list, first.address | 1);
    assert_eq!(live(&heap, &snapshot, &found[..2]), [false, true]);
}

/// Else a program could have one table searched half a million times.
#[test]
fn a_table_for_two_places_is_none() {
    let mut snapshot = heap();
    put(&mut snapshot, TABLE + 16, SECOND);
    assert!(dissect(&snapshot).is_err());
}

/// Arenas that claim more than there can be are not walked.
#[test]
fn arenas_without_measure_are_damaged() {
    let mut snapshot = heap();
    put(&mut snapshot, ARENA + 40, 1 << 40);
    assert!(dissect(&snapshot).is_err());
}

#[test]
fn a_damaged_map_is_no_wrong_one() {
    let mut snapshot = heap();
    let mut places = vec![DATA + 64, TABLE, TABLE + 8, ARENA + 40, ARENA + 48];
    places.extend((0..PAGES).map(|page| SECOND + 8 * (1 + page)));
    for page in 0..PAGES {
        places.extend((0..DESCRIPTION / 8).map(|i| description(page) + 8 * i));
        let (start, bytes, _) = blocks(page);
        places.extend((0..6).map(|i| start + i * bytes));
    }
    let mut runner = TestRunner::new(ProptestConfig::with_cases(1000));
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
