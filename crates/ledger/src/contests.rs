//! Addresses with blocks and releases that do not match yet.

use crate::Ledger;
use rustc_hash::FxHashMap;

/// Number of passes after which unmatched events stay unmatched.
const SETTLE_PASSES: u32 = 2;
/// Greater than `SETTLE_PASSES`, and a power of two, because pass numbers may wrap.
const LISTS: usize = 4;

struct Contest {
    /// Number of released blocks whose release has not arrived, minus the number of releases whose
    /// block has not arrived.
    balance: i32,
    /// Pass of the last change.
    pass: u32,
}

/// Events without a match that the ledger no longer waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    pub unknown_releases: u64,
    pub unhooked_releases: u64,
}

/// The balance of each contested address.
pub(crate) struct Contests {
    by_address: FxHashMap<u64, Contest>,
    /// Addresses that changed, by pass modulo the length.
    changed: [Vec<u64>; LISTS],
    is_closed: bool,
}

impl Contests {
    pub fn new() -> Self {
        Self {
            by_address: FxHashMap::default(),
            changed: Default::default(),
            is_closed: false,
        }
    }

    /// Forgets everything, and records nothing from now on.
    pub fn close(&mut self) {
        *self = Self {
            is_closed: true,
            ..Self::new()
        };
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Returns the approximate bytes of memory.
    pub fn bytes(&self) -> usize {
        let lists: usize = self.changed.iter().map(Vec::capacity).sum();
        self.by_address.capacity() * (size_of::<(u64, Contest)>() + 1) + lists * size_of::<u64>()
    }

    pub fn balance(&self, address: u64) -> i32 {
        self.by_address.get(&address).map_or(0, |c| c.balance)
    }

    /// Adds a block whose release is not known.
    pub fn add_block(&mut self, address: u64, pass: u32) {
        self.change(address, 1, pass);
    }

    /// Adds a release whose block is not known at the moment.
    pub fn add_release(&mut self, address: u64, pass: u32) {
        self.change(address, -1, pass);
    }

    fn change(&mut self, address: u64, by: i32, pass: u32) {
        if self.is_closed {
            return;
        }
        let contest = self.by_address.entry(address).or_insert(Contest {
            balance: 0,
            pass: pass.wrapping_sub(1),
        });
        contest.balance = contest.balance.saturating_add(by);
        if contest.balance == 0 {
            self.by_address.remove(&address);
        } else if contest.pass != pass {
            contest.pass = pass;
            self.changed[slot_of(pass)].push(address);
        }
    }

    /// Moves the balances to the shards that `of` returns for their addresses. This ledger is shard
    /// 0.
    pub fn divide(&mut self, others: &mut [Ledger], of: impl Fn(u64) -> usize) {
        let all = std::mem::replace(self, Self::new());
        if all.is_closed {
            self.close();
            others.iter_mut().for_each(|other| other.contests.close());
            return;
        }
        let others = others.iter_mut().map(|other| &mut other.contests);
        let mut shards: Vec<_> = std::iter::once(self).chain(others).collect();
        for (address, contest) in all.by_address {
            shards[of(address)].by_address.insert(address, contest);
        }
        for (slot, addresses) in all.changed.into_iter().enumerate() {
            for address in addresses {
                shards[of(address)].changed[slot].push(address);
            }
        }
    }

    /// Ends `pass`: settles balances that have not changed for two passes.
    pub fn settle(&mut self, pass: u32) -> Settled {
        let due = pass.wrapping_sub(SETTLE_PASSES);
        let mut settled = Settled::default();
        let mut addresses = std::mem::take(&mut self.changed[slot_of(due)]);
        for address in addresses.drain(..) {
            let Some(contest) = self.by_address.get(&address) else {
                continue;
            };
            if contest.pass != due {
                continue; // changed since; it is in a later list
            }
            let count = u64::from(contest.balance.unsigned_abs());
            if contest.balance > 0 {
                settled.unhooked_releases += count;
            } else {
                settled.unknown_releases += count;
            }
            self.by_address.remove(&address);
        }
        self.changed[slot_of(due)] = addresses; // keeps its capacity
        settled
    }
}

fn slot_of(pass: u32) -> usize {
    pass as usize % LISTS
}
