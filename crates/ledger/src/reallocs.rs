//! Two-phase reallocations.
//!
//! The hook announces `realloc` with a release of the old block. If the call fails, the hook revokes the release in the
//! next event of the same ring. So an announcement is held back until that next event, which nearly always arrives in
//! the same pass. Then the announcement is an ordinary release, or is dropped. It is applied with the pass in which it
//! arrived, even if the pass has ended.
//!
//! A thread may stay inside `realloc` for a long time, or record nothing after a `realloc(p, 0)`. After one more pass,
//! every event that happened before the announcement has arrived. Then the announcement is applied provisionally, and
//! the ledger stores how to undo it:
//!
//! - It releases the latest block. If the call fails, the block lives again, unless later events of the address have
//!   arrived before the failure. Such events include the block's true release, which found no block and lowered the
//!   balance. In that case the balance is raised.
//! - A block was replaced before its release arrived (balance above 0): the announcement is this release.
//! - A later event of the address has already arrived. If that is a release, it may have taken the block of the
//!   announcement, and its own block has not arrived yet: the balance is lowered. If the call fails nevertheless, it
//!   failed before that later event, so the failure arrives within one pass, before the balance is settled.
//! - Otherwise, it is a release of an unknown block.
//!
//! Between announcement and failure, no other thread can own or release the block. Every later event of the block
//! arrives at most one pass before the failure, so the balances needed for the undoing still exist. A block that
//! another thread got at the address before the end of the announcement arrives at most one pass before the
//! announcement. The announcement is applied before the balance of that block is settled.

use crate::entry::{AGED_PASSES, Entry};
use crate::live_map::Place;
use crate::order::Release;
use crate::{Ledger, Observer, ReleaseBy};
use memhook_abi::{Op, RawEvent};

/// Way to undo an applied announcement.
pub(crate) enum Undo {
    /// The announcement has released this block, which has this size in bytes.
    Block(Entry, u64),
    /// The announcement has lowered the address's balance.
    Balance,
    /// The announcement has released an unknown block, which may have been counted.
    Unknown { is_counted: bool },
}

struct Announced {
    release: Release,
    /// How to undo it; `None` if it has not been applied.
    undo: Option<Undo>,
}

#[derive(Default)]
struct RingRealloc {
    tid: u32,
    announced: Option<Announced>,
}

/// Announced reallocations, at most one per ring.
#[derive(Default)]
pub(crate) struct RingReallocs {
    rings: Vec<RingRealloc>,
    current: usize,
    /// True if the current ring has an announcement.
    open_here: bool,
    /// Number of announcements that are not applied yet.
    unapplied: usize,
}

impl RingReallocs {
    /// Makes `ring` the current one. Returns true if its previous owner left an announcement.
    pub fn enter(&mut self, ring: usize, tid: u32) -> bool {
        if ring >= self.rings.len() {
            self.rings.resize_with(ring + 1, RingRealloc::default);
        }
        self.current = ring;
        let entry = &mut self.rings[ring];
        let changed = entry.tid != tid;
        entry.tid = tid;
        self.open_here = entry.announced.is_some();
        self.open_here && changed
    }

    #[inline]
    pub fn is_open(&self) -> bool {
        self.open_here
    }

    /// Adds an announcement of the current ring.
    pub fn open(&mut self, release: Release) {
        if self.rings.is_empty() {
            self.rings.push(RingRealloc::default());
        }
        self.rings[self.current].announced = Some(Announced {
            release,
            undo: None,
        });
        self.open_here = true;
        self.unapplied += 1;
    }

    /// Passes announcements to the shards that `of` returns for their rings and addresses. This ledger is shard 0.
    pub fn divide(&mut self, others: &mut [Ledger], of: impl Fn(usize, u64) -> usize) {
        let all = std::mem::take(self);
        for (ring, RingRealloc { tid, announced }) in all.rings.into_iter().enumerate() {
            let shard = announced
                .as_ref()
                .map(|announced| of(ring, announced.release.address));
            let mut announced = announced;
            let shards = others.iter_mut().map(|other| &mut other.reallocs);
            for (at, reallocs) in std::iter::once(&mut *self).chain(shards).enumerate() {
                let announced = announced.take_if(|_| shard == Some(at));
                let is_unapplied = announced.as_ref().is_some_and(|one| one.undo.is_none());
                reallocs.unapplied += usize::from(is_unapplied);
                reallocs.rings.push(RingRealloc { tid, announced });
            }
        }
    }

    /// Iterates over the provisionally applied announcements.
    pub fn provisional(&self) -> impl Iterator<Item = &Undo> {
        let announced = self.rings.iter().filter_map(|ring| ring.announced.as_ref());
        announced.filter_map(|announced| announced.undo.as_ref())
    }

    fn close(&mut self) -> Option<Announced> {
        self.open_here = false;
        let announced = self.rings.get_mut(self.current)?.announced.take()?;
        self.unapplied -= usize::from(announced.undo.is_none());
        Some(announced)
    }
}

impl<O: Observer> Ledger<O> {
    /// Iterates over the addresses of blocks in a `realloc` whose outcome is unknown. Some of these blocks still count
    /// as live.
    pub fn blocks_in_realloc(&self) -> impl Iterator<Item = u64> + '_ {
        let others = self.others.iter().flat_map(|other| &other.reallocs.rings);
        let rings = self.reallocs.rings.iter().chain(others);
        rings.filter_map(|ring| Some(ring.announced.as_ref()?.release.address))
    }

    /// Takes the event after an announcement. Returns true if the event revoked the announcement, and needs no further
    /// handling.
    #[cold]
    pub(crate) fn end_realloc(&mut self, op: Op, words: RawEvent) -> bool {
        let event = words.unpack_as(op);
        let Some(announced) = self.reallocs.close() else {
            return false;
        };
        let failed = event.op == Op::ReallocFailed && event.address == announced.release.address;
        match announced.undo {
            None if failed => {}
            None => self.late_release(announced.release),
            Some(undo) if failed => self.undo(announced.release, undo),
            Some(_) => {}
        }
        failed
    }

    /// Notes that the call announced on the current ring has not failed.
    pub(crate) fn confirm_realloc(&mut self) {
        if let Some(announced) = self.reallocs.close()
            && announced.undo.is_none()
        {
            self.late_release(announced.release);
        }
    }

    /// Ends a pass: applies the announcements of earlier passes.
    pub(crate) fn age_reallocs(&mut self) {
        if self.reallocs.unapplied == 0 {
            return;
        }
        for ring in 0..self.reallocs.rings.len() {
            let release = match &self.reallocs.rings[ring].announced {
                Some(a) if a.undo.is_none() && a.release.pass != self.pass => a.release,
                _ => continue,
            };
            let undo = self.apply(release, ring);
            self.reallocs.unapplied -= 1;
            if let Some(announced) = &mut self.reallocs.rings[ring].announced {
                announced.undo = Some(undo);
            }
        }
    }

    fn by(&mut self, release: Release, tid: u32) -> ReleaseBy {
        release.by(self.threads.index_of(tid))
    }

    fn apply(&mut self, release: Release, ring: usize) -> Undo {
        self.totals.releases += 1;
        let pass = release.pass as u16;
        let by = self.by(release, self.reallocs.rings[ring].tid);
        let mut overtaken = false;
        if let Place::Found(at) = self.map.find(release.address, self.pass as u16) {
            let latest = self.map.get(at);
            overtaken = !latest.is_before_release(release.sequence, pass);
            if latest.is_alive() && !overtaken {
                let size = self.map.size_of(latest);
                self.count_pair(latest, release, by);
                let tombstone = Entry::tombstone(release.address, release.sequence, pass);
                self.map.put(at, tombstone.provisional(), 0);
                return Undo::Block(latest, size);
            }
        }
        // Every allocation that happened before this release has arrived, so no tombstone is needed.
        if overtaken || self.contests.balance(release.address) > 0 {
            self.contest_release(release, by);
            return Undo::Balance;
        }
        self.observer.unknown_released(release.address, by);
        self.partners.add_release(release, by);
        let is_counted = !self.options.ignore_unknown_releases && !self.contests.is_closed();
        self.totals.unknown_releases += u64::from(is_counted);
        Undo::Unknown { is_counted }
    }

    fn undo(&mut self, release: Release, undo: Undo) {
        self.totals.releases -= 1;
        self.partners.remove(release);
        let address = release.address;
        match undo {
            Undo::Unknown { is_counted } => {
                // If the hook has announced samples since then, the count that included this release no longer exists.
                let counted = &mut self.totals.unknown_releases;
                *counted = counted.saturating_sub(u64::from(is_counted));
            }
            Undo::Balance => self.contests.add_block(address, self.pass),
            Undo::Block(block, size) => {
                let by = release.by(self.tid_index);
                match self.map.find(address, self.pass as u16) {
                    Place::Found(at) if !self.map.get(at).is_provisional() => {
                        // The block's true release was counted among the releases without a block.
                        self.contests.add_block(address, self.pass);
                        let told = Some((release.sequence, by));
                        self.partners.add_block(block, size, told, self.pass);
                    }
                    Place::Found(at) | Place::Vacant(at) => {
                        self.partners.reinstate(release);
                        self.totals.released_bytes -= size;
                        self.sites.reinstated(block.site(), size);
                        if self.map.is_thinned() && self.map.thinning().keeps(address, size) {
                            self.estimate.add(self.weight(size), size);
                        }
                        if self.options.track_release_stacks {
                            let weight = self.weight(size);
                            self.release_sites.remove(release.stack, size, weight);
                        }
                        self.observer.reinstated(&block.with_size(size), by);
                        // The announcement's pass can be recognized only for a limited time. Within that time, it may
                        // have to be compared with a release that was held back.
                        let waited = self.pass.wrapping_sub(release.pass);
                        let old = waited >= AGED_PASSES as u32;
                        let block = if old { block.aged() } else { block };
                        self.map.put(at, block, size);
                    }
                }
            }
        }
    }
}
