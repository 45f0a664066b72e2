//! Untouched blocks, by allocation site. Serialized as is, this is the JSON schema `memhook-rs/stale/1`.

mod text;

use crate::{Document, StackFrame, Style, Target};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// A report of `stale`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StaleReport {
    /// Always `memhook-rs/stale/1`.
    pub schema: Cow<'static, str>,
    /// True for the last report of this watch.
    #[serde(rename = "final")]
    pub is_final: bool,
    /// The process.
    pub target: Target,
    /// Seconds without a touch after which a block is stale.
    pub older_s: f64,
    /// Share of the target's time that watching may take.
    pub budget: f64,
    /// Share of the target's time that watching took: the number of events times their measured cost.
    pub cost: f64,
    /// Time for which the process has been watched, in seconds.
    pub watched_s: f64,
    /// Kinds and amount of the collected evidence.
    pub evidence: StaleEvidence,
    /// Sums of all sites.
    pub totals: StaleTotals,
    /// Sites with the most bytes that have been stale for the longest time come first. If a site's state is unknown,
    /// only its certain bytes count.
    pub sites: Vec<StaleSite>,
    /// Number of unlisted sites.
    pub more_sites: u64,
    /// Missing evidence, with the reasons.
    pub notes: Vec<String>,
    /// Bytes by the time since their last use, in the course of the run. Set in the last report, if writes are seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<StaleHistory>,
    /// Maximum number of frames collected from each call stack.
    #[serde(skip)]
    pub depth: u32,
}

impl StaleReport {
    /// Name and version of the schema.
    pub const SCHEMA: &str = "memhook-rs/stale/1";
}

/// Age of live bytes over time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StaleHistory {
    /// Upper ends of the bands of `untouched_bytes` in seconds. The last band has no upper end.
    pub ages_s: Vec<f64>,
    /// Seconds for which a page is not watched after a write. There is one entry for each number of `pages`.
    pub thresholds_s: Vec<f64>,
    /// Points in chronological order.
    pub points: Vec<StalePoint>,
}

/// The state at one time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StalePoint {
    /// Seconds since the attach.
    pub at_s: f64,
    /// Live bytes by the time for which they were certainly not written and no read of them was seen, one number for
    /// each band.
    pub untouched_bytes: Vec<u64>,
    /// Number of pages by threshold.
    pub pages: Vec<u64>,
}

/// The kinds of evidence, each on its own.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct StaleEvidence {
    /// True if writes are seen, for all blocks by their pages.
    pub pages: bool,
    /// Number of pages under watch now.
    pub guarded_pages: u64,
    /// Number of all pages that could be watched.
    pub all_pages: u64,
    /// Number of first writes to watched pages. Each cost the target a page fault.
    pub faults: u64,
    /// Cost of a fault in nanoseconds.
    pub fault_ns: f64,
    /// Number of times that the kernel's record of accessed pages was reset. Since the first reset, reads of pages are
    /// seen as well as writes.
    #[serde(default)]
    pub clears: u64,
    /// Longest reset of the record of accessed pages, in milliseconds. Threads that mapped or unmapped memory, or
    /// touched memory for the first time, waited this long.
    #[serde(default)]
    pub longest_clear_ms: f64,
    /// True if only contents were compared at two moments. Unchanged bytes are then an upper bound on stale bytes.
    #[serde(default)]
    pub contents: bool,
    /// True if reads and writes are seen, for a few words at a time.
    pub words: bool,
    /// Number of accesses to watched words. Each cost the target a trap.
    pub traps: u64,
    /// Cost of a trap in nanoseconds.
    pub trap_ns: f64,
    /// Recently finished watches of a word.
    pub looks: u64,
}

/// Sums.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct StaleTotals {
    /// Live bytes.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// Best estimate of the bytes of untouched blocks.
    pub stale_bytes: u64,
    /// Sum of the low ends of the intervals.
    pub stale_bytes_low: u64,
    /// Sum of the high ends of the intervals.
    pub stale_bytes_high: u64,
}

/// One site.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StaleSite {
    /// The allocating function. For blocks from before the attach, the type and size of the blocks.
    pub kind: String,
    /// True if the site's blocks are from before the attach.
    pub before_attach: bool,
    /// True if the stack is longer than shown, but the unwinder could not follow it.
    pub truncated: bool,
    /// Frames, innermost first; empty for blocks from before the attach.
    pub stack: Vec<StackFrame>,
    /// Live bytes.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// Best estimate of the bytes of untouched blocks.
    pub stale_bytes: u64,
    /// Low end of the 95 % interval of `stale_bytes`.
    pub stale_bytes_low: u64,
    /// High end of that interval.
    pub stale_bytes_high: u64,
    /// `stale` if the interval is above half of the site's bytes, `in_use` if it is below,
    /// `unknown` if it contains the half.
    #[serde(default)]
    pub state: Cow<'static, str>,
    /// Seconds since the last observed access to a block of the site; `None` if no access was observed.
    pub last_access_s: Option<f64>,
    /// Bytes of blocks that were certainly not written.
    pub unwritten_bytes: u64,
    /// Bytes of blocks that were certainly neither read nor written. They are part of
    /// `unwritten_bytes`.
    #[serde(default)]
    pub unaccessed_bytes: u64,
    /// Number of recently finished watches of a word in one of the site's blocks.
    pub looks: u64,
    /// Number of these words that were touched.
    pub touched: u64,
    /// A block that is probably stale. `scan --why` shows its holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale_block: Option<String>,
    /// Bytes of unreachable and of reachable blocks, if the user asked for them.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub reachability: Option<StaleReachability>,
    /// The last access that a watched word has caught.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caught: Option<CaughtAccess>,
}

impl StaleSite {
    /// Sets the number of the site's unreachable live bytes.
    pub fn join_reachability(&mut self, unreachable_bytes: u64) {
        let reach = StaleReachability::of(self.live_bytes, self.stale_bytes, unreachable_bytes);
        self.reachability = Some(reach);
    }
}

/// Live bytes of a site, split into unreachable and reachable bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaleReachability {
    /// Unreachable bytes.
    pub unreachable_bytes: u64,
    /// Best estimate of the reachable bytes that were not touched for the time limit.
    pub reachable_stale_bytes: u64,
    /// All other bytes.
    pub in_use_bytes: u64,
}

impl StaleReachability {
    /// Splits the bytes of a site. Unreachable bytes count as stale, because no thread can touch
    /// them.
    pub fn of(live_bytes: u64, stale_bytes: u64, unreachable_bytes: u64) -> StaleReachability {
        let unreachable_bytes = unreachable_bytes.min(live_bytes);
        StaleReachability {
            unreachable_bytes,
            reachable_stale_bytes: stale_bytes.saturating_sub(unreachable_bytes),
            in_use_bytes: live_bytes - stale_bytes.max(unreachable_bytes).min(live_bytes),
        }
    }
}

/// An access to a watched word.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CaughtAccess {
    /// Seconds since the access.
    pub ago_s: f64,
    /// The block.
    pub block: String,
    /// Offset of the word in the block.
    pub offset: u64,
    /// The thread; `None` if the kernel did not record it.
    pub tid: Option<i32>,
    /// True if a system call made the access.
    pub by_kernel: bool,
    /// Frames, innermost first; empty if unknown.
    pub stack: Vec<StackFrame>,
}

impl Document for StaleReport {
    fn text(&self, style: Style) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = text::text(&mut out, self, style);
        out
    }
}
