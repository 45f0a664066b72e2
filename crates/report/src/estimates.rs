//! Estimated sums of a run whose allocations were sampled, or whose ledger reached its memory limit.

use crate::units::{bytes, count, counted, milliseconds};
use serde::{Deserialize, Serialize};

/// Details of how allocations were sampled.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Sampling {
    /// Mean number of bytes between samples.
    pub mean_bytes: u64,
    /// Allocations that were recorded as samples.
    pub recorded_allocations: u64,
    /// With `--on-full adapt`: number of allocations that were recorded individually, while rings had room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact_allocations: Option<u64>,
    /// With `--on-full adapt`, in a live report: seconds since the attach during which every allocation was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact_s: Option<f64>,
    /// Standard error of [`crate::ReportTotals::live_bytes`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_error_bytes: Option<u64>,
    /// Standard error of [`crate::ReportTotals::allocated_bytes`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_error_bytes: Option<u64>,
    /// Standard error of [`crate::ReportTotals::released_bytes`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_error_bytes: Option<u64>,
    /// True if allocations were sampled to keep to a budget.
    #[serde(skip)]
    pub is_in_budget: bool,
}

/// Effects of the memory limit since the ledger reached `--max-memory`.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Bounded {
    /// The limit.
    pub max_memory_bytes: u64,
    /// Time at which the limit was reached, in seconds since the attach.
    pub since_s: f64,
    /// Number of blocks that were live at that time.
    pub live_blocks_then: u64,
    /// Number of live blocks that the ledger keeps.
    pub kept_blocks: u64,
    /// Number of all live blocks, an estimate if `live_is_estimated`.
    pub live_blocks: u64,
    /// True if live and released amounts are estimates. Allocations are always exact.
    pub live_is_estimated: bool,
    /// Size at and above which all blocks are kept. A smaller block is kept with probability `size / all_from_bytes`.
    pub all_from_bytes: u64,
    /// Sampling interval of addresses in the ledger: one of every N is kept.
    pub one_address_in: u64,
    /// Allocations counted without their call stack, because there were too many stacks.
    pub unattributed_allocations: u64,
    /// True if releases of unknown blocks are still counted separately.
    pub unknown_releases_are_counted: bool,
}

impl Bounded {
    /// Explains the effects, for the first lines of a report.
    pub fn in_words(&self) -> String {
        let mut text = format!(
            "The ledger reached --max-memory {} after {}, with {}: ",
            bytes(self.max_memory_bytes),
            milliseconds((self.since_s * 1e3) as u64),
            counted(self.live_blocks_then, "live block"),
        );
        if self.live_is_estimated {
            let which = match (self.one_address_in, self.all_from_bytes) {
                (1, from) => format!("all of {} and more, smaller ones by chance", bytes(from)),
                (n, 0) => format!("those at one address in {n}"),
                (n, from) => format!(
                    "at one address in {n} all of {} and more, smaller ones by chance",
                    bytes(from)
                ),
            };
            text += &format!(
                "of about {} live ones {} are kept now ({which}). Live and released sums are estimates since then; allocations are exact",
                count(self.live_blocks),
                count(self.kept_blocks),
            );
        } else {
            text += "all live blocks are still kept";
        }
        if self.unattributed_allocations > 0 {
            text += &format!(
                "; {} by further call stacks are counted without their stack",
                counted(self.unattributed_allocations, "allocation")
            );
        }
        if !self.unknown_releases_are_counted {
            text += "; releases of blocks from before the attach are no longer counted";
        }
        text
    }
}
