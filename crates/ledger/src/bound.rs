//! Bound on the memory of a ledger: beyond the bound, only a sample of the blocks is kept.
//!
//! Counts that are updated when an event arrives stay exact: allocations and their bytes, even per site. A release
//! contains only an address, so it can be attributed to a site only if its block was kept. So beyond the bound, sums of
//! live blocks and of released blocks are estimates.
//!
//! Sites get half of the memory. When they fill it, allocations with new stacks are counted together.

use crate::entry::Entry;
use crate::live_map::Place;
use crate::thinning::{Estimate, Thinning};
use crate::{Bounded, Ledger, Observer};

/// Lowest permitted memory bound. A smaller ledger would keep too few blocks for a useful sample.
pub const LEAST_BYTES: usize = 4 << 20;
/// Memory of a site in a report under construction, in addition to its sums: rows, names of rows, and their order.
const REPORT_BYTES: usize = 192;
/// Maximum number of bytes of the table per entry, directly after the table was resized.
const ENTRY_BYTES: usize = 48;

impl<O: Observer> Ledger<O> {
    /// Returns the losses due to the memory bound, or `None` if there are none.
    pub fn bounded(&self) -> Option<Bounded> {
        let all = self.others.iter().filter_map(Ledger::own_bounded);
        all.fold(self.own_bounded(), |all, of_shard| {
            Some(all.map_or(of_shard, |all| all.and(&of_shard)))
        })
    }

    fn own_bounded(&self) -> Option<Bounded> {
        let (since_ns, live_blocks_then) = self.bound_reached?;
        let thinning = self.map.thinning();
        let is_thinned = thinning.is_on();
        Some(Bounded {
            max_bytes: self.options.max_bytes.unwrap_or(0) as u64,
            since_ns,
            live_blocks_then,
            kept_blocks: if is_thinned {
                self.estimate.kept_blocks
            } else {
                self.map.live() as u64
            },
            is_thinned,
            all_from_bytes: thinning.threshold,
            one_address_in: 1 << thinning.shift,
            unattributed_allocations: self.sites.unattributed().unwrap_or(0),
            ignores_unknown_releases: self.contests.is_closed(),
        })
    }

    /// Returns how many blocks of this size a kept block represents; 1 while all blocks are kept.
    pub fn weight(&self, size: u64) -> f64 {
        self.map.thinning().weight(size)
    }

    /// Returns the size in bytes of the memory that grows with the program's activity.
    pub fn memory_bytes(&self) -> usize {
        let others = self.others.iter().map(Ledger::own_memory_bytes);
        self.own_memory_bytes() + others.sum::<usize>()
    }

    fn own_memory_bytes(&self) -> usize {
        self.map.table_bytes() + self.contests.bytes() + self.partners.bytes() + self.site_bytes()
    }

    fn site_bytes(&self) -> usize {
        self.sites.bytes() + self.sites.len() * REPORT_BYTES + self.release_sites.bytes()
    }

    /// Drops the excess; called between rings and passes.
    pub(crate) fn look_at_memory(&mut self) {
        let Some(max) = self.options.max_bytes else {
            return;
        };
        let max = max.max(LEAST_BYTES);
        if self.map.shed_some(self.pass as u16) {
            return;
        }
        if self.site_bytes() > max / 2 && self.sites.unattributed().is_none() {
            self.reach_bound();
            self.sites.close();
            self.release_sites.close();
        }
        if self.contests.bytes() > max / 8 {
            self.reach_bound();
            self.contests.close();
        }
        if self.partners.bytes() > max / 8 {
            self.partners.close();
        }
        if self.own_memory_bytes() > max {
            self.thin(max.saturating_sub(self.site_bytes()).max(max / 4));
        }
    }

    fn reach_bound(&mut self) {
        let now = (self.now_ns, self.own_totals().live_blocks);
        self.bound_reached.get_or_insert(now);
    }

    /// Drops blocks until the table takes about half of the given number of bytes.
    #[cold]
    fn thin(&mut self, bytes: usize) {
        let room = (bytes / 2 / ENTRY_BYTES) as f64;
        let thinning = self.map.thinning_for(room, self.pass as u16);
        self.thin_to(thinning);
    }

    /// Applies a thinning rule.
    pub(crate) fn thin_to(&mut self, thinning: Thinning) {
        if thinning.is_on() {
            self.reach_bound();
            // A release of a dropped block looks like a release of a block from before the attach.
            self.contests.close();
            self.partners.close();
        }
        self.map.thin(thinning);
        if thinning.is_on() {
            let mut estimate = Estimate::default();
            for entry in self.map.iter_live() {
                let size = self.map.size_of(entry);
                estimate.add(thinning.weight(size), size);
            }
            self.estimate = estimate;
        }
    }

    /// Returns true if a new block is kept. Even if a block is not kept, it ends the life of a known block at the same
    /// address.
    #[inline(never)]
    pub(crate) fn admit(&mut self, address: u64, sequence: u32, size: u64) -> bool {
        let pass = self.pass as u16;
        if self.map.thinning().keeps(address, size) {
            self.estimate.add(self.weight(size), size);
            return true;
        }
        if self.map.thinning().excludes(address) {
            return false;
        }
        if let Place::Found(at) = self.map.find(address, pass) {
            let latest = self.map.get(at);
            if latest.is_alive() && latest.is_before_allocation(sequence, pass) {
                let old_size = self.map.size_of(latest);
                self.count_released(latest, old_size, None);
                let gone = Entry::tombstone(address, sequence, pass);
                self.map.put(at, gone, 0);
            }
        }
        false
    }
}
