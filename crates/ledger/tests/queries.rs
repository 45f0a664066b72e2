//! Compares sums with a simple table of blocks, with far more blocks than one segment or batch
//! contains.

use memhook_abi::{Op, RawEvent};
use memhook_ledger::{Ledger, LedgerOptions};
use std::collections::BTreeMap;

/// Blocks by address: size, stack, thread.
type Blocks = BTreeMap<u64, (u64, u32, u32)>;

struct Pair {
    ledger: Ledger,
    blocks: Blocks,
    random: u64,
    number: u32,
}

impl Pair {
    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    /// Toggles random ones of `addresses`.
    fn passes(&mut self, passes: usize, addresses: u64) {
        for pass in 0..passes {
            let tid = 1 + (pass % 3) as u32;
            self.ledger.begin_ring(pass % 3, tid);
            for _ in 0..10_000 {
                let address = 16 * (1 + self.random(addresses));
                let stack = 1 + self.random(20_000) as u32;
                let size = match self.random(1000) {
                    0 => (1 << 33) + self.random(9),
                    _ => self.random(5000),
                };
                let raw = if self.blocks.remove(&address).is_some() {
                    self.number = (self.number + 1) & 0x3f_ffff;
                    RawEvent::pack(Op::Release, address, self.number, 0, 0)
                } else {
                    self.blocks.insert(address, (size, stack, tid));
                    let low = u32::try_from(size).unwrap_or(u32::MAX);
                    RawEvent::pack(Op::Allocation, address, self.number, low, stack)
                };
                self.ledger
                    .event(raw.unpack().unwrap(), size, 5_000_000 * pass as u64);
            }
            self.ledger.end_pass(0);
        }
    }

    fn sums<K: Ord>(&self, key: impl Fn(&(u64, u32, u32)) -> K) -> Vec<(K, u64, u64)> {
        let mut sums = BTreeMap::new();
        for block in self.blocks.values() {
            let (bytes, blocks) = sums.entry(key(block)).or_insert((0, 0));
            *bytes += block.0;
            *blocks += 1;
        }
        sums.into_iter().map(|(k, (a, b))| (k, a, b)).collect()
    }

    fn check(&self) {
        let mut live: Vec<_> = self
            .ledger
            .live_blocks()
            .map(|b| (b.address, (b.size, b.stack, b.tid)))
            .collect();
        live.sort_unstable();
        assert!(live == self.blocks.clone().into_iter().collect::<Vec<_>>());
        let by_stack = self.sums(|b| b.1);
        let found = self.ledger.live_by(None);
        assert!(
            found
                .iter()
                .map(|s| (s.stack, s.bytes, s.blocks))
                .eq(by_stack)
        );
        assert!(self.ledger.live_by(Some(0)).is_empty());
        assert_eq!(self.ledger.totals().unknown_releases, 0);
        assert_eq!(self.ledger.totals().unhooked_releases, 0);
    }
}

#[test]
fn sums_with_many_blocks() {
    let mut pair = Pair {
        ledger: Ledger::new(LedgerOptions::default()),
        blocks: Blocks::new(),
        random: 88_172_645_463_325_252,
        number: 0x3f_0000,
    };
    // Many live blocks, then few: prefetching is switched on and then off.
    pair.passes(30, 600_000);
    pair.check();
    pair.passes(30, 600_000);
    pair.check();
    pair.passes(20, 2_000);
    pair.check();
}

#[test]
fn no_block_lives_where_nothing_was_ever_allocated() {
    let ledger = Ledger::new(LedgerOptions::default());
    assert_eq!(ledger.alive_since(0x5555_0000_1000), None);
}
