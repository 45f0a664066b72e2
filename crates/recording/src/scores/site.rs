//! State of a site while its blocks are allocated and released, and its final results.

use super::ScoredSite;
use super::accesses::AccessSums;
use super::groups::{Finished, GroupId, Open};
use super::kept_chunks::KeptChunks;
use super::looks::{Outcome, sampled};
use super::runs::GrowingRuns;
use rustc_hash::FxHashSet;

/// Facts about stacks beyond their ids.
#[derive(Clone, Debug, Default)]
pub(crate) struct StackKinds {
    /// Stacks of calls of `realloc`.
    pub reallocs: FxHashSet<u32>,
    /// Stacks of calls from modules that report reads and writes.
    pub telling: FxHashSet<u32>,
    /// Stacks of calls of `calloc`.
    pub zeroing: FxHashSet<u32>,
}

/// A live chunk.
#[derive(Clone, Copy)]
pub(super) struct Live {
    pub start_ns: u64,
    pub number: u64,
    pub size: u64,
    pub site: u32,
    pub group: GroupId,
    pub thread: u16,
}

/// Sums of a site.
#[derive(Default)]
pub(super) struct Site {
    pub stack: u32,
    pub is_realloc: bool,
    pub open: Open,
    pub finished: Finished,
    pub chunks: u64,
    pub bytes: u64,
    pub smallest: u64,
    pub largest: u64,
    pub live: u64,
    pub live_bytes: u64,
    pub most_live: u64,
    pub most_live_bytes: u64,
    pub runs: GrowingRuns,
    /// True if the site's module reports reads and writes.
    pub tells: bool,
    /// True if the site's allocator writes zeros.
    pub is_zeroed: bool,
    pub accesses: AccessSums,
    /// Outcomes of the watched blocks.
    pub outcomes: Vec<Outcome>,
    pub kept: KeptChunks,
}

impl Site {
    /// Creates a site without allocations. If `keeps` is true, chunks are stored individually.
    pub fn of(stack: u32, kinds: &StackKinds, keeps: bool) -> Site {
        Site {
            stack,
            is_realloc: kinds.reallocs.contains(&stack),
            is_zeroed: kinds.zeroing.contains(&stack),
            tells: kinds.telling.contains(&stack),
            smallest: u64::MAX,
            kept: KeptChunks::new(keeps),
            ..Site::default()
        }
    }

    /// Counts allocated chunks of one size.
    pub fn count(&mut self, size: u64, chunks: u64) {
        self.chunks += chunks;
        self.bytes = self.bytes.saturating_add(size.saturating_mul(chunks));
        self.smallest = self.smallest.min(size);
        self.largest = self.largest.max(size);
    }

    /// Returns the results, after the site's groups are closed.
    pub fn scored(mut self) -> ScoredSite {
        self.kept.sort();
        ScoredSite {
            stack: self.stack,
            lifetime: self.finished.scores / self.finished.groups.max(1) as f64,
            groups: self.finished.groups,
            chunks: self.chunks,
            bytes: self.bytes,
            lifetimes_ns: self.finished.lifetimes_ns,
            smallest: self.smallest,
            largest: self.largest,
            most_live: self.most_live,
            most_live_bytes: self.most_live_bytes,
            loops: self.finished.loops,
            runs: self.runs,
            accesses: (self.tells && self.accesses.chunks > 0).then_some(self.accesses),
            sampled: sampled(&self.outcomes),
            kept: self.kept,
        }
    }
}
