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
    /// The last report of this watch.
    #[serde(rename = "final")]
    pub is_final: bool,
    /// The process.
    pub target: Target,
    /// Seconds without a touch after which a block is stale.
    pub older_s: f64,
    /// The share of the target's time that watching may take.
    pub budget: f64,
    /// The share that it has taken: events, times what each was measured to cost.
    pub cost: f64,
    /// Time for which the process has been watched, in seconds.
    pub watched_s: f64,
    /// Evidence that was collected, and its amount.
    pub evidence: StaleEvidence,
    /// Sums of all sites.
    pub totals: StaleTotals,
    /// By site: the most stale bytes for the longest time first. Of a site whose state is unknown, only those that are
    /// certain count.
    pub sites: Vec<StaleSite>,
    /// Sites that are not listed.
    pub more_sites: u64,
    /// Evidence that is missing, and why.
    pub notes: Vec<String>,
    /// For how long the live bytes were not touched, over time; in the last report, if writes are seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<StaleHistory>,
    /// Frames that are collected of each call stack.
    #[serde(skip)]
    pub depth: u32,
}

impl StaleReport {
    /// The schema that this is.
    pub const SCHEMA: &str = "memhook-rs/stale/1";
}

/// Age of live bytes over time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StaleHistory {
    /// The upper ends of all bands of `untouched_bytes` but the last one, in seconds.
    pub ages_s: Vec<f64>,
    /// Seconds for which a page is left alone after a write before it is watched again: one for each number of `pages`.
    pub thresholds_s: Vec<f64>,
    /// In the order of time.
    pub points: Vec<StalePoint>,
}

/// One moment of them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StalePoint {
    /// Seconds since the attach.
    pub at_s: f64,
    /// Live bytes by how long they have certainly not been written, and no read of them was seen: one number for each
    /// band.
    pub untouched_bytes: Vec<u64>,
    /// Pages by threshold.
    pub pages: Vec<u64>,
}

/// The kinds of evidence, each for itself.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct StaleEvidence {
    /// Writes are seen, of all blocks by their pages.
    pub pages: bool,
    /// Pages that are watched now.
    pub guarded_pages: u64,
    /// All pages that could be watched.
    pub all_pages: u64,
    /// First writes to watched pages: each cost the target a page fault.
    pub faults: u64,
    /// Cost of one, in nanoseconds.
    pub fault_ns: f64,
    /// It is seen which pages nobody has accessed, not even to read: how often that was begun anew.
    #[serde(default)]
    pub clears: u64,
    /// The longest time that the kernel took to begin anew, in milliseconds: threads that map or unmap memory, or touch some
    /// for the first time, waited as long.
    #[serde(default)]
    pub longest_clear_ms: f64,
    /// Contents were compared at two moments, and nothing else was seen: what is unchanged is the most that can be stale.
    #[serde(default)]
    pub contents: bool,
    /// Reads and writes are seen, of some words at a time.
    pub words: bool,
    /// Accesses to watched words: each cost the target a trap.
    pub traps: u64,
    /// Cost of one, in nanoseconds.
    pub trap_ns: f64,
    /// Looks at a word that have ended, lately.
    pub looks: u64,
}

/// Sums.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct StaleTotals {
    /// Live bytes.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// Bytes of blocks that nobody has touched: the best estimate.
    pub stale_bytes: u64,
    /// The sum of the low ends.
    pub stale_bytes_low: u64,
    /// The sum of the high ends.
    pub stale_bytes_high: u64,
}

/// One site.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StaleSite {
    /// The allocating function; of blocks from before the attach, their type and size.
    pub kind: String,
    /// True if they are from before the attach.
    pub before_attach: bool,
    /// The stack goes on, but could not be followed.
    pub truncated: bool,
    /// Innermost first; empty for blocks from before the attach.
    pub stack: Vec<StackFrame>,
    /// Live bytes.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// Bytes of blocks that nobody has touched: the best estimate.
    pub stale_bytes: u64,
    /// Low end of its 95 % interval.
    pub stale_bytes_low: u64,
    /// High end.
    pub stale_bytes_high: u64,
    /// Which half of its bytes the interval lies in: `stale`, `in_use`, or `unknown` if in both.
    #[serde(default)]
    pub state: Cow<'static, str>,
    /// Seconds since the last access to a block of the site that was seen; `None` if none was.
    pub last_access_s: Option<f64>,
    /// Bytes of blocks that were certainly not written.
    pub unwritten_bytes: u64,
    /// Bytes of blocks that were certainly neither read nor written; they are among those that were not written.
    #[serde(default)]
    pub unaccessed_bytes: u64,
    /// Looks at a word of one of the blocks that have ended, lately.
    pub looks: u64,
    /// Number of these words that were touched.
    pub touched: u64,
    /// A block that is probably stale: `scan --why` says who holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale_block: Option<String>,
    /// Unreachable and reachable blocks, if they were asked for.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub reachability: Option<StaleReachability>,
    /// The last access that a watched word has caught.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caught: Option<CaughtAccess>,
}

impl StaleSite {
    /// Notes how many of its live bytes nothing reaches.
    pub fn join_reachability(&mut self, unreachable_bytes: u64) {
        let reach = StaleReachability::of(self.live_bytes, self.stale_bytes, unreachable_bytes);
        self.reachability = Some(reach);
    }
}

/// The live bytes of a site, split by whether anything reaches them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaleReachability {
    /// Bytes that nothing points to.
    pub unreachable_bytes: u64,
    /// Reachable, and not touched for the time: the best estimate.
    pub reachable_stale_bytes: u64,
    /// The others.
    pub in_use_bytes: u64,
}

impl StaleReachability {
    /// Shares of a site with this many bytes. What nothing reaches counts as stale, as nobody can touch it.
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
    /// Seconds ago.
    pub ago_s: f64,
    /// The block.
    pub block: String,
    /// Offset of the word in it.
    pub offset: u64,
    /// The thread; `None` if the kernel has not recorded it.
    pub tid: Option<i32>,
    /// Made by a system call.
    pub by_kernel: bool,
    /// Innermost first; empty if it is not known.
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
