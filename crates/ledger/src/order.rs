//! One order for the events of many rings.
//!
//! # What is given
//!
//! The true history of one address is a sequence of allocations and releases. The hook numbers it: a release atomically
//! increments the address's sequence word before the allocator is called, and carries the result *n*. An allocation
//! carries the value *v* that it reads after the allocator has returned. The allocator's own synchronization puts the
//! increment of a release before the read of the next owner, so an allocation with *v* comes after every release
//! numbered at most *v*, and before every release numbered above *v*. Hence all events of one address are ordered by
//! their numbers, with an allocation after the release of the same number. Two allocations can have the same number
//! only if no recorded release is between them.
//!
//! Events arrive in passes: every event that happened before an event of pass *k* has arrived by the end of pass *k +
//! 1*.
//!
//! # The rule
//!
//! For each address, the ledger keeps only the latest known event in this order: a live block, or a tombstone with the
//! number of the release. An arriving event is compared with it:
//!
//! | arriving | latest is | and is | then |
//! |---|---|---|---|
//! | allocation | block | before | the old block is released, the new one lives |
//! | allocation | block | after | the new block is already released |
//! | allocation | tombstone | before | the new block lives |
//! | allocation | tombstone | after | the new block is already released |
//! | release | block | before | the block is released; tombstone |
//! | release | block | after | a release of some other block |
//! | release | tombstone | either | a release of some other block; the later tombstone stays |
//!
//! # Why the result does not depend on the order of arrival
//!
//! *Live set.* The latest known event is a maximum, and a maximum does not depend on the order in which its set is
//! enumerated. The ledger reports a block as live if and only if the latest event of its address is its allocation.
//! This is correct when all events have arrived.
//!
//! *Sums.* Every allocation is counted once, on arrival. A block is counted as released when its allocation is not, or
//! no longer, the maximum. This happens exactly once for every allocation, except one that is the latest event of its
//! address. In the true history, these are the blocks that were released.
//!
//! *Pairs.* Let *balance* be the number of blocks counted as released minus the number of known releases. A release
//! that removes the latest block increases both. Every other line of the table changes only one of them, and is noted
//! in [`Contests`]. When all events of a history without unseen releases have arrived, every released block has its
//! release, so the remaining balance is minus the number of releases of unknown blocks. A positive balance is the
//! number of blocks whose release was not seen. A balance is settled when it has not changed for two passes: by then,
//! every event that happened before the last event of the balance has arrived. If an address has positive and negative
//! balances within two passes, they cancel out.
//!
//! *Forgetting.* A tombstone that arrived in pass *k* matters only to older events, which all arrive by pass *k + 1*.
//! After that, the entry of another address may overwrite it. For the same reason, an event that arrives two passes
//! after the latest event is later than that event, regardless of their numbers. So numbers are compared only while
//! they are fresh, and 22 bits are enough.
//!
//! `reallocs` handles reallocations.

use crate::batch::Batch;
use crate::contests::Contests;
use crate::entry::Entry;
use crate::live_map::{LiveMap, Place};
use crate::observer::{Observer, ReleaseBy};
use crate::partners::{Correction, Partners};
use crate::reallocs::RingReallocs;
use crate::sites::{ReleaseSites, SiteTable, ThreadTable};
use crate::thinning::Estimate;
use crate::totals::{LedgerOptions, Totals};
use memhook_abi::{Event, Op, RawEvent, sequence_before};

/// Live blocks and sums of one attach. See the crate's documentation.
pub struct Ledger<O = ()> {
    pub(crate) observer: O,
    pub(crate) options: LedgerOptions,
    pub(crate) map: LiveMap,
    pub(crate) sites: SiteTable,
    pub(crate) release_sites: ReleaseSites,
    pub(crate) threads: ThreadTable,
    pub(crate) contests: Contests,
    pub(crate) partners: Partners,
    pub(crate) corrections: Vec<Correction>,
    pub(crate) reallocs: RingReallocs,
    pub(crate) batch: Batch,
    /// True if the ledger was configured to treat allocations as samples.
    pub(crate) is_sampled: bool,
    /// Time at which the bound on memory was reached, and the number of live blocks at that time.
    pub(crate) bound_reached: Option<(u64, u64)>,
    /// Estimate of the live blocks, used when some of them are not kept.
    pub(crate) estimate: Estimate,
    /// Sums without `live_*`, which are derived from others.
    pub(crate) totals: Totals,
    /// The current pass.
    pub(crate) pass: u32,
    pub(crate) tid_index: u16,
    pub(crate) rings_in_pass: u32,
    /// Largest number of live bytes within this pass, if all of its events come from one ring.
    pub(crate) pass_peak: u64,
    pub(crate) now_ns: u64,
    /// The other shards, if this ledger is divided (`shards`).
    pub(crate) others: Vec<Ledger>,
    /// Peak of the sum of all shards.
    pub(crate) peak_of_shards: u64,
}

/// A release to apply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Release {
    pub address: u64,
    pub sequence: u32,
    pub stack: u32,
    /// Pass in which it arrived.
    pub pass: u32,
    /// See [`ReleaseBy::by_realloc`].
    pub by_realloc: bool,
    /// See [`ReleaseBy::accesses`].
    pub accesses: u32,
}

impl Release {
    pub fn by(&self, thread: u16) -> ReleaseBy {
        ReleaseBy {
            stack: self.stack,
            thread,
            by_realloc: self.by_realloc,
            accesses: self.accesses,
        }
    }
}

impl Ledger {
    /// Creates an empty ledger.
    pub fn new(options: LedgerOptions) -> Self {
        Self::observed(options, ())
    }
}

impl<O: Observer> Ledger<O> {
    /// Creates an empty ledger that reports each block to `observer`.
    pub fn observed(options: LedgerOptions, observer: O) -> Self {
        Self {
            observer,
            options,
            map: LiveMap::new(),
            sites: SiteTable::default(),
            release_sites: ReleaseSites::default(),
            threads: ThreadTable::new(),
            contests: Contests::new(),
            partners: Partners::new(options.track_release_stacks),
            corrections: Vec::new(),
            reallocs: RingReallocs::default(),
            batch: Batch::default(),
            is_sampled: false,
            bound_reached: None,
            estimate: Estimate::default(),
            totals: Totals::default(),
            pass: 0,
            tid_index: 0,
            rings_in_pass: 0,
            pass_peak: 0,
            now_ns: 0,
            others: Vec::new(),
            peak_of_shards: 0,
        }
    }

    /// Begins the events that thread `tid` published in ring `ring`.
    pub fn begin_ring(&mut self, ring: usize, tid: u32) {
        self.apply_batch();
        self.look_at_memory();
        self.sites
            .set_sampling(u8::from(self.options.all_are_samples));
        self.rings_in_pass += 1;
        self.tid_index = self.threads.index_of(tid);
        if self.reallocs.enter(ring, tid) {
            // The thread that announced a realloc has ended, so the call has ended too.
            self.confirm_realloc();
        }
    }

    /// Sets how the following allocations of this ring are sampled: a level of
    /// [`SampledAllocations`](crate::SampledAllocations), or 0 if every allocation is recorded. At the beginning of a
    /// ring, the level is 0, or 1 if all allocations are samples.
    pub fn set_sampling(&mut self, level: u8) {
        self.apply_batch();
        self.sites.set_sampling(level);
        if level != 0 {
            self.learn_of_samples();
        }
    }

    pub(crate) fn learn_of_samples(&mut self) {
        self.is_sampled = true;
        // Releases of unsampled blocks also arrive if the hook does not know which blocks were sampled.
        self.options.ignore_unknown_releases = true;
        self.totals.unknown_releases = 0;
    }

    /// The innermost loop of the consumer. Inlining it saves a third of the time that short-lived pairs take.
    #[inline(always)]
    pub(crate) fn apply_event(&mut self, event: Event, size: u64, time_ns: u64) {
        if event.address == 0 {
            return; // no allocator hands out null, and no hook writes it
        }
        if self.reallocs.is_open() && self.end_realloc(event.op, event.words()) {
            return;
        }
        self.observer.at(time_ns);
        if event.op == Op::Allocation {
            self.allocation(event, size, time_ns);
        } else if event.op == Op::Release {
            self.release(self.release_of(event));
        } else {
            self.rare_event(event.op, event.words(), size, time_ns);
        }
    }

    /// Applies an event that is neither an allocation nor a release.
    #[inline(never)]
    fn rare_event(&mut self, op: Op, words: RawEvent, size: u64, time_ns: u64) {
        let event = words.unpack_as(op);
        match event.op {
            Op::ReallocRelease => self.reallocs.open(self.release_of(event)),
            Op::Pair => self.pairs(event, size, time_ns),
            // Either a failed realloc whose announcement was lost, or an event that does not concern blocks.
            _ => {}
        }
    }

    /// Ends the pass. `now_ns` is the time in nanoseconds since the attach.
    pub fn end_pass(&mut self, now_ns: u64) {
        self.end_own_pass(now_ns);
        if !self.others.is_empty() {
            for other in &mut self.others {
                other.end_own_pass(now_ns);
            }
            self.agree();
        }
    }

    /// Ends a pass for one shard.
    pub(crate) fn end_own_pass(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.apply_batch();
        // This step comes before balances are settled, because each balance must be complete by then.
        self.age_reallocs();
        self.correct_releases();
        let settled = self.contests.settle(self.pass);
        self.totals.unhooked_releases += settled.unhooked_releases;
        if !self.options.ignore_unknown_releases {
            self.totals.unknown_releases += settled.unknown_releases;
        }
        let live = self.own_live_bytes();
        let peak = if self.rings_in_pass <= 1 {
            self.pass_peak.max(live)
        } else {
            live
        };
        // The maximum of many estimates would usually be too large.
        if !self.map.is_thinned() {
            self.totals.peak_live_bytes = self.totals.peak_live_bytes.max(peak);
        }
        self.observer.end_pass(now_ns, peak, peak > live);
        self.pass_peak = live;
        self.rings_in_pass = 0;
        self.pass = self.pass.wrapping_add(1);
        self.map.sweep(self.pass as u16);
        self.look_at_memory();
        self.choose_batching();
    }

    /// Ends the run: decides about events that were held back.
    pub fn finish(&mut self) {
        // A realloc counts as complete after one pass, and its balance is settled two passes later.
        for _ in 0..4 {
            self.end_pass(self.now_ns);
        }
    }

    /// Returns the live bytes of all shards.
    pub(crate) fn live_bytes(&self) -> u64 {
        let others = self.others.iter().map(Ledger::own_live_bytes);
        // The sum of forged events is limited in each shard, but the sum of all shards could overflow.
        others.fold(self.own_live_bytes(), u64::saturating_add)
    }

    pub(crate) fn own_live_bytes(&self) -> u64 {
        if self.map.is_thinned() {
            return self.estimate.bytes.round() as u64;
        }
        self.totals.allocated_bytes - self.totals.released_bytes
    }

    fn release_of(&self, event: Event) -> Release {
        Release {
            address: event.address,
            sequence: event.sequence,
            stack: event.stack,
            pass: self.pass,
            by_realloc: event.op == Op::ReallocRelease,
            accesses: event.size,
        }
    }

    /// Returns the sum of all allocations after `count` more of this size. `None` if the sum does not fit into 64 bits:
    /// no program can have allocated that much, so the event is damaged or forged, and is ignored. All other sums of
    /// bytes are parts of this sum, so they never overflow.
    #[inline(always)]
    fn with_more(&self, size: u64, count: u64) -> Option<u64> {
        let more = size.checked_mul(count)?;
        self.totals.allocated_bytes.checked_add(more)
    }

    #[inline(always)]
    fn allocation(&mut self, event: Event, size: u64, time_ns: u64) {
        let (address, sequence) = (event.address, event.sequence);
        let pass = self.pass as u16;
        let Some(allocated_bytes) = self.with_more(size, 1) else {
            return;
        };
        let site = self.sites.allocated(event.stack, size);
        self.observer.counted(self.sites.counted(site), size, 1);
        self.totals.allocations += 1;
        self.totals.allocated_bytes = allocated_bytes;
        let block = Entry::block(address, sequence, pass, site, size, time_ns, self.tid_index);
        if self.map.is_thinned() && !self.admit(address, sequence, size) {
            return;
        }
        self.observer.allocated(&block.with_size(size), event.stack);
        let (at, latest) = match self.map.find(address, pass) {
            Place::Vacant(at) => (at, None),
            Place::Found(at) => (at, Some(self.map.get(at))),
        };
        if let Some(latest) = latest {
            let old = latest.sequence();
            let certain = latest.precedes_all_of(pass);
            if latest.is_alive() {
                if !certain && sequence_before(sequence, old) {
                    return self.dead_on_arrival(block, size);
                }
                let old_size = self.map.size_of(latest);
                self.count_released(latest, old_size, None);
                if !certain && old == sequence {
                    // Both allocations have the same number, so no recorded release can be between them, and there is
                    // nothing to wait for.
                    self.totals.unhooked_releases += 1;
                } else {
                    self.contest_block(latest, old_size);
                }
            } else if !certain && sequence_before(sequence, old) {
                return self.dead_on_arrival(block, size);
            }
        }
        self.map.put(at, block, size);
        if self.own_live_bytes() > self.pass_peak {
            self.pass_peak = self.own_live_bytes();
            self.observer.maximum();
        }
    }

    /// Applies pairs: blocks whose release is the next event of their address after the allocation. They leave no
    /// state, so their position in the order does not matter, but they show that the address was free.
    fn pairs(&mut self, event: Event, size: u64, time_ns: u64) {
        let (address, pass, count) = (event.address, self.pass as u16, u64::from(event.sequence));
        if count == 0 {
            return; // no hook writes it
        }
        let Some(allocated_bytes) = self.with_more(size, count) else {
            return;
        };
        let site = self.sites.paired(event.stack, size, count);
        self.observer.counted(self.sites.counted(site), size, count);
        self.totals.allocations += count;
        self.totals.releases += count;
        let most = self.own_live_bytes() + size;
        self.totals.allocated_bytes = allocated_bytes;
        self.totals.released_bytes += size * count;
        if let Place::Found(at) = self.map.find(address, pass) {
            let latest = self.map.get(at);
            // Another thread's block may be later than the pair.
            let before = latest.precedes_all_of(pass)
                || (self.tid_index != 0 && latest.tid_index() == self.tid_index);
            if latest.is_alive() && before {
                let old_size = self.map.size_of(latest);
                self.count_released(latest, old_size, None);
                self.contest_block(latest, old_size);
                self.map.put(at, latest.dead(), 0);
            }
        }
        let block = Entry::block(address, 0, pass, site, size, time_ns, self.tid_index);
        let block = block.with_size(size);
        self.observer.allocated(&block, event.stack);
        if most > self.pass_peak {
            self.pass_peak = most;
            self.observer.maximum();
        }
        let by = ReleaseBy {
            stack: 0,
            thread: self.tid_index,
            by_realloc: false,
            accesses: 0,
        };
        self.observer.released(&block, Some(by));
        self.observer.more_pairs(&block, event.stack, by, count - 1);
    }

    #[cold]
    fn dead_on_arrival(&mut self, block: Entry, size: u64) {
        self.count_released(block, size, None);
        self.contest_block(block, size);
    }

    /// Applies a release that was held back.
    #[inline(never)]
    pub(crate) fn late_release(&mut self, release: Release) {
        self.release(release);
    }

    #[inline(always)]
    fn release(&mut self, release: Release) {
        self.totals.releases += 1;
        if self.map.is_thinned() && self.map.thinning().excludes(release.address) {
            return;
        }
        let now = self.pass as u16;
        let place = self.map.find(release.address, now);
        let tombstone = Entry::tombstone(release.address, release.sequence, release.pass as u16);
        let by = release.by(self.tid_index);
        match place {
            Place::Found(at) => {
                let latest = self.map.get(at);
                let later = latest.is_before_release(release.sequence, release.pass as u16);
                if latest.is_alive() && later {
                    self.count_pair(latest, release, by);
                    self.map.put(at, tombstone, 0);
                    return;
                }
                if later {
                    self.map.put(at, tombstone, 0);
                }
            }
            Place::Vacant(at) => self.map.put(at, tombstone, 0),
        }
        self.contest_release(release, by);
    }

    /// Counts the release of a live entry.
    #[inline(always)]
    pub(crate) fn count_pair(&mut self, block: Entry, release: Release, by: ReleaseBy) {
        let size = self.map.size_of(block);
        self.partners.take(block, size, release, by, self.pass);
        self.count_released(block, size, Some(by));
        if self.options.track_release_stacks {
            self.release_sites.add(by.stack, size, self.weight(size));
        }
    }

    #[inline(always)]
    pub(crate) fn count_released(&mut self, block: Entry, size: u64, by: Option<ReleaseBy>) {
        if self.map.is_thinned() {
            self.estimate.remove(self.weight(size), size);
        }
        self.totals.released_bytes += size;
        self.sites.released(block.site(), size);
        self.observer.released(&block.with_size(size), by);
    }

    /// Adds a block whose release is not known.
    #[inline(never)]
    pub(crate) fn contest_block(&mut self, block: Entry, size: u64) {
        self.contests.add_block(block.address(), self.pass);
        self.partners.add_block(block, size, None, self.pass);
    }

    /// Adds a release whose block is not known at the moment.
    #[inline(never)]
    pub(crate) fn contest_release(&mut self, release: Release, by: ReleaseBy) {
        self.observer.unknown_released(release.address, by);
        self.contests.add_release(release.address, self.pass);
        self.partners.add_release(release, by);
    }

    /// Stops reporting corrections of earlier releases to the observer.
    pub fn begin_window(&mut self) {
        self.apply_batch();
        self.partners.begin_window();
    }

    /// Assigns blocks to the releases of the last passes, and reports corrections.
    fn correct_releases(&mut self) {
        let mut corrections = std::mem::take(&mut self.corrections);
        self.partners.settle(self.pass, &mut corrections);
        for correction in corrections.drain(..) {
            let Correction {
                block, from, to, ..
            } = correction;
            let weight = self.weight(block.size);
            if let Some(from) = from {
                self.release_sites.remove(from.stack, block.size, weight);
            }
            if let Some(to) = to {
                self.release_sites.add(to.stack, block.size, weight);
            }
            if !correction.is_past {
                self.observer.corrected(&block, from, to);
            }
        }
        self.corrections = corrections; // keeps its capacity
    }
}
