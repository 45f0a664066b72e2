//! Results of queries to a ledger.

/// Sums over the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Allocations, including successful reallocations.
    pub allocations: u64,
    /// Releases, including unknown ones and successful reallocations.
    pub releases: u64,
    /// Bytes requested by all allocations.
    pub allocated_bytes: u64,
    /// Bytes of known blocks that were released.
    pub released_bytes: u64,
    /// Bytes of live blocks.
    pub live_bytes: u64,
    /// Number of live blocks.
    pub live_blocks: u64,
    /// Releases of blocks whose allocation was not seen, because it was before the attach, was excluded by a filter, or
    /// was lost.
    pub unknown_releases: u64,
    /// Blocks whose address was reused although no release was seen.
    pub unhooked_releases: u64,
    /// Largest `live_bytes`. Passes in which several threads recorded, and all passes of a ledger in shards, are
    /// examined only at their end, since their events have no common order: within such a pass, the number may have
    /// been higher. Covers only the time during which all blocks were kept ([`Bounded`]).
    pub peak_live_bytes: u64,
}

impl Totals {
    /// Adds the sums of another shard, except its peak: a sum of peaks is not a peak.
    pub(crate) fn add(&mut self, other: &Totals) {
        self.allocations += other.allocations;
        self.releases += other.releases;
        self.allocated_bytes = self.allocated_bytes.saturating_add(other.allocated_bytes);
        self.released_bytes = self.released_bytes.saturating_add(other.released_bytes);
        self.live_bytes = self.live_bytes.saturating_add(other.live_bytes);
        self.live_blocks += other.live_blocks;
        self.unknown_releases += other.unknown_releases;
        self.unhooked_releases += other.unhooked_releases;
    }
}

/// Sums of one allocation site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteTotals {
    /// Stack id of the allocations.
    pub stack: u32,
    /// Level of sampling; 0 if every allocation was recorded, or for the whole stack.
    pub sampling: u8,
    /// Live bytes.
    pub bytes: u64,
    /// Live blocks.
    pub blocks: u64,
    /// Allocation time of the oldest live block in nanoseconds since the attach, to the millisecond; 0 if there is
    /// none.
    pub oldest_ns: u64,
    /// Blocks ever allocated.
    pub allocated_blocks: u64,
    /// Bytes ever allocated.
    pub allocated_bytes: u64,
    /// Blocks released.
    pub released_blocks: u64,
    /// Bytes released.
    pub released_bytes: u64,
    /// Smallest size in bytes.
    pub min_size: u64,
    /// Largest size in bytes.
    pub max_size: u64,
}

impl SiteTotals {
    /// Adds another site of the same stack. Each sum of forged events fits into its type, but the total may not.
    pub(crate) fn add(&mut self, other: &SiteTotals) {
        let oldest = [self.oldest_ns, other.oldest_ns].into_iter();
        self.oldest_ns = oldest.filter(|&at| at > 0).min().unwrap_or(0);
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.bytes, other.bytes);
        add(&mut self.blocks, other.blocks);
        add(&mut self.allocated_blocks, other.allocated_blocks);
        add(&mut self.allocated_bytes, other.allocated_bytes);
        add(&mut self.released_blocks, other.released_blocks);
        add(&mut self.released_bytes, other.released_bytes);
        self.min_size = self.min_size.min(other.min_size);
        self.max_size = self.max_size.max(other.max_size);
    }
}

/// Losses of a ledger that reached [`LedgerOptions::max_bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounded {
    /// The bound.
    pub max_bytes: u64,
    /// Time at which the bound was reached, in nanoseconds since the attach.
    pub since_ns: u64,
    /// Number of blocks that were live at that time.
    pub live_blocks_then: u64,
    /// Number of live blocks that were kept, out of [`Totals::live_blocks`], which is an estimate if `is_thinned`.
    pub kept_blocks: u64,
    /// True if some live blocks are not kept: all sums of live and released blocks are estimates.
    pub is_thinned: bool,
    /// Size from which all blocks are kept; 0 if all are kept. Smaller blocks are kept with a probability of their size
    /// divided by this size.
    pub all_from_bytes: u64,
    /// Sampling interval of addresses: one address in this many is kept.
    pub one_address_in: u64,
    /// Number of allocations counted without their stack, because there were already too many stacks.
    pub unattributed_allocations: u64,
    /// True if releases of unknown blocks, and blocks whose release was not seen, are no longer counted.
    pub ignores_unknown_releases: bool,
}

impl Bounded {
    /// Combines two shards of a ledger.
    pub(crate) fn and(self, other: &Bounded) -> Bounded {
        Bounded {
            max_bytes: self.max_bytes + other.max_bytes,
            since_ns: self.since_ns.min(other.since_ns),
            live_blocks_then: self.live_blocks_then + other.live_blocks_then,
            kept_blocks: self.kept_blocks + other.kept_blocks,
            is_thinned: self.is_thinned || other.is_thinned,
            all_from_bytes: self.all_from_bytes.max(other.all_from_bytes),
            one_address_in: self.one_address_in.max(other.one_address_in),
            unattributed_allocations: self.unattributed_allocations
                + other.unattributed_allocations,
            ignores_unknown_releases: self.ignores_unknown_releases
                || other.ignores_unknown_releases,
        }
    }
}

/// One live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveBlock {
    /// Address (avma).
    pub address: u64,
    /// Requested size in bytes.
    pub size: u64,
    /// Stack id of the allocation.
    pub stack: u32,
    /// Time of the allocation, nanoseconds since the attach, to the millisecond.
    pub time_ns: u64,
    /// Allocating thread (target's PID namespace); 0 if more than 65,535 threads were seen.
    pub tid: u32,
    /// Level of sampling; 0 if every allocation was recorded ([`Ledger::set_sampling`](crate::Ledger::set_sampling)).
    pub sampling: u8,
}

/// Live blocks of one allocation site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteLive {
    /// Stack id of the allocations.
    pub stack: u32,
    /// Live bytes.
    pub bytes: u64,
    /// Live blocks.
    pub blocks: u64,
    /// Allocation time of the oldest live block in nanoseconds since the attach, to the millisecond.
    pub oldest_ns: u64,
}

/// Options of a ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerOptions {
    /// True to keep sums by the backtrace of the release too.
    pub track_release_stacks: bool,
    /// True to ignore releases of unknown blocks, which are the normal case with a size filter.
    pub ignore_unknown_releases: bool,
    /// True if every recorded allocation is a sample.
    pub all_are_samples: bool,
    /// Maximum memory of the ledger in bytes, apart from the contents of one ring; at least
    /// [`LEAST_BYTES`](crate::LEAST_BYTES). Beyond this limit, the ledger keeps a sample of the blocks; see
    /// [`Ledger::bounded`](crate::Ledger::bounded).
    pub max_bytes: Option<usize>,
}
