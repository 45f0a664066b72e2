//! Memory of the table of blocks while it grows and afterwards, for different distributions of blocks.

use memhook_abi::{Event, Op, RawEvent};
use memhook_ledger::{Ledger, LedgerOptions};

const PASS_EVENTS: usize = 4096;
/// Upper bound on the number of bytes per live block at every moment, once there are many blocks.
const MOST_BYTES: usize = 48;

fn event(op: Op, address: u64, sequence: u32) -> Event {
    let raw = RawEvent::pack(op, address, sequence, 32, 1);
    raw.unpack().expect("valid")
}

/// Feeds one event for each block. Calls `look` with the number of blocks so far after each pass.
fn give(ledger: &mut Ledger, op: Op, blocks: &[u64], mut look: impl FnMut(&Ledger, usize)) {
    for (pass, addresses) in blocks.chunks(PASS_EVENTS).enumerate() {
        ledger.begin_ring(0, 1);
        for (n, &address) in addresses.iter().enumerate() {
            // Allocations come before all releases.
            let is_release = u32::from(op == Op::Release);
            let sequence = is_release * (1 + (pass * PASS_EVENTS + n) as u32);
            ledger.event(event(op, address, sequence), 32, 0);
        }
        ledger.end_pass(0);
        look(ledger, pass * PASS_EVENTS + addresses.len());
    }
}

/// Adjacent blocks; groups of a few blocks in arenas that are 64 MiB apart; and single blocks far from each other.
fn heaps() -> [Vec<u64>; 3] {
    const BLOCKS: u64 = 300_000;
    let dense = (0..BLOCKS).map(|n| 0x5555_0000_0000 + n * 48).collect();
    let arenas = (0..BLOCKS).map(|n| 0x7000_0000_0000 + ((n % 1000) << 26) + n / 1000 * 64);
    // Multiplied by an odd number, so all addresses are different.
    let scattered = (0..BLOCKS).map(|n| (1 + n * 0x9e37_79b1 % (1 << 32)) << 15);
    [dense, arenas.collect(), scattered.collect()]
}

#[test]
fn a_block_takes_few_bytes_at_every_moment_and_gives_them_back() {
    for blocks in heaps() {
        let mut ledger = Ledger::new(LedgerOptions::default());
        give(&mut ledger, Op::Allocation, &blocks, |ledger, given| {
            assert_eq!(ledger.totals().live_blocks, given as u64);
            // A small table has space to spare.
            let most = (2 << 20) + given * MOST_BYTES;
            assert!(ledger.table_bytes() < most, "{given}");
        });
        let grown = ledger.table_bytes();
        assert!(grown < blocks.len() * MOST_BYTES, "{grown}");
        give(&mut ledger, Op::Release, &blocks, |_, _| {});
        let totals = ledger.totals();
        assert_eq!((totals.live_blocks, totals.unknown_releases), (0, 0));
        // All parts of the table are visited within this number of passes.
        for _ in 0..9000 {
            ledger.end_pass(0);
        }
        let left = ledger.table_bytes();
        assert!(left < grown / 8, "{left} of {grown}");
    }
}
