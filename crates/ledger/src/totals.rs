//! What the ledger answers.

/// Sums over the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Allocations, those of successful reallocations included.
    pub allocations: u64,
    /// Releases, unknown ones and those of successful reallocations included.
    pub releases: u64,
    /// Bytes requested by all allocations.
    pub allocated_bytes: u64,
    /// Bytes of known blocks that were released.
    pub released_bytes: u64,
    /// Bytes of blocks that live now.
    pub live_bytes: u64,
    /// Blocks that live now.
    pub live_blocks: u64,
    /// Releases of blocks whose allocation was not seen: from before the attach, not recorded
    /// because of a filter, or lost.
    pub unknown_releases: u64,
    /// Blocks whose address was handed out again although no release was seen.
    pub unhooked_releases: u64,
    /// Largest `live_bytes`. Passes in which several threads recorded are looked at only when they
    /// end, since their events have no common order: between two ends it may have been higher.
    pub peak_live_bytes: u64,
}

/// Sums of one allocation site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteTotals {
    /// Stack id of the allocations.
    pub stack: u32,
    /// Live bytes.
    pub bytes: u64,
    /// Live blocks.
    pub blocks: u64,
    /// Time of the oldest live block's allocation, nanoseconds since the attach, to the
    /// millisecond; 0 if none lives.
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
    /// Allocating thread (target's pid namespace); 0 if more than 65,535 threads were seen.
    pub tid: u32,
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
    /// Time of the oldest one, nanoseconds since the attach, to the millisecond.
    pub oldest_ns: u64,
}

/// How a ledger counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerOptions {
    /// Keep sums by the backtrace of the release too.
    pub track_release_stacks: bool,
    /// Do not count releases of unknown blocks: with a size filter they are the rule.
    pub ignore_unknown_releases: bool,
}
