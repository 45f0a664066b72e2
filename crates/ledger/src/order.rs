//! Events that arrive before what they belong to.
//!
//! Within one address, the sequence numbers give one order: an allocation that carries v stands
//! after every release numbered <= v and before every release numbered > v. Rings are read one
//! after another, so events of one address may arrive in another order. What may still come is
//! bounded: everything that happened before an event of pass k is delivered by the end of pass k+1.
//!
//! Kept here, by address, for two passes:
//! - *held* releases: no block was there to release; its allocation may still come. After two
//!   passes it was a block from before the attach.
//! - *debts*: a block was taken for released because a later event proves it (an allocation of the
//!   same address, or a release with a higher number), while its own release has not come yet. That
//!   release is absorbed when it comes. After two passes it was a release that is not hooked.
//!
//! Why the result is exact: let an address have allocations v1 < v2 < .. and releases n1 < n2 < ..
//! with v1 < n1 <= v2 < n2 ... Each arriving allocation either becomes live, or is accounted as
//! released at once, and then either uses up a held release or leaves a debt. Each arriving release
//! releases the live block, or uses up a debt, or is held. So (allocations not live) - (releases
//! that took effect) = debts - held at every moment, and when all have arrived both are empty.
//! The live block at the end is the allocation with the highest v, if no release is above it: an
//! allocation replaces a live one only with a higher v; and it becomes live only when no
//! tombstone and no held release is above it, where a tombstone keeps the highest release seen.

use memhook_abi::sequence_before;
use rustc_hash::FxHashMap;

#[derive(Default)]
struct Pending {
    held: Vec<(u32, u32)>, // release number, pass
    debts: Vec<u32>,       // pass
}

/// Held releases and debts, by address.
#[derive(Default)]
pub(crate) struct Order {
    pending: FxHashMap<u64, Pending>,
}

/// What [`Order::expire`] found too old.
#[derive(Default, Debug, PartialEq, Eq)]
pub(crate) struct Expired {
    pub unknown_releases: u64,
    pub unhooked_releases: u64,
}

impl Order {
    pub fn hold(&mut self, address: u64, release: u32, pass: u32) {
        self.pending
            .entry(address)
            .or_default()
            .held
            .push((release, pass));
    }

    pub fn owe(&mut self, address: u64, pass: u32) {
        let pending = self.pending.entry(address).or_default();
        // A release that is already here pays at once.
        if pending.held.pop().is_none() {
            pending.debts.push(pass);
        }
    }

    /// Takes a held release that stands after allocation `v`.
    #[inline]
    pub fn take_held_after(&mut self, address: u64, v: u32) -> Option<u32> {
        if self.pending.is_empty() {
            return None;
        }
        let held = &mut self.pending.get_mut(&address)?.held;
        let at = held.iter().position(|&(n, _)| sequence_before(v, n))?;
        Some(held.swap_remove(at).0)
    }

    /// Takes back a held release with this number.
    pub fn take_held(&mut self, address: u64, release: u32) -> bool {
        let Some(pending) = self.pending.get_mut(&address) else {
            return false;
        };
        let at = pending.held.iter().position(|&(n, _)| n == release);
        at.map(|at| pending.held.swap_remove(at)).is_some()
    }

    /// Absorbs a release by a debt.
    #[inline]
    pub fn pay(&mut self, address: u64) -> bool {
        !self.pending.is_empty()
            && self
                .pending
                .get_mut(&address)
                .is_some_and(|p| p.debts.pop().is_some())
    }

    /// Drops what two passes did not resolve.
    pub fn expire(&mut self, pass: u32, all: bool) -> Expired {
        let mut expired = Expired::default();
        let old = |then: u32| all || pass.wrapping_sub(then) >= 2;
        self.pending.retain(|_, p| {
            let before = (p.held.len(), p.debts.len());
            p.held.retain(|&(_, then)| !old(then));
            p.debts.retain(|&then| !old(then));
            expired.unknown_releases += (before.0 - p.held.len()) as u64;
            expired.unhooked_releases += (before.1 - p.debts.len()) as u64;
            !p.held.is_empty() || !p.debts.is_empty()
        });
        expired
    }
}
