//! Queries on a ledger. Queries about live blocks walk the whole table.

use crate::entry::Entry;
use crate::shards::shard_of;
use crate::sites::ReleaseSites;
use crate::{Ledger, LiveBlock, Observer, SiteLive, SiteTotals, SiteWalk, Totals};

impl<O: Observer> Ledger<O> {
    /// Returns sums over the whole run.
    pub fn totals(&self) -> Totals {
        let mut all = self.own_totals();
        for other in &self.others {
            all.add(&other.own_totals());
            all.peak_live_bytes = self.peak_of_shards;
        }
        all
    }

    /// Returns the sums of one shard.
    pub(crate) fn own_totals(&self) -> Totals {
        let live_bytes = self.own_live_bytes();
        if self.map.is_thinned() {
            let live_blocks = self.estimate.blocks.round() as u64;
            let released = self.totals.allocations.saturating_sub(live_blocks);
            return Totals {
                live_bytes,
                live_blocks,
                releases: released + self.totals.unknown_releases,
                released_bytes: self.totals.allocated_bytes.saturating_sub(live_bytes),
                ..self.totals
            };
        }
        Totals {
            live_bytes,
            live_blocks: self.map.live() as u64,
            ..self.totals
        }
    }

    /// Returns sums of every allocation site seen so far, ordered by stack id.
    pub fn sites(&self) -> Vec<SiteTotals> {
        self.walked(SiteWalk::new(None)).into_sites()
    }

    /// Like [`Ledger::sites`], but treats the samples of a stack at each sampling distance as a separate site
    /// ([`SiteTotals::sampling`](crate::SiteTotals::sampling)).
    pub fn sites_by_sampling(&self) -> Vec<SiteTotals> {
        self.walked(SiteWalk::new(None)).into_sites_by_sampling()
    }

    /// Returns true if allocations were sampled at any time, so that some are unknown.
    pub fn is_sampled(&self) -> bool {
        self.is_sampled || self.options.all_are_samples
    }

    /// Returns the time at which the live block at an address was allocated, in nanoseconds since the attach, to the
    /// millisecond.
    pub fn alive_since(&self, address: u64) -> Option<u64> {
        let shard = shard_of(address, self.shards()).checked_sub(1);
        let map = shard.map_or(&self.map, |other| &self.others[other].map);
        Some(map.alive_at(address)?.time_ns())
    }

    /// Iterates over all live blocks that are kept, in no particular order; each represents [`Ledger::weight`] blocks.
    pub fn live_blocks(&self) -> impl Iterator<Item = LiveBlock> + '_ {
        let others = self.others.iter().flat_map(Ledger::own_live_blocks);
        self.own_live_blocks().chain(others)
    }

    fn own_live_blocks(&self) -> impl Iterator<Item = LiveBlock> + '_ {
        self.map.iter_live().map(|entry| self.live_block(entry))
    }

    /// Returns the live block of an entry of the table.
    pub(crate) fn live_block(&self, entry: Entry) -> LiveBlock {
        LiveBlock {
            address: entry.address(),
            size: self.map.size_of(entry),
            stack: self.sites.stack_of(entry.site()),
            time_ns: entry.time_ns(),
            tid: self.threads.tid_of(entry.tid_index()),
            sampling: self.sites.level_of(entry.site()),
        }
    }

    /// Returns live sums, ordered by stack id, of all blocks, or of the blocks allocated before `older_than_ns`
    /// (nanoseconds since the attach).
    pub fn live_by(&self, older_than_ns: Option<u64>) -> Vec<SiteLive> {
        self.walked(SiteWalk::new(older_than_ns)).into_live()
    }

    fn walked(&self, mut walk: SiteWalk) -> SiteWalk {
        while self.walk_sites(&mut walk) {}
        walk
    }

    /// Returns the releases of known blocks by the backtrace of the release, as (stack, blocks, bytes), ordered by
    /// stack id. Empty without [`LedgerOptions::track_release_stacks`](crate::LedgerOptions).
    ///
    /// If blocks of different sizes were at the same address within one pass, a size may be counted at the release of
    /// the previous or the next block. The sums over all stacks are exact.
    pub fn release_sites(&self) -> Vec<(u32, u64, u64)> {
        let others = self.others.iter().map(|other| &other.release_sites);
        ReleaseSites::all_of(std::iter::once(&self.release_sites).chain(others))
    }

    /// Returns the id of the thread with this index, as passed to an [`Observer`]; 0 if there is none.
    pub fn tid_of(&self, thread: u16) -> u32 {
        self.threads.tid_of(thread)
    }

    /// Returns the observer that the ledger notifies of each block.
    pub fn observer(&self) -> &O {
        &self.observer
    }

    /// Consumes the ledger, and returns the observer.
    pub fn into_observer(self) -> O {
        self.observer
    }

    /// Returns the observer for changes.
    pub fn observer_mut(&mut self) -> &mut O {
        &mut self.observer
    }

    /// Returns the size of the table of blocks in memory, in bytes.
    pub fn table_bytes(&self) -> usize {
        let others = self.others.iter().map(|other| other.map.table_bytes());
        self.map.table_bytes() + others.sum::<usize>()
    }
}
