//! Tests with a synthetic heap of mimalloc 3, whole and damaged.

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
/// Where a table of 3.6 has its entries.
const HEAD: u64 = 80;
/// Bits of `pages` in an arena of 3.0, which mark the start of each page.
const BITMAP: u64 = ARENA + 0x8000;
const DESCRIPTION: u64 = 136;
const PAGES: u64 = 8;
/// Number of free blocks of each page: in the two lists of the page's own thread, and in the list for other threads.
const FREE: [u64; 3] = [3, 1, 2];

/// Releases with different layouts.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Release {
    /// Pages begin with their descriptors.
    In3_0,
    /// Descriptors are separate from pages. This is the case in secure builds.
    In3_1,
    In3_3,
    Since3_4,
    /// Descriptors are in a table at the beginning of the arena.
    In3_6,
    /// Builds with encoded lists, whose keys are zero here, so that all links except the last are stored unchanged.
    Secure3_1,
    Secure3_4,
}
use Release::{In3_0, In3_1, In3_3, In3_6, Secure3_1, Secure3_4, Since3_4};

impl Release {
    fn description(self, page: u64) -> u64 {
        match self {
            In3_0 => ARENA + self.slice(page) * SLICE,
            In3_6 => ARENA + self.slice(page) * 128,
            _ => ARENA + 0x1000 + page * DESCRIPTION,
        }
    }

    /// Number of the slice that a page has.
    fn slice(self, page: u64) -> u64 {
        match self {
            In3_6 => 9 + page,
            _ => 1 + page,
        }
    }

    /// Address of `mi_arena_t`.
    fn arena(self) -> u64 {
        match self {
            In3_6 => ARENA + 8 * SLICE,
            _ => ARENA,
        }
    }

    /// Words of the first table up to the entry for address 0.
    fn first_table(self) -> Vec<u64> {
        match self {
            In3_6 => {
                let bytes = HEAD + 8 * 500;
                vec![500, bytes, TABLE, 0, 0, 0, 0, 0, 0, 0, TABLE + bytes]
            }
            _ => vec![TABLE + TABLE_BYTES],
        }
    }

    /// Offsets of fields in page descriptors: thread id, the three free lists, block size, number of used blocks, and
    /// the adjacent `capacity` and `reserved` counts.
    fn fields(self) -> (u64, [u64; 3], u64, u64, u64) {
        match self {
            In3_6 => (8, [16, 24, 64], 32, 40, 56),
            _ => (0, [8, 24, 32], 40, 16, 18),
        }
    }

    /// Address, size and number of the blocks of a page.
    fn blocks(self, page: u64) -> (u64, u64, u64) {
        let bytes = 64 << page;
        let description = if self == In3_0 { 64 << PAGES } else { 0 };
        let start = ARENA + self.slice(page) * SLICE + description;
        (start, bytes, (SLICE - description) / bytes)
    }

    /// Returns the offsets of the slice count in arenas, and of `memid` in descriptors of pages.
    fn places(self) -> (u64, u64) {
        match self {
            In3_0 | In3_1 => (32, 96),
            In3_3 => (40, 96),
            Since3_4 => (40, 88),
            In3_6 => (48, 104),
            Secure3_1 => (32, 112),
            Secure3_4 => (40, 104),
        }
    }

    fn is_secure(self) -> bool {
        matches!(self, Secure3_1 | Secure3_4)
    }
}

fn description(page: u64) -> u64 {
    In3_3.description(page)
}

fn blocks(page: u64) -> (u64, u64, u64) {
    In3_3.blocks(page)
}

fn heap() -> Snapshot {
    heap_of(In3_3)
}

/// The blocks of each page are twice as large as the blocks of the previous page.
fn heap_of(release: Release) -> Snapshot {
    let bytes = |count: u64| vec![0; count as usize];
    let mut found = snapshot(vec![
        (DATA, bytes(4096)),
        (TABLE, bytes(TABLE_BYTES + SLICE)),
        (SECOND, bytes(SLICE)),
        (ARENA, bytes(3 * PAGES * SLICE)),
    ]);
    found.meta.modules.push(ModuleInfo {
        data: std::iter::once(DATA..DATA + 4096).collect(),
        ..ModuleInfo::default()
    });
    let (slices, place) = release.places();
    let arena = release.arena();
    let table = (TABLE..).step_by(8).zip(release.first_table());
    let mut words: Vec<(u64, u64)> = table.collect();
    let first = TABLE + 8 * words.len() as u64;
    words.extend([
        (DATA + 64, TABLE),
        (first, SECOND),
        (arena + slices - 8, ARENA),
        (arena + slices, 512),
        (arena + slices + 8, release.slice(0)),
    ]);
    if release == In3_0 {
        words.extend((64..104).step_by(8).map(|at| (ARENA + at, BITMAP)));
        words.push((BITMAP + 128, ((1 << PAGES) - 1) << 1));
    }
    for page in 0..PAGES {
        let (start, bytes, count) = release.blocks(page);
        let at = release.description(page);
        let used = count - FREE[0] - FREE[1];
        let end = if release.is_secure() { at } else { 0 };
        let list = |first: u64, many: u64| {
            let block = move |i: u64| start + (first + i) * bytes;
            let next = move |i: u64| if i + 1 < many { block(i + 1) } else { end };
            (0..many).map(move |i| (block(i), next(i)))
        };
        words.extend(list(0, FREE[0]));
        words.extend(list(FREE[0], FREE[1]));
        words.extend(list(FREE[0] + FREE[1], FREE[2]));
        let (thread, [free, local, threads], size, in_use, counts) = release.fields();
        let kind = if release == In3_6 { 6 } else { 7 };
        words.extend([
            (SECOND + 8 * release.slice(page), at),
            (at + thread, 0x7000_0000),
            (at + free, start),
            (at + in_use, used),
            (at + counts, count | count << 16),
            (at + local, start + FREE[0] * bytes),
            // Its lowest bit says that it has an owner.
            (at + threads, (start + (FREE[0] + FREE[1]) * bytes) | 1),
            (at + size, bytes),
            (at + place, arena),
            (at + place + 8, release.slice(page) | 1 << 32),
            (at + place + 16, kind),
        ]);
        words.push(match release {
            Since3_4 | Secure3_4 => (at + 48, (start - at) / 8),
            In3_6 => (at + 48, start - at),
            _ => (at + 48, start),
        });
    }
    for (place, word) in words {
        put(&mut found, place, word);
    }
    found
}

/// Checks that each block is a block of these pages, or that there are no blocks.
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

/// Checks that the dissection finds the live blocks of these pages, and reports no finding.
fn check_pages(heap: &Heap, release: Release, pages: impl Iterator<Item = u64>) {
    assert!(heap.findings.is_empty(), "{release:?} {:?}", heap.findings);
    let mut expected = Vec::new();
    for page in pages {
        let (start, bytes, count) = release.blocks(page);
        let live = FREE.iter().sum()..count;
        // The last eight bytes are padding.
        let usable = if release.is_secure() {
            bytes - 8
        } else {
            bytes
        };
        expected.extend(live.map(|i| (start + i * bytes, usable)));
    }
    let found = heap.blocks.iter().map(|(_, block)| block);
    let found: Vec<_> = found.map(|block| (block.address, block.bytes)).collect();
    assert_eq!(found, expected);
    check(heap);
}

#[test]
fn what_is_in_no_list_is_live() {
    let kinds = [
        (In3_0, "mimalloc 3.0"),
        (In3_1, "mimalloc 3.1"),
        (Secure3_1, "mimalloc 3.1, secure"),
        (Secure3_4, "mimalloc 3.4, secure"),
        (In3_3, "mimalloc 3.2 or 3.3"),
        (Since3_4, "mimalloc 3.4"),
        (In3_6, "mimalloc 3.6"),
    ];
    for (release, name) in kinds {
        let heap = dissect(&heap_of(release)).expect("a heap");
        assert_eq!(heap.others[0].to_string(), name);
        check_pages(&heap, release, 0..PAGES);
    }
}

/// 3.0.1 keeps released pages in its map. Their memory may have been returned to the kernel, or have any other
/// contents.
#[test]
fn pages_that_were_released_are_none() {
    let mut snapshot = heap_of(In3_0);
    let bits = snapshot.word(BITMAP + 128).expect("bits");
    let released = In3_0.description(2);
    for at in (released..released + DESCRIPTION).step_by(8) {
        put(&mut snapshot, at, 0);
    }
    // A page that is still in its arena is damaged.
    let heap = dissect(&snapshot).expect("a heap");
    assert_eq!(heap.findings.len(), 1);
    put(&mut snapshot, BITMAP + 128, bits & !(1 << 3));
    let heap = dissect(&snapshot).expect("a heap");
    check_pages(&heap, In3_0, (0..PAGES).filter(|&page| page != 2));
    // Contents of a large block, and a page whose mapping was removed.
    put(&mut snapshot, released + 16, 0x1234_5678_9abc);
    put(&mut snapshot, SECOND + 8 * 100, 0x7777_0000);
    let heap = dissect(&snapshot).expect("a heap");
    check_pages(&heap, In3_0, (0..PAGES).filter(|&page| page != 2));
}

/// Returns the blocks that pass a second live check.
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
    // Another thread releases the block.
    let list = description(0) + 32;
    let before = snapshot.word(list).expect("a list");
    put(&mut snapshot, first.address, before & !1);
    put(&mut snapshot, list, first.address | 1);
    assert_eq!(live(&heap, &snapshot, &found[..2]), [false, true]);
}

/// Without a limit, a program could make us search one table half a million times.
#[test]
fn a_table_for_two_places_is_none() {
    let mut snapshot = heap();
    put(&mut snapshot, TABLE + 16, SECOND);
    assert!(dissect(&snapshot).is_err());
}

/// A free block may look like a map: it links to another free block at a distance that a map may have, and the
/// program's data contains the address of the first block.
#[test]
fn a_block_that_looks_like_a_map_hides_none() {
    for release in [In3_3, In3_6] {
        let mut snapshot = heap_of(release);
        let block = ARENA + 20 * SLICE;
        put(&mut snapshot, DATA, block);
        put(&mut snapshot, block, block + 4096);
        put(&mut snapshot, block + 8, SECOND);
        check_pages(&dissect(&snapshot).expect("a heap"), release, 0..PAGES);
    }
}

/// Arenas that claim an impossible size are not walked.
#[test]
fn arenas_without_measure_are_damaged() {
    for release in [In3_3, In3_6] {
        let mut snapshot = heap_of(release);
        put(&mut snapshot, release.arena() + release.places().0, 1 << 40);
        assert!(dissect(&snapshot).is_err());
    }
}

#[test]
fn a_damaged_map_is_no_wrong_one() {
    for release in [In3_3, In3_6] {
        no_damage_does_harm(release);
    }
}

fn no_damage_does_harm(release: Release) {
    let mut snapshot = heap_of(release);
    let arena = release.arena();
    let mut places = vec![DATA + 64, arena + 40, arena + 48, arena + 56];
    places.extend((TABLE..TABLE + HEAD + 16).step_by(8));
    places.extend((0..PAGES).map(|page| SECOND + 8 * release.slice(page)));
    for page in 0..PAGES {
        places.extend((0..DESCRIPTION / 8).map(|i| release.description(page) + 8 * i));
        let (start, bytes, _) = release.blocks(page);
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
