//! Observes a ledger and sums up the activity of each site on each thread.
//!
//! The state at the peak is stored without copying all sites at each new peak: the first change of
//! a site after the peak saves its previous state. During a pass, it is not yet known whether its
//! maximum counts as a peak (see [`memhook_ledger::Totals::peak_live_bytes`]), so the state at this
//! maximum is saved separately, as a candidate.

use crate::activity::Activity;
use crate::activity::flows::Flows;
use crate::activity::site_sums::{NEVER, Sums};
use crate::activity::timeline::Timeline;
use crate::file::summary::{HISTOGRAM_BUCKETS, bucket_of};
use crate::scores::Scorer;
use memhook_abi::Accesses;
use memhook_ledger::{BlockOf, Estimate, Observer, ReleaseBy, SampledAllocations};
use rustc_hash::FxHashMap;

/// Meaning of recorded blocks.
#[derive(Clone, Default)]
pub(crate) struct Samples {
    pub counts: SampledAllocations,
    /// Stack and level of each stack id that samples have.
    pub of_id: FxHashMap<u32, (u32, u8)>,
}

impl Samples {
    /// Returns the stack that an id stands for, and the sampling level of its samples.
    #[inline]
    pub fn of(&self, id: u32) -> (u32, u8) {
        if self.of_id.is_empty() {
            return (id, 0);
        }
        self.of_id.get(&id).copied().unwrap_or((id, 0))
    }

    /// Returns the estimate for a block.
    #[inline]
    pub fn block(&self, id: u32, size: u64) -> Estimate {
        self.counts.block(self.of(id).1, size)
    }

    fn are_all_known(&self) -> bool {
        self.counts.sample_bytes().is_none()
    }
}

/// The last allocation of a thread.
#[derive(Clone, Copy, Default, PartialEq)]
struct Last {
    address: u64,
    site: u32,
    size: u64,
}

#[derive(Default)]
pub(crate) struct Collector {
    samples: Samples,
    track_flows: bool,
    now_ns: u64,
    sites: Vec<Sums>,
    /// The last thread that used each of the ledger's sites, and the index of this pair of site and
    /// thread in `sites`.
    last_of_site: Vec<(u16, u32)>,
    index: FxHashMap<(u32, u16), u32>,
    /// The last allocation of each thread, until it is released.
    last_of_thread: Vec<Last>,
    /// Amount of live blocks by bucket of their size.
    sizes: Vec<Estimate>,
    lifetimes: Vec<Estimate>,
    flows: Flows,
    live: Estimate,
    released: Estimate,
    temporary: Estimate,
    before: Estimate,
    /// Number that changes whenever a new list of changed sites begins.
    stamp: u32,
    peak_number: u32,
    peak_bytes: u64,
    peak_ns: u64,
    candidate_number: u32,
    candidate_ns: u64,
    has_candidate: bool,
    /// Sites that have changed since the candidate.
    changed_since_candidate: Vec<u32>,
    timeline: Timeline,
    /// Sites that have changed since the last point.
    changed_since_point: Vec<u32>,
    /// Number of allocations in the window that were recorded as samples at varying distances.
    sampled_allocations: u64,
    /// Scorer, if sites are scored.
    scorer: Option<Box<Scorer>>,
}

impl Collector {
    pub fn new(
        samples: Samples,
        track_flows: bool,
        covered: (u64, u64),
        points: usize,
        scorer: Option<Scorer>,
    ) -> Self {
        Self {
            scorer: scorer.map(Box::new),
            samples,
            track_flows,
            timeline: Timeline::new(covered, points),
            stamp: 1,
            sizes: vec![Estimate::default(); HISTOGRAM_BUCKETS],
            lifetimes: vec![Estimate::default(); HISTOGRAM_BUCKETS],
            ..Self::default()
        }
    }

    /// Begins the window. Earlier counts become the state before the window.
    pub fn begin(&mut self, now_ns: u64) {
        for site in &mut self.sites {
            site.before = site.live;
            site.released = Estimate::default();
            site.temporary = Estimate::default();
            site.sizes.clear();
            site.lifetimes.clear();
            site.peak_number = NEVER;
        }
        self.sizes.fill(Estimate::default());
        self.lifetimes.fill(Estimate::default());
        self.flows.clear();
        self.before = self.live;
        self.released = Estimate::default();
        self.temporary = Estimate::default();
        self.peak_number += 1;
        // With sampling, the end of the first pass sets the peak.
        self.peak_bytes = match self.samples.are_all_known() {
            true => self.live.bytes as u64,
            false => 0,
        };
        self.sampled_allocations = 0;
        self.peak_ns = now_ns;
        self.has_candidate = false;
        self.changed_since_candidate.clear();
        self.timeline.clear();
        // Blocks that were live before belong to the first point.
        self.changed_since_point.clear();
        for (index, site) in self.sites.iter_mut().enumerate() {
            site.point = 0;
            self.changed_since_point.push(index as u32);
        }
        self.stamp += 1;
        if let Some(scorer) = &mut self.scorer {
            scorer.begin();
        }
    }

    #[inline]
    fn site_of(&mut self, block: &BlockOf) -> u32 {
        match self.last_of_site.get(block.site as usize) {
            Some(&(thread, index)) if thread == block.thread && index != NEVER => index,
            _ => self.other_site_of(block),
        }
    }

    #[cold]
    fn other_site_of(&mut self, block: &BlockOf) -> u32 {
        let at = block.site as usize;
        if at >= self.last_of_site.len() {
            self.last_of_site.resize(at + 1, (0, NEVER));
        }
        let next = self.sites.len() as u32;
        let index = *self.index.entry((block.site, block.thread)).or_insert(next);
        if index == next {
            self.sites.push(Sums {
                thread: block.thread,
                peak_number: NEVER,
                candidate_number: NEVER,
                point: NEVER,
                ..Sums::default()
            });
        }
        self.last_of_site[at] = (block.thread, index);
        index
    }

    /// Returns the estimate for a block of a site.
    #[inline]
    fn amount_at(&self, index: u32, size: u64) -> Estimate {
        self.samples.block(self.sites[index as usize].stack, size)
    }

    /// Prepares a change of a site's live blocks.
    #[inline]
    fn touch(&mut self, index: u32) {
        if self.sites[index as usize].stamp != self.stamp {
            self.save(index);
        }
    }

    fn save(&mut self, index: u32) {
        let site = &mut self.sites[index as usize];
        site.stamp = self.stamp;
        if site.peak_number != self.peak_number {
            site.peak_number = self.peak_number;
            site.peak = site.live;
        }
        if self.has_candidate && site.candidate_number != self.candidate_number {
            site.candidate_number = self.candidate_number;
            site.candidate = site.live;
            self.changed_since_candidate.push(index);
        }
        let point = self.timeline.len() as u32;
        if site.point != point {
            site.point = point;
            self.changed_since_point.push(index);
        }
    }

    /// Sets the peak to the candidate, or to the current state.
    fn take_peak(&mut self, within: bool, now_ns: u64) {
        self.peak_number += 1;
        self.stamp += 1;
        self.peak_ns = now_ns;
        if within && self.has_candidate {
            self.peak_ns = self.candidate_ns;
            for &index in &self.changed_since_candidate {
                let site = &mut self.sites[index as usize];
                site.peak = site.candidate;
                site.peak_number = self.peak_number;
            }
        }
    }

    fn take_point(&mut self, now_ns: u64) {
        let mut allocated = self.live;
        allocated += self.released;
        allocated -= self.before;
        let sites = &self.sites;
        let changed = self.changed_since_point.drain(..).map(|index| {
            let site = &sites[index as usize];
            (index, site.live, site.allocated())
        });
        self.timeline
            .push(now_ns, self.live, allocated, self.temporary, changed);
        self.stamp += 1;
        // Thinning the timeline has renumbered its points.
        if self.timeline.was_thinned() {
            self.sites.iter_mut().for_each(|site| site.point = NEVER);
        }
    }

    #[inline]
    fn count_allocated(&mut self, block: &BlockOf, stack: u32) {
        let index = self.site_of(block);
        self.touch(index);
        let amount = self.samples.block(stack, block.size);
        self.sampled_allocations += u64::from(self.samples.of(stack).1 != 0);
        let site = &mut self.sites[index as usize];
        site.stack = stack;
        site.live += amount;
        let bucket = bucket_of(block.size);
        site.sizes.count(bucket, amount.blocks);
        self.sizes[usize::from(bucket)] += amount;
        self.live += amount;
        let thread = usize::from(block.thread);
        let last = Last {
            address: block.address,
            site: index,
            size: block.size,
        };
        match self.last_of_thread.get_mut(thread) {
            Some(place) => *place = last,
            None => {
                self.last_of_thread.resize(thread + 1, Last::default());
                self.last_of_thread[thread] = last;
            }
        }
    }

    #[inline]
    fn count_released(&mut self, block: &BlockOf, by: Option<ReleaseBy>) {
        let index = self.site_of(block);
        self.touch(index);
        let amount = self.amount_at(index, block.size);
        let site = &mut self.sites[index as usize];
        site.live -= amount;
        site.released += amount;
        // The time of the allocation is known only to the millisecond.
        let milliseconds = (self.now_ns / 1_000_000).saturating_sub(block.time_ns / 1_000_000);
        let bucket = bucket_of(milliseconds * 1_000_000);
        site.lifetimes.count(bucket, amount.blocks);
        self.lifetimes[usize::from(bucket)] += amount;
        self.live -= amount;
        self.released += amount;
        if let Some(by) = by
            && by.thread == block.thread
            && by.thread != 0
            && let Some(last) = self.last_of_thread.get_mut(usize::from(by.thread))
            && (last.address, last.site) == (block.address, index)
        {
            last.address = 0;
            site.temporary += amount;
            self.temporary += amount;
        }
        if self.track_flows {
            let released_by = by.map_or(0, |by| by.stack);
            self.flows
                .add(self.samples.of(site.stack).0, released_by, amount);
        }
    }

    /// Returns the meaning of recorded blocks.
    pub fn samples(&self) -> &Samples {
        &self.samples
    }

    /// Returns the results. `tid_of` returns the thread id for an index.
    pub fn finish(mut self, to_ns: u64, tid_of: impl Fn(u16) -> u32) -> Activity {
        if self.timeline.last_ns() != Some(to_ns) || !self.changed_since_point.is_empty() {
            self.take_point(to_ns);
        }
        let peak_number = self.peak_number;
        let (timeline, changes) = self.timeline.finish();
        let buckets = |amounts: Vec<Estimate>| {
            let numbered = (0u8..).zip(amounts);
            numbered.filter(|(_, amount)| amount.blocks > 0.0).collect()
        };
        let (flows, releases) = self.flows.finish();
        Activity {
            to_ns,
            peak_ns: self.peak_ns,
            peak_bytes: match self.samples.are_all_known() {
                true => self.peak_bytes,
                false => 0,
            },
            sampled_allocations: self.sampled_allocations,
            sites: self
                .sites
                .into_iter()
                .map(|sums| sums.finish(peak_number, &tid_of))
                .collect(),
            allocated_sizes: buckets(self.sizes),
            lifetimes: buckets(self.lifetimes),
            flows,
            releases,
            timeline,
            changes,
            scored: self.scorer.map(|scorer| scorer.finish(to_ns)),
            ..Activity::default()
        }
    }
}

impl Observer for Collector {
    #[inline(always)]
    fn at(&mut self, time_ns: u64) {
        self.now_ns = time_ns;
        if let Some(scorer) = &mut self.scorer {
            scorer.at(time_ns);
        }
    }

    #[inline]
    fn allocated(&mut self, block: &BlockOf, stack: u32) {
        if let Some(scorer) = &mut self.scorer {
            scorer.allocated(block, stack);
        }
        self.count_allocated(block, stack);
    }

    #[inline]
    fn released(&mut self, block: &BlockOf, by: Option<ReleaseBy>) {
        if let Some(scorer) = &mut self.scorer {
            scorer.released(block, by);
        }
        self.count_released(block, by);
    }

    #[inline]
    fn more_pairs(&mut self, block: &BlockOf, stack: u32, by: ReleaseBy, count: u64) {
        if let Some(scorer) = &mut self.scorer
            && count > 0
        {
            scorer.pairs(block, stack, count);
        }
        for _ in 0..count {
            self.count_allocated(block, stack);
            self.count_released(block, Some(by));
        }
    }
    fn accesses(&mut self, number: u32, accesses: &Accesses) {
        if let Some(scorer) = &mut self.scorer {
            scorer.accesses(number, accesses);
        }
    }
    fn live_accesses(&mut self, accesses: &Accesses) {
        if let Some(scorer) = &mut self.scorer {
            scorer.live_accesses(accesses);
        }
    }
    fn corrected(&mut self, block: &BlockOf, from: Option<ReleaseBy>, to: Option<ReleaseBy>) {
        if self.track_flows {
            let index = self.site_of(block);
            let amount = self.amount_at(index, block.size);
            let stack = self.samples.of(self.sites[index as usize].stack).0;
            let stack_of = |by: Option<ReleaseBy>| by.map_or(0, |by| by.stack);
            self.flows.take_back(stack, stack_of(from), amount);
            self.flows.add(stack, stack_of(to), amount);
        }
    }
    fn unknown_released(&mut self, address: u64, by: ReleaseBy) {
        // Another thread has been given the address since then, and that thread's ring was drained
        // first.
        if by.thread != 0
            && let Some(last) = self.last_of_thread.get_mut(usize::from(by.thread))
            && last.address == address
        {
            let Last { site, size, .. } = std::mem::take(last);
            let amount = self.amount_at(site, size);
            self.sites[site as usize].temporary += amount;
            self.temporary += amount;
        }
    }
    fn reinstated(&mut self, block: &BlockOf, by: ReleaseBy) {
        let index = self.site_of(block);
        self.touch(index);
        let amount = self.amount_at(index, block.size);
        let site = &mut self.sites[index as usize];
        site.live += amount;
        site.released -= amount;
        self.live += amount;
        self.released -= amount;
        if self.track_flows {
            self.flows
                .take_back(self.samples.of(site.stack).0, by.stack, amount);
        }
    }

    #[inline]
    fn maximum(&mut self) {
        self.candidate_number = self.candidate_number.wrapping_add(1) & (NEVER >> 1);
        self.candidate_ns = self.now_ns;
        self.has_candidate = true;
        self.changed_since_candidate.clear();
        self.stamp = self.stamp.wrapping_add(1);
    }

    fn end_pass(&mut self, now_ns: u64, most_bytes: u64, within: bool) {
        if most_bytes > self.peak_bytes {
            self.peak_bytes = most_bytes;
            self.take_peak(within, now_ns);
        }
        self.has_candidate = false;
        self.changed_since_candidate.clear();
        if self.timeline.is_due(now_ns) {
            self.take_point(now_ns);
        }
        if let Some(scorer) = &mut self.scorer {
            scorer.end_pass(now_ns);
        }
    }
}
