//! The ledger: applies events, keeps totals.

use crate::{
    live_map::{Entry, LiveMap, State},
    order::Order,
    sites::{Site, SiteLive, Sites},
};
use memhook_abi::{Event, Op, sequence_before};
use rustc_hash::FxHashMap;

/// Totals since the attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Blocks allocated; a `realloc` counts as a release and an allocation.
    pub allocations: u64,
    /// Blocks released, of those allocated since the attach.
    pub releases: u64,
    /// Bytes allocated.
    pub allocated_bytes: u64,
    /// Bytes released.
    pub released_bytes: u64,
    /// Bytes live.
    pub live_bytes: u64,
    /// Blocks live.
    pub live_blocks: u64,
    /// Releases of blocks that were allocated before the attach (or outside the size filter).
    pub unknown_releases: u64,
    /// Blocks whose address came back without a release that was seen.
    pub unhooked_releases: u64,
    /// Highest live bytes at the end of a pass.
    pub peak_live_bytes: u64,
}

/// One live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveBlock {
    /// Address (avma).
    pub address: u64,
    /// Requested bytes.
    pub size: u64,
    /// Stack id.
    pub stack: u32,
    /// Time in ms since the attach.
    pub time_ms: u32,
    /// Thread that allocated it.
    pub tid: u32,
}

/// What a `realloc` did to the old block, until it is known to have succeeded.
enum Undo {
    Released(Entry),
    Absorbed,
    Held,
}

/// Live blocks and their sites.
pub struct Ledger {
    live: LiveMap,
    order: Order,
    sites: Sites,
    totals: Totals,
    pass: u32,
    ring: usize,
    tid: u32,
    reallocs: FxHashMap<usize, (u64, u32, Undo)>,
}

impl Default for Ledger {
    fn default() -> Self {
        Ledger {
            live: LiveMap::new(),
            order: Order::default(),
            sites: Sites::default(),
            totals: Totals::default(),
            pass: 0,
            ring: 0,
            tid: 0,
            reallocs: FxHashMap::default(),
        }
    }
}

impl Ledger {
    /// The events that follow come from this ring, owned by this thread.
    pub fn begin_ring(&mut self, ring: usize, tid: u32) {
        self.ring = ring;
        self.tid = tid;
    }

    /// Applies one event. Ticks and extensions are the caller's business.
    #[inline]
    pub fn event(&mut self, event: Event, size: u64, time_ns: u64) {
        match event.op {
            Op::Allocation => {
                let entry = Entry::live(
                    event.address,
                    size,
                    event.stack,
                    event.sequence,
                    (time_ns / 1_000_000) as u32,
                    self.tid,
                );
                self.allocation(entry);
            }
            Op::Release => {
                self.release(event.address, event.sequence);
            }
            Op::ReallocRelease => {
                let undo = self.release(event.address, event.sequence);
                self.reallocs
                    .insert(self.ring, (event.address, event.sequence, undo));
            }
            Op::ReallocFailed => self.undo(event.address),
            Op::Tick | Op::SizeExtension => {}
        }
    }

    /// Ends a pass: see `order` for what that settles.
    pub fn end_pass(&mut self) {
        self.pass = self.pass.wrapping_add(1);
        let expired = self.order.expire(self.pass, false);
        self.totals.unknown_releases += expired.unknown_releases;
        self.totals.unhooked_releases += expired.unhooked_releases;
        self.totals.peak_live_bytes = self.totals.peak_live_bytes.max(self.totals.live_bytes);
    }

    /// No more events will come: settles everything that is held.
    pub fn finish(&mut self) {
        let expired = self.order.expire(self.pass, true);
        self.totals.unknown_releases += expired.unknown_releases;
        self.totals.unhooked_releases += expired.unhooked_releases;
        self.totals.peak_live_bytes = self.totals.peak_live_bytes.max(self.totals.live_bytes);
    }

    #[inline]
    fn count_allocation(&mut self, entry: &Entry) {
        self.totals.allocations += 1;
        self.totals.allocated_bytes += entry.size;
        self.totals.live_blocks += 1;
        self.totals.live_bytes += entry.size;
        let site = self.sites.of(entry.stack);
        site.allocated_blocks += 1;
        site.allocated_bytes += entry.size;
        site.blocks += 1;
        site.bytes += entry.size;
    }

    #[inline]
    fn count_release(&mut self, entry: &Entry) {
        self.totals.releases += 1;
        self.totals.released_bytes += entry.size;
        self.totals.live_blocks -= 1;
        self.totals.live_bytes -= entry.size;
        let site = self.sites.of(entry.stack);
        site.blocks -= 1;
        site.bytes -= entry.size;
    }

    fn allocation(&mut self, new: Entry) {
        let address = new.address();
        self.count_allocation(&new);
        if let Some(release) = self.order.take_held_after(address, new.sequence) {
            self.count_release(&new);
            // If that release is a realloc still under way, it may yet fail.
            for (of, number, undo) in self.reallocs.values_mut() {
                if (*of, *number) == (address, release) && matches!(undo, Undo::Held) {
                    *undo = Undo::Released(new);
                }
            }
            // The highest release number seen stays with the address: a block live since before
            // that release is gone too, and its own release is still to come.
            match self.live.get(address) {
                Some(there) if !sequence_before(there.sequence, release) => {}
                Some(there) => {
                    let old = *there;
                    there.bury(release, self.pass);
                    if old.state() == State::Live {
                        self.count_release(&old);
                        self.order.owe(address, self.pass);
                    }
                }
                None => {
                    let mut grave = new;
                    grave.bury(release, self.pass);
                    self.live.put(grave, self.pass);
                }
            }
            return;
        }
        let Some(there) = self.live.get(address) else {
            self.live.put(new, self.pass);
            return;
        };
        let old = *there;
        match old.state() {
            State::Tombstone => {
                let fresh = self.pass.wrapping_sub(old.time_ms) <= 2;
                if fresh && sequence_before(new.sequence, old.sequence) {
                    // It was released by a release that we already saw, in the place of its own.
                    self.count_release(&new);
                    self.order.owe(address, self.pass);
                } else {
                    *there = new;
                }
            }
            State::Live if new.sequence == old.sequence => {
                *there = new;
                self.count_release(&old);
                self.totals.unhooked_releases += 1;
            }
            State::Live if sequence_before(old.sequence, new.sequence) => {
                *there = new;
                self.count_release(&old);
                self.order.owe(address, self.pass);
            }
            State::Live => {
                self.count_release(&new);
                self.order.owe(address, self.pass);
            }
        }
    }

    fn release(&mut self, address: u64, number: u32) -> Undo {
        let pass = self.pass;
        if let Some(there) = self.live.get(address) {
            match there.state() {
                State::Live if sequence_before(there.sequence, number) => {
                    let old = *there;
                    there.bury(number, pass);
                    self.count_release(&old);
                    return Undo::Released(old);
                }
                State::Tombstone if sequence_before(there.sequence, number) => {
                    there.bury(number, pass);
                }
                _ => {}
            }
        }
        if self.order.pay(address) {
            return Undo::Absorbed;
        }
        self.order.hold(address, number, pass);
        Undo::Held
    }

    /// The `realloc` announced on this ring failed: the old block stands.
    fn undo(&mut self, address: u64) {
        let Some((of, number, undo)) = self.reallocs.remove(&self.ring) else {
            return;
        };
        if of != address {
            return;
        }
        match undo {
            Undo::Released(old) => {
                // It stands after the release that did not happen.
                let again = Entry::live(address, old.size, old.stack, number, old.time_ms, old.tid);
                self.live.put(again, self.pass);
                self.totals.releases -= 1;
                self.totals.released_bytes -= old.size;
                self.totals.live_blocks += 1;
                self.totals.live_bytes += old.size;
                let site = self.sites.of(old.stack);
                site.blocks += 1;
                site.bytes += old.size;
            }
            Undo::Absorbed => self.order.owe(address, self.pass),
            Undo::Held => {
                // No longer held: it was counted as unknown, for the call took long.
                if !self.order.take_held(address, number) {
                    self.totals.unknown_releases = self.totals.unknown_releases.saturating_sub(1);
                }
            }
        }
    }

    /// Totals so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Every site seen, in the order of appearance.
    pub fn sites(&self) -> &[Site] {
        self.sites.all()
    }

    /// Every live block.
    pub fn live_blocks(&self) -> impl Iterator<Item = LiveBlock> + '_ {
        self.live.live().map(|e| LiveBlock {
            address: e.address(),
            size: e.size,
            stack: e.stack,
            time_ms: e.time_ms,
            tid: e.tid,
        })
    }

    /// Live blocks by site; with `before_ms`, only those allocated before that time.
    pub fn live_by_site(&self, before_ms: Option<u32>) -> Vec<SiteLive> {
        let mut by: FxHashMap<u32, SiteLive> = FxHashMap::default();
        for e in self.live.live() {
            if before_ms.is_some_and(|limit| e.time_ms > limit) {
                continue;
            }
            let site = by.entry(e.stack).or_insert(SiteLive {
                stack: e.stack,
                bytes: 0,
                blocks: 0,
                oldest_ms: u32::MAX,
            });
            site.bytes += e.size;
            site.blocks += 1;
            site.oldest_ms = site.oldest_ms.min(e.time_ms);
        }
        by.into_values().collect()
    }
}
