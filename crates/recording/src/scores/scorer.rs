//! Observes a ledger and scores its sites.

use super::accesses::{AccessSums, Known};
use super::groups::{GroupId, Groups};
use super::kept_chunks::{Chunk, ChunkAccesses, KeptChunks};
use super::looks::{Looks, outcome};
use super::runs::{Chain, Run};
use super::site::{Live, Site, StackKinds};
use super::threads::{Release, Settled, Threads};
use super::ticks::{Happening, LONGEST_TICK_NS, Tick};
use super::{GroupLimit, Loops, ScoreOptions, ScoredRun};
use memhook_abi::Accesses;
use memhook_ledger::{BlockOf, ReleaseBy};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;

/// Maximum number of passes by which an event may be late. The ledger holds nothing back for
/// longer.
const LATE_PASSES: usize = 17;
/// Maximum delay of the target's clock: one or two ticks.
const LATE_CLOCK_NS: u64 = 2 * LONGEST_TICK_NS;

/// Number of events that are prefetched together, before they are counted.
const TOGETHER: usize = 16;

/// Latest valid time. Later ones are damage.
const LATEST_NS: u64 = u64::MAX >> 8;

/// Scores under construction.
#[derive(Default)]
pub(crate) struct Scorer {
    groups: Groups,
    max_chunks: usize,
    kinds: StackKinds,
    known: Known,
    looks: Looks,
    /// Sites by the ledger's number.
    sites: Vec<Site>,
    live: FxHashMap<u64, Live>,
    under_way: FxHashMap<(u32, u16), Run>,
    /// Chains by the address of their last block.
    chains: FxHashMap<u64, Box<Chain>>,
    threads: Threads,
    kept: usize,
    tick: Tick,
    /// Times at which the last passes ended.
    passes: VecDeque<u64>,
    horizon_ns: u64,
}

impl Scorer {
    /// Creates an empty scorer. `run_ns` is the length of the run. For `stacks`, see
    /// [`StackKinds`].
    pub fn new(options: &ScoreOptions, run_ns: u64, stacks: StackKinds) -> Self {
        let part = |of_run: f64| (run_ns as f64 * of_run) as u64;
        let group_ns = match options.group {
            GroupLimit::Part(of_run) => part(of_run),
            GroupLimit::Nanoseconds(ns) => ns,
        };
        Self {
            groups: Groups::new(group_ns, part(Loops::LONGEST)),
            max_chunks: options.max_chunks,
            kinds: stacks,
            ..Self::default()
        }
    }

    /// Adds looks at some blocks.
    pub fn with_looks(self, looks: Looks) -> Self {
        Self { looks, ..self }
    }

    /// Begins the window. Chunks from before the window do not count.
    pub fn begin(&mut self) {
        self.groups = Groups::new(self.groups.group_ns, self.groups.longest_ns);
        self.sites.clear();
        self.live.clear();
        self.under_way.clear();
        self.chains.clear();
        self.threads.finish();
        self.tick.clear();
        self.kept = 0;
    }

    /// Sets the time of the following events.
    #[inline]
    pub fn at(&mut self, time_ns: u64) {
        // No run is longer than `LATEST_NS`, but a damaged file may contain any number.
        let time_ns = time_ns.min(LATEST_NS);
        if time_ns != self.tick.time_ns() {
            self.end_tick(time_ns);
            self.tick.begin(time_ns);
        }
    }

    /// Takes an allocated block.
    pub fn allocated(&mut self, block: &BlockOf, stack: u32) {
        self.add(Happening::Allocated(*block, stack));
    }

    /// Takes a released block.
    pub fn released(&mut self, block: &BlockOf, by: Option<ReleaseBy>) {
        self.add(Happening::Released(*block, by));
    }

    /// Stores the reads and writes of a block whose release will carry this number.
    pub fn accesses(&mut self, number: u32, accesses: &Accesses) {
        self.known.will_be_released(number, accesses);
    }

    /// Stores the reads and writes of a block that is live at the end.
    pub fn live_accesses(&mut self, accesses: &Accesses) {
        self.known.is_live(accesses);
    }

    /// Counts one or more blocks that were allocated and released one after the other.
    pub fn pairs(&mut self, block: &BlockOf, stack: u32, count: u64) {
        self.add(Happening::Pairs(*block, stack, count));
    }

    #[inline]
    fn add(&mut self, happening: Happening) {
        if self.tick.add(happening) {
            self.end_tick(self.tick.time_ns());
        }
    }

    /// Counts the events of one moment. `next_ns` is the time of the next events.
    fn end_tick(&mut self, next_ns: u64) {
        let spread = self.tick.spread(next_ns);
        let (mut next_ns, step_ns) = (spread.first_ns, spread.step_ns);
        for happenings in spread.happenings.chunks(TOGETHER) {
            self.ask_for(happenings);
            for happening in happenings {
                let time_ns = next_ns;
                next_ns = time_ns.saturating_add(happening.events().saturating_mul(step_ns));
                match happening {
                    Happening::Allocated(block, stack) => {
                        self.count_allocated(block, *stack, time_ns);
                    }
                    Happening::Released(block, by) => self.count_released(block, *by, time_ns),
                    Happening::Pairs(block, stack, count) => {
                        self.count_pairs(block, *stack, *count, time_ns, step_ns);
                    }
                }
            }
        }
        self.tick.reuse(spread);
    }

    /// Prefetches the chunks of a few independent events, so that the processor loads them in
    /// parallel. Counting processes them one after the other, and then finds them in the cache.
    fn ask_for(&self, happenings: &[Happening]) {
        for happening in happenings {
            let (Happening::Allocated(block, _) | Happening::Released(block, _)) = happening else {
                continue;
            };
            if let Some(live) = self.live.get(&block.address) {
                self.groups.ask_for(live.group);
            }
        }
    }

    /// Processes a thread's next event. `reallocated` is the size of the block that `realloc` has
    /// returned. Returns the chain of the replaced block, and its size.
    fn next_event(&mut self, thread: u16, reallocated: Option<u64>) -> Option<(Box<Chain>, u64)> {
        let Settled {
            mut release,
            is_outgrown,
        } = self.threads.next_event(thread, reallocated)?;
        let outgrown = is_outgrown.then(|| {
            let chain = release.chain.take();
            let chain = chain.unwrap_or_else(|| Box::new(Chain::of(release.size)));
            (chain, release.size)
        });
        self.settle(release, is_outgrown);
        outgrown
    }

    fn settle(&mut self, release: Release, is_outgrown: bool) {
        if let Some(chain) = &release.chain {
            self.end_chain(chain);
        }
        let finished = &mut self.sites[release.site as usize].finished;
        let outgrown_ns = is_outgrown.then_some(release.lifetime_ns);
        self.groups.settle(release.group, outgrown_ns, finished);
    }

    fn end_chain(&mut self, chain: &Chain) {
        chain.finish(|site, add| add(&mut self.sites[site as usize].runs));
    }

    fn count_allocated(&mut self, block: &BlockOf, stack: u32, start_ns: u64) {
        let known = self.sites.get(block.site as usize);
        let known = known.filter(|site| site.chunks > 0);
        let is_realloc = known.map_or_else(
            || self.kinds.reallocs.contains(&stack),
            |site| site.is_realloc,
        );
        let outgrown = self.next_event(block.thread, is_realloc.then_some(block.size));
        let (number, group) = self.count(block, stack, start_ns, 1);
        let site = &mut self.sites[block.site as usize];
        site.live += 1;
        site.live_bytes = site.live_bytes.saturating_add(block.size);
        site.most_live = site.most_live.max(site.live);
        site.most_live_bytes = site.most_live_bytes.max(site.live_bytes);
        if !site.is_realloc {
            let run = self.under_way.entry((block.site, block.thread));
            let run = run.or_default();
            run.allocated(block.address, block.size, &mut site.runs);
        }
        let live = Live {
            start_ns,
            number,
            size: block.size,
            site: block.site,
            group,
            thread: block.thread,
        };
        if let Some(old) = self.live.insert(block.address, live) {
            // The release of the old block was not seen or reported.
            let mut release = self.end(old, start_ns, false, None);
            release.chain = self.chains.remove(&block.address);
            self.settle(release, false);
        }
        if let Some((mut chain, size)) = outgrown {
            chain.step(block.site, size, block.size);
            self.chains.insert(block.address, chain);
        }
    }

    /// Counts chunks of a site. Returns the number of the first of them, and their group.
    fn count(&mut self, block: &BlockOf, stack: u32, start_ns: u64, chunks: u64) -> (u64, GroupId) {
        let at = block.site as usize;
        if at >= self.sites.len() {
            self.sites.resize_with(at + 1, Site::default);
        }
        let site = &mut self.sites[at];
        if site.chunks == 0 {
            *site = Site::of(stack, &self.kinds, self.max_chunks > 0);
        }
        let number = site.chunks;
        site.count(block.size, chunks);
        let (open, finished) = (&mut site.open, &mut site.finished);
        let group = self
            .groups
            .allocated(open, finished, start_ns, self.horizon_ns);
        (number, group)
    }

    fn count_released(&mut self, block: &BlockOf, by: Option<ReleaseBy>, end_ns: u64) {
        let thread = by.map_or(block.thread, |by| by.thread);
        self.next_event(thread, None);
        let live = match self.live.entry(block.address) {
            Entry::Occupied(known) if known.get().site == block.site => known.remove(),
            // The block was allocated before the window, or was reinstated by a failed realloc,
            // which ended its lifetime as a chunk.
            _ => return,
        };
        if let Some(run) = self.under_way.get_mut(&(live.site, live.thread)) {
            run.released(block.address);
        }
        let accesses = by.and_then(|by| self.known.of_release(by.accesses));
        let accesses = accesses.map(|accesses| self.count_accesses(&live, &accesses, end_ns));
        self.count_look(&live, block.address, end_ns);
        let mut release = self.end(live, end_ns, false, accesses);
        release.by_realloc = by.is_some_and(|by| by.by_realloc);
        release.chain = self.chains.remove(&block.address);
        self.threads.released(thread, release);
    }

    fn count_look(&mut self, live: &Live, address: u64, end_ns: u64) {
        let lived = (live.start_ns, end_ns.max(live.start_ns + 1));
        let look = self.looks.of_block(address, lived);
        if let Some(outcome) = look.and_then(|look| outcome(look, live.size, lived)) {
            self.sites[live.site as usize].outcomes.push(outcome);
        }
    }

    fn count_accesses(&mut self, live: &Live, accesses: &Accesses, end_ns: u64) -> ChunkAccesses {
        let end_ns = end_ns.max(live.start_ns + 1);
        let site = &mut self.sites[live.site as usize];
        let lived = (live.start_ns, end_ns);
        site.accesses
            .add(accesses, site.is_zeroed, live.size, lived);
        ChunkAccesses::new(accesses, lived)
    }

    /// Ends the chunk's life. The caller must pass the result to [`Groups::settle`].
    fn end(
        &mut self,
        live: Live,
        end_ns: u64,
        is_live: bool,
        accesses: Option<ChunkAccesses>,
    ) -> Release {
        // Clocks of two processors may differ slightly.
        let end_ns = end_ns.max(live.start_ns + 1);
        let site = &mut self.sites[live.site as usize];
        let accesses = accesses.filter(|_| site.tells && site.kept.keeps(live.number));
        site.live -= 1;
        site.live_bytes = site.live_bytes.saturating_sub(live.size);
        let lifetime_ns = end_ns - live.start_ns;
        self.groups.released(live.group, lifetime_ns, end_ns);
        self.keep(
            live.site,
            Chunk {
                number: live.number,
                start_ns: live.start_ns,
                end_ns,
                size: live.size,
                is_live,
                accesses: accesses.map(Box::new),
            },
        );
        Release {
            site: live.site,
            group: live.group,
            size: live.size,
            lifetime_ns,
            by_realloc: false,
            chain: None,
        }
    }

    /// Counts pairs, whose events are `step_ns` apart.
    fn count_pairs(
        &mut self,
        block: &BlockOf,
        stack: u32,
        count: u64,
        start_ns: u64,
        step_ns: u64,
    ) {
        self.next_event(block.thread, None);
        let (number, group) = self.count(block, stack, start_ns, count);
        let site = &mut self.sites[block.site as usize];
        site.most_live = site.most_live.max(site.live + 1);
        let most_bytes = site.live_bytes.saturating_add(block.size);
        site.most_live_bytes = site.most_live_bytes.max(most_bytes);
        if let Some(run) = self.under_way.get_mut(&(block.site, block.thread)) {
            // Any earlier run has ended.
            run.finish(&mut site.runs);
            *run = Run::default();
        }
        let last_ns = start_ns + 2 * (count - 1) * step_ns;
        self.groups.more_pairs(group, count - 1, step_ns, last_ns);
        self.groups.released(group, step_ns, last_ns + step_ns);
        self.groups.settle(group, None, &mut site.finished);
        let mut next = number;
        while next < number + count {
            let step = self.sites[block.site as usize].kept.step;
            if step == 0 {
                return;
            }
            next = next.next_multiple_of(step);
            if next >= number + count {
                return;
            }
            let start_ns = start_ns + 2 * (next - number) * step_ns;
            self.keep(
                block.site,
                Chunk {
                    number: next,
                    start_ns,
                    end_ns: start_ns + step_ns,
                    size: block.size,
                    is_live: false,
                    accesses: None,
                },
            );
            next += 1;
        }
    }

    fn keep(&mut self, site: u32, chunk: Chunk) {
        let of_site = &mut self.sites[site as usize].kept;
        if !of_site.keeps(chunk.number) {
            return;
        }
        of_site.chunks.push(chunk);
        self.kept += 1;
        if self.kept > self.max_chunks {
            self.thin_out();
        }
    }

    /// Makes room for more chunks, at the expense of the sites with the most chunks.
    #[cold]
    fn thin_out(&mut self) {
        let kept = self.sites.iter_mut().map(|site| &mut site.kept);
        let mut kept: Vec<&mut KeptChunks> = kept.collect();
        kept.sort_by_key(|kept| Reverse(kept.chunks.len()));
        let enough = self.max_chunks - self.max_chunks / 8;
        for kept in kept {
            if self.kept <= enough {
                return;
            }
            self.kept -= kept.thin_out();
        }
    }

    /// Ends a pass.
    pub fn end_pass(&mut self, now_ns: u64) {
        if now_ns > self.tick.time_ns().saturating_add(2 * LONGEST_TICK_NS) {
            self.end_tick(now_ns);
        }
        self.passes.push_back(now_ns);
        if self.passes.len() > LATE_PASSES
            && let Some(past_ns) = self.passes.pop_front()
        {
            self.horizon_ns = past_ns.saturating_sub(LATE_CLOCK_NS);
        }
    }

    /// Ends the window. Chunks that are still live are assumed to live until then.
    pub fn finish(mut self, to_ns: u64) -> ScoredRun {
        self.end_tick(to_ns);
        let mut live: Vec<(u64, Live)> = self.live.drain().collect();
        live.sort_unstable_by_key(|(_, live)| (live.start_ns, live.number));
        let to_ns = to_ns.min(LATEST_NS);
        for (address, live) in live {
            let accesses = self.known.of_live(address);
            let accesses = accesses.map(|accesses| self.count_accesses(&live, &accesses, to_ns));
            self.count_look(&live, address, to_ns);
            let release = self.end(live, to_ns, true, accesses);
            self.settle(release, false);
        }
        for settled in self.threads.finish() {
            self.settle(settled.release, settled.is_outgrown);
        }
        let mut chains: Vec<_> = self.chains.drain().collect();
        chains.sort_unstable_by_key(|(address, _)| *address);
        for (_, chain) in chains {
            self.end_chain(&chain);
        }
        for ((site, _), run) in self.under_way.drain() {
            run.finish(&mut self.sites[site as usize].runs);
        }
        let mut sites = Vec::new();
        for mut site in self.sites {
            let Site { open, finished, .. } = &mut site;
            self.groups.close(open, finished, u64::MAX);
            if site.chunks == 0 {
                continue;
            }
            sites.push(site.scored());
        }
        // Every program accesses some of its blocks. So a program without any accesses was linked
        // to the runtime, but not compiled with the callbacks.
        let accessed = |sums: &AccessSums| sums.reads > 0 || sums.writes > 0;
        let mut known = sites.iter().filter_map(|site| site.accesses.as_ref());
        if !known.any(accessed) {
            for site in &mut sites {
                site.accesses = None;
                site.kept.forget_accesses();
            }
        }
        sites.sort_by_key(|site| site.stack);
        ScoredRun {
            group_ns: self.groups.group_ns,
            sites,
        }
    }
}
