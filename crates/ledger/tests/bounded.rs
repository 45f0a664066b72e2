//! Compares ledgers with bounded memory against the true values: exact up to the bound, estimates beyond it.

mod divided;

use divided::Fed;
use memhook_abi::{Op, RawEvent};
use memhook_ledger::{LEAST_BYTES, Ledger, LedgerOptions, LiveWalk};
use std::collections::HashMap;

/// Program of one thread, and its true state.
struct Program {
    fed: Fed,
    /// Size and stack by address.
    live: HashMap<u64, (u64, u32)>,
    order: Vec<u64>,
    sequence: u32,
    random: u64,
    pass_events: usize,
    passes: u64,
    largest: usize,
}

impl Program {
    fn new(max_bytes: usize, seed: u64) -> Program {
        Program::in_shards(max_bytes, seed, 1)
    }

    fn in_shards(max_bytes: usize, seed: u64, shards: usize) -> Program {
        let mut fed = Fed::new(Ledger::new(LedgerOptions {
            max_bytes: Some(max_bytes),
            ..LedgerOptions::default()
        }));
        assert_eq!(fed.divide(shards), shards > 1);
        fed.begin_ring(0, 1);
        Program {
            fed,
            live: HashMap::new(),
            order: Vec::new(),
            sequence: 0,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            pass_events: 0,
            passes: 0,
            largest: 0,
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    fn event(&mut self, op: Op, address: u64, size: u64, stack: u32) {
        let low = u32::try_from(size).unwrap_or(u32::MAX);
        let raw = RawEvent::pack(op, address, self.sequence, low, stack);
        let time_ns = self.passes * 1_000_000;
        self.fed.event(raw.unpack().expect("valid"), size, time_ns);
        self.pass_events += 1;
        if self.pass_events == 10_000 {
            self.end_pass();
        }
    }

    fn end_pass(&mut self) {
        self.pass_events = 0;
        self.passes += 1;
        self.fed.end_pass(self.passes * 1_000_000);
        self.largest = self.largest.max(self.fed.ledger.memory_bytes());
        self.fed.begin_ring(0, 1);
    }

    fn allocate(&mut self, size: u64, stack: u32) -> u64 {
        let address = loop {
            let address = 0x5500_0000_0000 + 16 * self.random(1 << 32);
            if !self.live.contains_key(&address) {
                break address;
            }
        };
        self.live.insert(address, (size, stack));
        self.order.push(address);
        self.event(Op::Allocation, address, size, stack);
        address
    }

    fn release_any(&mut self) {
        let at = self.random(self.order.len() as u64) as usize;
        let address = self.order.swap_remove(at);
        self.live.remove(&address);
        self.sequence = (self.sequence + 1) & 0x3f_ffff;
        self.event(Op::Release, address, 0, 0);
    }

    /// Bytes and blocks of each stack, and the variance of the bytes implied by their weights.
    fn truth(&self) -> HashMap<u32, (f64, f64, f64)> {
        let mut sums: HashMap<u32, (f64, f64, f64)> = HashMap::new();
        for &(size, stack) in self.live.values() {
            let sum = sums.entry(stack).or_default();
            sum.0 += size as f64;
            sum.1 += 1.0;
            sum.2 += (self.fed.ledger.weight(size) - 1.0) * (size as f64).powi(2);
        }
        sums
    }
}

/// Small blocks from stacks 1 to 4, and a few large blocks from stack 5. Every third small block is released.
fn busy(max_bytes: usize, seed: u64, blocks: usize, shards: usize) -> Program {
    let mut program = Program::in_shards(max_bytes, seed, shards);
    for n in 0..blocks {
        let stack = 1 + program.random(4) as u32;
        let size = 16 + program.random(1 << (4 + stack));
        program.allocate(size, stack);
        if n % 3 == 0 {
            program.release_any();
        }
        if n % 5_000 == 0 {
            program.allocate(1 << 20, 5);
        }
    }
    program.end_pass();
    program
}

#[test]
fn everything_is_exact_before_the_bound() {
    for shards in [1, 3] {
        check_exact(busy(64 << 20, 1, 200_000, shards));
    }
}

fn check_exact(program: Program) {
    assert_eq!(program.fed.ledger.bounded(), None);
    assert_eq!(program.fed.ledger.weight(1), 1.0);
    let totals = program.fed.ledger.totals();
    assert_eq!(totals.live_blocks, program.live.len() as u64);
    let bytes: u64 = program.live.values().map(|b| b.0).sum();
    assert_eq!(totals.live_bytes, bytes);
}

/// While it is being divided, a ledger takes twice as much memory.
#[test]
fn a_ledger_that_is_half_full_is_not_divided() {
    for (blocks, is_possible) in [(20_000, true), (350_000, false)] {
        let mut program = busy(3 * LEAST_BYTES, 10, blocks, 1);
        assert_eq!(program.fed.divide(3), is_possible, "{blocks} blocks");
    }
}

/// The bounds are five standard errors wide. Over all seeds, the actual squared errors match the reported ones.
#[test]
fn estimates_are_within_their_standard_errors_and_memory_within_the_bound() {
    check_estimates(LEAST_BYTES, 400_000, 1);
    check_estimates(3 * LEAST_BYTES, 1_200_000, 3);
}

fn check_estimates(max_bytes: usize, all: usize, shards: usize) {
    let (mut squares, mut terms) = (0.0, 0.0);
    for seed in 1..=4 {
        let program = busy(max_bytes, seed, all, shards);
        let bounded = program.fed.ledger.bounded().expect("the bound was reached");
        assert!(
            bounded.is_thinned && bounded.one_address_in == 1,
            "{bounded:?}"
        );
        assert!(
            bounded.kept_blocks < program.live.len() as u64 * 3 / 4,
            "{bounded:?}"
        );
        // The 10,000 events between two memory checks may take the ledger beyond the bound.
        let slack = 10_000 * 48;
        assert!(
            program.largest < max_bytes + slack * shards,
            "{}",
            program.largest
        );
        let truth = program.truth();
        let sites = program.fed.ledger.sites();
        assert_eq!(sites.len(), truth.len());
        let (mut total, mut variance) = (0.0, 0.0);
        for site in &sites {
            let (bytes, blocks, spread) = truth[&site.stack];
            let error = site.bytes as f64 - bytes;
            assert!(
                error.abs() <= 5.0 * spread.sqrt() + 1.0,
                "{site:?} {bytes} {spread}"
            );
            if spread > 0.0 {
                squares += error.powi(2) / spread;
                terms += 1.0;
            } else {
                assert_eq!((site.bytes as f64, site.blocks as f64), (bytes, blocks));
            }
            total += bytes;
            variance += spread;
        }
        // Stack 5 has the large blocks, none of which is dropped.
        assert_eq!(truth[&5].2, 0.0);
        let totals = program.fed.ledger.totals();
        assert!((totals.live_bytes as f64 - total).abs() < 5.0 * f64::sqrt(variance));
        let of_sites: u64 = sites.iter().map(|s| s.bytes).sum();
        assert!(
            totals.live_bytes.abs_diff(of_sites) <= 10,
            "{totals:?} {of_sites}"
        );
        // Allocations are counted as usual.
        let allocated: u64 = sites.iter().map(|s| s.allocated_blocks).sum();
        assert_eq!(allocated, totals.allocations);
        assert_eq!(totals.allocations, (all + all.div_ceil(5_000)) as u64);
        assert_eq!(totals.allocations - totals.live_blocks, totals.releases);
    }
    let scatter = squares / terms;
    assert!((0.2..3.0).contains(&scatter), "{scatter} over {terms}");
}

/// Directly after the change, blocks that are not in the smaller sample are still in the table.
#[test]
fn walks_see_only_what_is_kept() {
    // The table is so large that one step does not free all entries.
    let mut program = Program::new(6 * LEAST_BYTES, 6);
    let mut is_checked = false;
    while !is_checked {
        let size = 16 + program.random(256);
        program.allocate(size, 1);
        let Some(bounded) = program.fed.ledger.bounded() else {
            continue;
        };
        is_checked = true;
        let (mut walk, mut walked) = (LiveWalk::default(), 0);
        while program.fed.ledger.walk_blocks(&mut walk, |_| walked += 1) {}
        assert_eq!(walked, bounded.kept_blocks);
        let (bytes, _, spread) = program.truth()[&1];
        let error = program.fed.ledger.sites()[0].bytes as f64 - bytes;
        assert!(error.abs() <= 6.0 * spread.sqrt(), "{error} {spread}");
    }
}

/// Releases find the kept blocks: once all blocks are released, nothing is left, no matter how often the sample was
/// reduced.
#[test]
fn every_release_matches_its_allocation() {
    let mut program = busy(LEAST_BYTES, 7, 300_000, 1);
    while !program.order.is_empty() {
        program.release_any();
    }
    program.end_pass();
    program.fed.ledger.finish();
    let totals = program.fed.ledger.totals();
    assert_eq!((totals.live_blocks, totals.live_bytes), (0, 0));
    assert_eq!(program.fed.ledger.live_blocks().count(), 0);
    assert_eq!(
        program.fed.ledger.bounded().expect("bounded").kept_blocks,
        0
    );
    // A release of a dropped block is not mistaken for a release of a block from before the attach.
    assert_eq!((totals.unknown_releases, totals.unhooked_releases), (0, 0));
}

/// If an address is reused, the kept block at that address is dead even if its release was not seen and the new block
/// is not kept.
#[test]
fn a_block_that_is_not_kept_replaces_the_one_before() {
    let mut program = busy(LEAST_BYTES, 8, 300_000, 1);
    let large = program.allocate(1 << 20, 6);
    for _ in 0..3 {
        program.end_pass();
    }
    let sum = |program: &Program, stack| {
        let sites = program.fed.ledger.live_by(None);
        sites
            .iter()
            .find(|s| s.stack == stack)
            .map_or(0, |s| s.blocks)
    };
    assert_eq!(sum(&program, 6), 1);
    program.event(Op::Allocation, large, 0, 7);
    program.end_pass();
    assert_eq!(sum(&program, 6), 0);
}

/// A release that arrives in another ring before the allocation of its block is still matched to that block.
#[test]
fn events_of_two_rings_in_any_order() {
    let mut program = busy(LEAST_BYTES, 9, 300_000, 1);
    let before = program.fed.ledger.totals();
    let kept = program.fed.ledger.bounded().expect("bounded").kept_blocks;
    let ledger = &mut program.fed.ledger;
    for n in 0..1000u64 {
        let address = 0x7f00_0000_0000 + n * 4096;
        let release = RawEvent::pack(Op::Release, address, 1, 0, 0);
        ledger.begin_ring(1, 2);
        ledger.event(release.unpack().expect("valid"), 0, 0);
        let allocation = RawEvent::pack(Op::Allocation, address, 0, 1 << 20, 8);
        ledger.begin_ring(0, 1);
        ledger.event(allocation.unpack().expect("valid"), 1 << 20, 0);
    }
    ledger.end_pass(0);
    let after = ledger.totals();
    assert_eq!(after.live_blocks, before.live_blocks);
    assert_eq!(ledger.bounded().expect("bounded").kept_blocks, kept);
    assert_eq!(after.allocations, before.allocations + 1000);
}

/// Releases of blocks from before the attach do not displace blocks that the ledger can keep, and do not fill the
/// memory.
#[test]
fn a_flood_of_unknown_releases_is_bounded() {
    let mut program = Program::new(LEAST_BYTES, 10);
    for n in 0..1000 {
        program.allocate(64, 1 + n % 3);
    }
    for n in 0..600_000u64 {
        program.sequence = (program.sequence + 1) & 0x3f_ffff;
        program.event(Op::Release, 0x7000_0000_0000 + 16 * n, 0, 0);
    }
    program.end_pass();
    assert!(program.largest < LEAST_BYTES * 2, "{}", program.largest);
    assert_eq!(program.fed.ledger.totals().live_blocks, 1000);
}

/// Beyond the maximum number of call stacks, allocations are counted together.
#[test]
fn stacks_are_bounded_too() {
    let mut program = Program::new(LEAST_BYTES, 11);
    for n in 0..100_000u32 {
        let address = program.allocate(32, 10 + n);
        program.live.remove(&address);
        program.order.clear();
        program.sequence = (program.sequence + 1) & 0x3f_ffff;
        program.event(Op::Release, address, 0, 0);
    }
    program.end_pass();
    let bounded = program.fed.ledger.bounded().expect("bounded");
    let sites = program.fed.ledger.sites();
    assert!(sites.len() < 20_000, "{}", sites.len());
    let others = sites
        .iter()
        .find(|s| s.stack == 0)
        .expect("one for the rest");
    assert_eq!(others.allocated_blocks, bounded.unattributed_allocations);
    assert_eq!(
        sites.iter().map(|s| s.allocated_blocks).sum::<u64>(),
        100_000
    );
    assert!(program.largest < LEAST_BYTES * 3 / 2, "{}", program.largest);
}
