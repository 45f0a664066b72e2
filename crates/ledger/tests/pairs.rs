//! Pair events: blocks that were allocated and released before anything else happened to them.

use memhook_abi::{Op, RawEvent};
use memhook_ledger::{Ledger, LedgerOptions, Totals};

const ADDRESS: u64 = 0x7000_0000;

fn event(ledger: &mut Ledger, op: Op, number: u32, size: u32, stack: u32) {
    let raw = RawEvent::pack(op, ADDRESS, number, size, stack);
    ledger.event(raw.unpack().unwrap(), u64::from(size), 0);
}

fn totals(mut ledger: Ledger) -> Totals {
    ledger.finish();
    ledger.totals()
}

#[test]
fn pairs_count_like_their_allocations_and_releases() {
    let mut ledger = Ledger::new(LedgerOptions::default());
    ledger.begin_ring(0, 1);
    event(&mut ledger, Op::Pair, 3, 100, 5);
    event(&mut ledger, Op::Allocation, 9, 40, 6);
    ledger.end_pass(0);
    let site = ledger.sites().into_iter().find(|s| s.stack == 5).unwrap();
    assert_eq!((site.allocated_blocks, site.allocated_bytes), (3, 300));
    assert_eq!((site.blocks, site.bytes), (0, 0));
    assert_eq!((site.min_size, site.max_size), (100, 100));
    let t = totals(ledger);
    assert_eq!((t.allocations, t.releases), (4, 3));
    assert_eq!((t.allocated_bytes, t.released_bytes), (340, 300));
    assert_eq!((t.live_blocks, t.live_bytes), (1, 40));
    assert_eq!(t.peak_live_bytes, 100);
    assert_eq!((t.unknown_releases, t.unhooked_releases), (0, 0));
}

/// A thread got an address at which the ledger has a block, so that block was released.
#[test]
fn a_pair_shows_that_the_address_was_free() {
    let mut ledger = Ledger::new(LedgerOptions::default());
    ledger.begin_ring(0, 1);
    event(&mut ledger, Op::Allocation, 4, 40, 6);
    event(&mut ledger, Op::Pair, 1, 100, 5);
    let t = totals(ledger);
    assert_eq!((t.live_blocks, t.unhooked_releases), (0, 1));
    assert_eq!((t.allocated_bytes, t.released_bytes), (140, 140));
}

/// Another thread's block may be later than the pair, unless that block is old.
#[test]
fn a_pair_of_another_thread_shows_it_later() {
    let mut ledger = Ledger::new(LedgerOptions::default());
    ledger.begin_ring(0, 1);
    event(&mut ledger, Op::Allocation, 4, 40, 6);
    ledger.begin_ring(1, 2);
    event(&mut ledger, Op::Pair, 1, 100, 5);
    ledger.end_pass(0);
    ledger.end_pass(0);
    assert_eq!(ledger.totals().live_blocks, 1);
    ledger.begin_ring(1, 2);
    event(&mut ledger, Op::Pair, 1, 100, 5);
    let t = totals(ledger);
    assert_eq!((t.live_blocks, t.unhooked_releases), (0, 1));
}

/// The release that the pair reveals may arrive later, in another ring.
#[test]
fn a_release_that_comes_late_is_that_of_the_old_block() {
    let mut ledger = Ledger::new(LedgerOptions::default());
    ledger.begin_ring(0, 1);
    event(&mut ledger, Op::Allocation, 4, 40, 6);
    event(&mut ledger, Op::Pair, 1, 100, 5);
    ledger.begin_ring(1, 2);
    event(&mut ledger, Op::Release, 5, 0, 0);
    let t = totals(ledger);
    assert_eq!((t.live_blocks, t.live_bytes), (0, 0));
    assert_eq!((t.unknown_releases, t.unhooked_releases), (0, 0));
}

/// The number of an old block no longer means anything, even if that block is gone.
#[test]
fn numbers_of_old_blocks_are_not_compared() {
    let mut ledger = Ledger::new(LedgerOptions::default());
    ledger.begin_ring(0, 1);
    event(&mut ledger, Op::Allocation, 0x30_0000, 40, 6);
    for _ in 0..3 {
        ledger.end_pass(0);
    }
    ledger.begin_ring(0, 1);
    event(&mut ledger, Op::Pair, 1, 100, 5);
    // This number is more than half of the range ahead, so it looks like an earlier number.
    event(&mut ledger, Op::Allocation, 0x20_0000, 70, 7);
    let t = totals(ledger);
    assert_eq!((t.live_blocks, t.live_bytes), (1, 70));
}

/// A target can forge any size. Sums beyond 64 bits are ignored, so that the other sums stay consistent.
#[test]
fn sizes_that_no_program_has_allocated_are_left_out() {
    let mut ledger = Ledger::new(LedgerOptions::default());
    ledger.begin_ring(0, 1);
    let mut forged = |op, address: u64, number, size| {
        let raw = RawEvent::pack(op, address, number, u32::MAX, 5);
        ledger.event(raw.unpack().unwrap(), size, 0);
    };
    forged(Op::Allocation, ADDRESS, 1, u64::MAX - 100);
    forged(Op::Allocation, ADDRESS + 64, 1, 101);
    forged(Op::Pair, ADDRESS + 128, 3, 50);
    forged(Op::Pair, ADDRESS + 128, 2, u64::MAX / 2 + 1);
    forged(Op::Pair, ADDRESS + 128, 2, 50);
    forged(Op::Release, ADDRESS, 2, 0);
    let t = totals(ledger);
    assert_eq!((t.allocations, t.releases), (3, 3));
    assert_eq!((t.allocated_bytes, t.released_bytes), (u64::MAX, u64::MAX));
    assert_eq!((t.live_blocks, t.live_bytes), (0, 0));
}
