//! Walks in slices: each block is visited once, and no slice is too long, regardless of what
//! happens between slices.

mod divided;

use divided::Fed;
use memhook_abi::{Op, RawEvent};
use memhook_ledger::{Ledger, LedgerOptions, LiveWalk, SiteWalk};
use std::collections::{BTreeMap, BTreeSet};

const BLOCKS: u64 = 400_000;
/// Maximum number of blocks in a slice: the entries of a slice, plus those of one more segment.
const MOST_BLOCKS: usize = 70_000;

fn event(op: Op, address: u64, sequence: u32, stack: u32) -> memhook_abi::Event {
    let raw = RawEvent::pack(op, address, sequence, 32, stack);
    raw.unpack().expect("valid")
}

/// Blocks 32 bytes apart.
const SIDE_BY_SIDE: u32 = 5;
/// Blocks 16 MiB apart.
const SCATTERED: u32 = 24;

fn stack_of(block: u64) -> u32 {
    1 + (block % 100) as u32
}

struct Heap {
    fed: Fed,
    /// Distance between blocks, as a power of two.
    distance: u32,
    releases: u32,
    ms: u64,
}

impl Heap {
    fn of(blocks: u64) -> Heap {
        Heap::with_distance(blocks, SIDE_BY_SIDE)
    }

    fn with_distance(blocks: u64, distance: u32) -> Heap {
        let mut heap = Heap {
            distance,
            fed: Fed::new(Ledger::new(LedgerOptions::default())),
            releases: 0,
            ms: 0,
        };
        heap.pass(0..blocks, 0..0);
        heap
    }

    fn address_of(&self, block: u64) -> u64 {
        (1 + block) << self.distance
    }

    /// Adds a pass that allocates some blocks and releases others.
    fn pass(&mut self, allocated: std::ops::Range<u64>, released: std::ops::Range<u64>) {
        self.ms += 1;
        self.fed.begin_ring(0, 7);
        for block in released {
            self.releases += 1;
            let release = event(Op::Release, self.address_of(block), self.releases, 0);
            self.fed.event(release, 0, self.ms * 1_000_000);
        }
        for block in allocated {
            let allocation = event(
                Op::Allocation,
                self.address_of(block),
                self.releases,
                stack_of(block),
            );
            self.fed.event(allocation, 32, self.ms * 1_000_000);
        }
        self.fed.end_pass(self.ms * 1_000_000);
    }
}

#[test]
fn blocks_that_stay_are_seen_once_and_slices_are_bounded() {
    for distance in [SIDE_BY_SIDE, SCATTERED] {
        check_walk(Heap::with_distance(BLOCKS, distance), None);
        // In shards from the beginning, or divided later.
        check_walk(Heap::with_distance(BLOCKS, distance), Some(0));
        check_walk(Heap::with_distance(BLOCKS, distance), Some(3));
    }
}

fn check_walk(mut heap: Heap, divided_after: Option<u64>) {
    let (mut walk, mut seen, mut slices) = (LiveWalk::default(), BTreeMap::new(), 0);
    loop {
        if divided_after == Some(slices) {
            assert!(heap.fed.divide(3));
        }
        let mut in_slice = 0;
        let more = heap.fed.ledger.walk_blocks(&mut walk, |block| {
            in_slice += 1;
            *seen.entry(block.address).or_insert(0) += 1;
        });
        assert!(in_slice <= MOST_BLOCKS, "{in_slice}");
        if !more {
            break;
        }
        // During the walk, the table grows, and the first blocks are released.
        let come = BLOCKS + slices * 20_000;
        heap.pass(come..come + 20_000, slices * 1_000..(slices + 1) * 1_000);
        slices += 1;
        assert!(slices < 1_000, "it never ends");
    }
    assert!(slices >= 5, "{slices}");
    assert!(seen.values().all(|&times| times == 1));
    let stayed = (slices * 1_000..BLOCKS)
        .map(|block| heap.address_of(block))
        .collect::<BTreeSet<_>>();
    assert!(stayed.iter().all(|address| seen.contains_key(address)));
}

#[test]
fn sites_are_those_of_the_first_slice() {
    for divided_after in [None, Some(1), Some(3)] {
        check_sites(divided_after);
    }
}

fn check_sites(divided_after: Option<u64>) {
    let mut heap = Heap::of(BLOCKS);
    let before = heap.fed.ledger.sites();
    let mut walk = SiteWalk::new(None);
    while heap.fed.ledger.walk_sites(&mut walk) {
        let ms = heap.ms;
        if divided_after == Some(ms) {
            assert!(heap.fed.divide(4));
        }
        heap.pass(BLOCKS + ms * 10..BLOCKS + (ms + 1) * 10, 0..0);
    }
    let found = walk.into_sites();
    assert_eq!(found.len(), 100);
    assert_eq!(found, before);
}

#[test]
fn an_age_leaves_younger_blocks_out() {
    let mut heap = Heap::of(1_000);
    heap.pass(1_000..5_000, 0..500);
    let old = heap.fed.ledger.live_by(Some(2_000_000));
    assert_eq!(old.iter().map(|site| site.blocks).sum::<u64>(), 500);
    let all = heap.fed.ledger.live_by(None);
    assert_eq!(all.iter().map(|site| site.blocks).sum::<u64>(), 4_500);
}
