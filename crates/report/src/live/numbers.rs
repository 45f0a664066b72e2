//! Numbers that a live report takes from the ledger.

use crate::rows::{Part, RowsBy, Sums};
use crate::{AllocatorTime, Amount, Overhead, UnreachableSite};
use memhook_ledger::{
    Bounded, CallTimes, Estimate, Ledger, LiveWalk, Observer, SampledAllocations, SiteWalk,
};
use memhook_stream::Gap;
use rustc_hash::FxHashMap;
use std::time::Duration;

/// Numbers that a live report takes from the ledger. They are taken in slices, because events pile
/// up in the rings while a slice is taken.
pub struct LiveNumbers {
    pub(super) by: RowsBy,
    pub(super) before_ns: Option<u64>,
    pub(super) elapsed: Duration,
    pub(super) has_begun: bool,
    pub(super) sites: SiteWalk,
    pub(super) blocks: LiveWalk,
    pub(super) parts: FxHashMap<u64, Sums>,
    /// Releases: stack id, blocks and bytes.
    pub(super) releases: Vec<(u32, u64, u64)>,
    pub(super) totals: memhook_ledger::Totals,
    pub(super) allocations: SampledAllocations,
    pub(super) bounded: Option<Bounded>,
    /// Cost of tracing, if the trace keeps to a budget.
    pub overhead: Option<Overhead>,
    /// Unreachable blocks at the end; `None` without a search.
    pub unreachable: Option<Vec<UnreachableSite>>,
    /// Nanoseconds that calls spent in the allocator; `None` if calls are not timed.
    pub call_times: Option<CallTimes>,
    pub(super) gaps: Vec<Gap>,
    /// Upper bound on the allocation times of blocks that have not been seen since a gap.
    pub(super) unseen_before_ns: u64,
    pub(super) unseen: Estimate,
    /// True if the ledger's own sums of each site suffice.
    pub(super) is_by_site: bool,
}

impl LiveNumbers {
    pub(super) fn new(
        by: RowsBy,
        before_ns: Option<u64>,
        elapsed: Duration,
        gaps: Vec<Gap>,
    ) -> LiveNumbers {
        let now_ns = elapsed.as_nanos() as u64;
        LiveNumbers {
            unseen_before_ns: Gap::unseen_before(&gaps, now_ns).unwrap_or(0),
            gaps,
            unseen: Estimate::default(),
            by,
            before_ns,
            elapsed,
            has_begun: false,
            sites: SiteWalk::new(before_ns),
            blocks: LiveWalk::default(),
            parts: FxHashMap::default(),
            releases: Vec::new(),
            totals: memhook_ledger::Totals::default(),
            allocations: SampledAllocations::default(),
            bounded: None,
            overhead: None,
            unreachable: None,
            call_times: None,
            is_by_site: false,
        }
    }

    /// Takes the next slice. The totals come from the first slice. Returns true if there are more
    /// slices to take.
    pub fn take(
        &mut self,
        ledger: &Ledger<impl Observer>,
        allocations: &SampledAllocations,
    ) -> bool {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.totals = ledger.totals();
            self.releases = ledger.release_sites();
            self.allocations = *allocations;
            self.bounded = ledger.bounded();
            let keeps_all = self.bounded.is_none_or(|bounded| !bounded.is_thinned);
            self.is_by_site = self.by.is_of_stacks()
                && allocations.sample_bytes().is_none()
                && keeps_all
                && self.gaps.is_empty();
        }
        if self.is_by_site {
            return ledger.walk_sites(&mut self.sites);
        }
        let (by, before_ns, parts) = (self.by, self.before_ns, &mut self.parts);
        let samples = self.allocations;
        let (unseen_before_ns, unseen) = (self.unseen_before_ns, &mut self.unseen);
        ledger.walk_blocks(&mut self.blocks, |block| {
            let amount = samples.live(&block, ledger.weight(block.size));
            let is_unseen = block.time_ns < unseen_before_ns;
            if is_unseen {
                *unseen += amount;
            }
            if before_ns.is_some_and(|limit| block.time_ns >= limit) {
                return;
            }
            let number = match by {
                RowsBy::Thread => u64::from(block.tid),
                RowsBy::Size => block.size,
                _ => u64::from(block.stack),
            };
            let part = parts.entry(number).or_default();
            part.amount += amount;
            part.unseen_bytes += if is_unseen { amount.bytes } else { 0.0 };
            let oldest = part.oldest_ns.unwrap_or(u64::MAX);
            part.oldest_ns = Some(oldest.min(block.time_ns));
        })
    }

    /// Replaces the sums of the ledger.
    pub fn with_totals(self, totals: memhook_ledger::Totals) -> LiveNumbers {
        LiveNumbers { totals, ..self }
    }

    /// Returns the sums for each number that decides a row.
    pub(super) fn parts(&mut self) -> Vec<Part> {
        let mut parts = std::mem::take(&mut self.parts);
        if self.is_by_site {
            for site in std::mem::take(&mut self.sites).into_live() {
                let part = parts.entry(u64::from(site.stack)).or_default();
                part.amount = Estimate::exact(site.blocks, site.bytes);
                part.oldest_ns = Some(site.oldest_ns);
            }
        }
        if self.by.repeats_blocks() {
            for &(stack, blocks, bytes) in &self.releases {
                let part = parts.entry(u64::from(stack)).or_default();
                part.released += Estimate::exact(blocks, bytes);
            }
        }
        if let Some(times) = self.call_times.as_ref().filter(|_| self.by.is_of_stacks()) {
            let all = times.all();
            let allocated = self.allocated();
            for (stack, time) in times.stacks() {
                let part = parts.entry(u64::from(stack)).or_default();
                part.in_allocator += time.share_of(&all, allocated);
            }
        }
        if let Some(unreachable) = self.unreachable.take() {
            self.add_unreachable(&unreachable, &mut parts);
        }
        parts.into_iter().collect()
    }

    /// Returns the number of allocations since the attach: an estimate with sampling, otherwise
    /// exact.
    fn allocated(&self) -> f64 {
        let (blocks, bytes) = (self.totals.allocations, self.totals.allocated_bytes);
        self.allocations.all(blocks, bytes).blocks
    }

    /// Returns the time that all allocations spent in the allocator.
    pub(super) fn allocator_time(&self) -> Option<AllocatorTime> {
        let times = self.call_times.as_ref()?;
        AllocatorTime::of(times.all().share_of(&times.all(), self.allocated()))
    }

    /// Returns the known releases of stacks.
    pub(super) fn released(&self) -> Vec<(u32, Amount)> {
        let known = self.releases.iter().filter(|&&(stack, _, _)| stack != 0);
        let amount = |&(stack, blocks, bytes): &(u32, u64, u64)| {
            (stack, Estimate::exact(blocks, bytes).into())
        };
        known.map(amount).collect()
    }

    /// Adds unreachable blocks of any size to the parts.
    fn add_unreachable(&self, sites: &[UnreachableSite], parts: &mut FxHashMap<u64, Sums>) {
        if self.by == RowsBy::Size {
            return;
        }
        for part in parts.values_mut() {
            part.unreachable = Some(Estimate::default());
        }
        for site in sites {
            let number = match self.by {
                RowsBy::Thread => site.tid,
                _ => site.stack,
            };
            // A site without a part has no block that counts here.
            let part = parts.get_mut(&u64::from(number));
            if let Some(sum) = part.and_then(|part| part.unreachable.as_mut()) {
                *sum += site.amount.into();
            }
        }
        for part in parts.values_mut() {
            // Only blocks of the requested age may count.
            part.unreachable = part
                .unreachable
                .map(|sum| match sum.bytes > part.amount.bytes {
                    true => part.amount,
                    false => sum,
                });
        }
    }
}
