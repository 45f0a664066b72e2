//! Activity of each site and thread in a window: the numbers for all views of a recording.

mod addresses;
mod collector;
mod flows;
mod of_summary;
mod site_sums;
mod timeline;

pub use self::addresses::{AddressCell, AddressMap};

use self::addresses::AddressMaps;
use self::collector::{Collector, Samples};
use crate::file::samples::{SAMPLES_NOTE, samples_of};
use crate::replay::Replay;
use crate::replay::stretch::{Stretch, Watch};
use crate::scores::{LOOKS_NOTE, Looks, ScoreOptions, ScoredRun, Scorer, StackKinds};
use crate::{Error, Recording, WhyNoScores};
use memhook_abi::{HOOKED_FUNCTIONS, flags};
use memhook_ledger::{Estimate, LedgerOptions, SampledAllocations, Totals};
use memhook_stream::Gap;
use rustc_hash::{FxHashMap, FxHashSet};

/// Name of the note of [`Meta`](crate::Meta) that lists the modules that report their reads and
/// writes: load biases in hexadecimal, separated by spaces.
pub const ACCESS_NOTE: &str = "access_modules";

/// Activity of one allocation site on one thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SiteActivity {
    /// Stack id.
    pub stack: u32,
    /// Allocating thread; 0 if threads were not recorded.
    pub tid: u32,
    /// Memory live at the start of the window.
    pub before: Estimate,
    /// Memory live at the end of the window.
    pub live: Estimate,
    /// Live blocks that were allocated before a gap, and may have been released in it.
    pub unseen: Estimate,
    /// Memory live at the time when the most bytes were live in total.
    pub peak: Estimate,
    /// Memory allocated in the window.
    pub allocated: Estimate,
    /// Memory of the site that was released in the window.
    pub released: Estimate,
    /// Part of the released memory that the allocating thread released before its next allocation.
    pub temporary: Estimate,
    /// Allocation time of the oldest live block in nanoseconds since the attach, to the
    /// millisecond; `u64::MAX` if no block is live.
    pub oldest_ns: u64,
    /// Allocations by size in bytes: (bucket, blocks), sorted; see
    /// [`HISTOGRAM_BUCKETS`](crate::HISTOGRAM_BUCKETS).
    pub sizes: Vec<(u8, f64)>,
    /// Released blocks by lifetime in nanoseconds: (bucket, blocks), sorted.
    pub lifetimes: Vec<(u8, f64)>,
}

/// Blocks allocated by one stack and released by another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReleaseFlow {
    /// Stack id of the allocations.
    pub allocated_by: u32,
    /// Stack id of the releases; 0 if unknown.
    pub released_by: u32,
    /// Blocks and bytes.
    pub amount: Estimate,
}

impl ReleaseFlow {
    /// Stack id that represents many releasing stacks, if there are too many pairs to list.
    pub const OTHERS: u32 = u32::MAX;
}

/// The heap at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeapAt {
    /// Nanoseconds since the attach.
    pub time_ns: u64,
    /// Live memory at that time.
    pub live: Estimate,
    /// Memory allocated since the start of the window.
    pub allocated: Estimate,
    /// Temporary allocations since the start of the window.
    pub temporary: Estimate,
}

/// A change of a site over time, at a point of the [`Activity::timeline`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SiteChange {
    /// Index of the point.
    pub point: u32,
    /// Index of the site.
    pub site: u32,
    /// Live memory at that point.
    pub live: Estimate,
    /// Memory allocated since the start of the window.
    pub allocated: Estimate,
}

/// A window of a run, or all of it.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    /// Start in nanoseconds since the attach.
    pub from_ns: u64,
    /// End in nanoseconds since the attach.
    pub to_ns: u64,
    /// Time at which the most bytes were live, in nanoseconds since the attach.
    pub peak_ns: u64,
    /// Maximum of live bytes in the window; 0 if allocations were sampled.
    pub peak_bytes: u64,
    /// Number of allocations in the window that were recorded as samples, while other allocations
    /// were recorded individually.
    pub sampled_allocations: u64,
    /// Recorded sums of the run up to the start of the window, without estimates.
    pub totals_before: Totals,
    /// Recorded sums of the run up to the end.
    pub totals: Totals,
    /// Sums over the sites, estimated if allocations were sampled: live memory at the start and at the end; allocated,
    /// released and temporary memory in the window.
    pub sum: SiteActivity,
    /// Every site seen up to the end, in no order.
    pub sites: Vec<SiteActivity>,
    /// Releases by allocating and releasing stack; empty unless release stacks were recorded.
    pub flows: Vec<ReleaseFlow>,
    /// Releases by stack id, sorted; the id is 0 if unknown. Empty unless release stacks were
    /// recorded.
    pub releases: Vec<(u32, Estimate)>,
    /// Live blocks at the end by size in bytes, in ascending order.
    pub live_sizes: Vec<(u64, Estimate)>,
    /// Allocations by size in bytes: (bucket, amount), sorted; see
    /// [`HISTOGRAM_BUCKETS`](crate::HISTOGRAM_BUCKETS).
    pub allocated_sizes: Vec<(u8, Estimate)>,
    /// Released blocks by lifetime in nanoseconds: (bucket, blocks), sorted.
    pub lifetimes: Vec<(u8, Estimate)>,
    /// The heap over time. The last point is the end.
    pub timeline: Vec<HeapAt>,
    /// Changes of the sites over time, sorted by point.
    pub changes: Vec<SiteChange>,
    /// Scores of the sites; `None` unless requested.
    pub scored: Option<ScoredRun>,
    /// Addresses of live blocks at the requested moments. The last moment is the end. Sites are indices into
    /// [`Activity::sites`]. If allocations were sampled, only the sampled blocks are included.
    pub addresses: Vec<AddressMap>,
}

/// Request for the activity of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ActivityOptions {
    /// Approximate upper bound on the points of the timeline.
    pub points: usize,
    /// Options of scores; `None` for no scores.
    pub scores: Option<ScoreOptions>,
    /// Number of moments with the addresses of blocks. The last one is the end.
    pub moments: usize,
    /// Approximate upper bound on the total number of cells over all moments.
    pub max_cells: usize,
}

impl Activity {
    /// Returns the recorded sums of the window: the sums up to its end minus those before it. Live
    /// blocks and peak are unchanged.
    pub fn window_totals(&self) -> Totals {
        let (now, before) = (&self.totals, &self.totals_before);
        let delta = |field: fn(&Totals) -> u64| field(now).saturating_sub(field(before));
        Totals {
            allocations: delta(|t| t.allocations),
            releases: delta(|t| t.releases),
            allocated_bytes: delta(|t| t.allocated_bytes),
            released_bytes: delta(|t| t.released_bytes),
            live_bytes: now.live_bytes,
            live_blocks: now.live_blocks,
            unknown_releases: delta(|t| t.unknown_releases),
            unhooked_releases: delta(|t| t.unhooked_releases),
            peak_live_bytes: self.peak_bytes,
        }
    }

    /// Adds up the sites.
    pub(crate) fn add_up(&mut self) {
        let mut sum = SiteActivity {
            oldest_ns: u64::MAX,
            ..SiteActivity::default()
        };
        for site in &self.sites {
            sum.before += site.before;
            sum.live += site.live;
            sum.unseen += site.unseen;
            sum.peak += site.peak;
            sum.allocated += site.allocated;
            sum.released += site.released;
            sum.temporary += site.temporary;
            sum.oldest_ns = sum.oldest_ns.min(site.oldest_ns);
        }
        self.sum = sum;
    }
}

/// Observer that resets the counts at the start of the window, and builds the address maps.
struct Count {
    maps: AddressMaps,
}

impl Watch<Collector> for Count {
    type Begin = (u64, Totals);

    fn begin(&mut self, replay: &mut Replay<Collector>) -> Self::Begin {
        let begin = (replay.now_ns(), replay.totals());
        replay.ledger.begin_window();
        replay.ledger.observer_mut().begin(begin.0);
        begin
    }

    fn pass(&mut self, replay: &Replay<Collector>) {
        let now_ns = replay.now_ns();
        if self.maps.is_due(now_ns) {
            self.maps.draw(now_ns, replay.ledger.live_blocks());
        }
    }
}

impl Recording {
    /// Returns the options with which the recorder's ledger counted.
    pub fn ledger_options(&self) -> LedgerOptions {
        LedgerOptions {
            track_release_stacks: self.has_release_stacks(),
            // Blocks that the filter skipped may be recorded too.
            ignore_unknown_releases: self.meta().flags & flags::LIVE_FILTER != 0
                || self.sample_bytes().is_some(),
            ..LedgerOptions::default()
        }
    }

    /// Returns true if stacks of releases were recorded.
    pub fn has_release_stacks(&self) -> bool {
        self.meta().flags & flags::RELEASE_STACKS != 0
    }

    /// Returns the largest mean sampling interval in bytes, if allocations were sampled.
    pub fn sample_bytes(&self) -> Option<u64> {
        self.samples().sample_bytes()
    }

    /// Returns the meaning of recorded blocks.
    pub fn samples(&self) -> SampledAllocations {
        let always = self.meta().sample_bytes;
        if always > 0 {
            return SampledAllocations::new(Some(always), true);
        }
        let notes = &self.meta().notes;
        let note = notes.iter().find(|(name, _)| name == SAMPLES_NOTE);
        let text = note.map_or("", |(_, text)| text.as_str());
        let levels = self.stacks().samples().values().map(|&(_, level)| level);
        samples_of(text, levels)
    }

    /// Fails if the sites of this recording cannot be scored. Scores need every allocation and
    /// release.
    pub fn check_scores(&self) -> Result<(), Error> {
        if self.is_summary() {
            return Err(Error::NoScores(WhyNoScores::Sums));
        }
        if self.sample_bytes().is_some() {
            return Err(Error::NoScores(WhyNoScores::Samples));
        }
        Ok(())
    }

    /// Fails if reads and writes are unknown.
    pub fn check_accesses(&self) -> Result<(), Error> {
        match self.telling_modules() {
            Some(_) => Ok(()),
            None => Err(Error::NoScores(WhyNoScores::NoAccesses)),
        }
    }

    /// Returns the load biases of the modules that report their reads and writes; `None` if none were recorded.
    pub fn telling_modules(&self) -> Option<Vec<u64>> {
        let notes = &self.meta().notes;
        let (_, bases) = notes.iter().find(|(name, _)| name == ACCESS_NOTE)?;
        let number = |base: &str| u64::from_str_radix(base, 16).ok();
        Some(bases.split(' ').filter_map(number).collect())
    }

    fn stack_kinds(&self) -> StackKinds {
        let bases = self.telling_modules().unwrap_or_default();
        let telling = self.modules().iter().filter(|m| bases.contains(&m.base));
        let ranges: Vec<_> = telling.map(|module| module.start..module.end).collect();
        let stacks = self.stacks();
        let tells = |id: &u32| {
            let caller = stacks.get(*id).and_then(|stack| stack.frames.first());
            caller.is_some_and(|caller| ranges.iter().any(|range| range.contains(caller)))
        };
        StackKinds {
            reallocs: self.stacks_of("realloc"),
            zeroing: self.stacks_of("calloc"),
            telling: if ranges.is_empty() {
                FxHashSet::default()
            } else {
                stacks.ids().filter(tells).collect()
            },
        }
    }

    /// Returns the stacks of calls to functions whose kind contains this word.
    fn stacks_of(&self, kind: &str) -> FxHashSet<u32> {
        let stacks = self.stacks();
        let is_of_kind = |id: &u32| {
            let function = stacks.get(*id).map(|stack| usize::from(stack.function));
            let function = function.and_then(|function| HOOKED_FUNCTIONS.get(function));
            function.is_some_and(|function| function.kind.contains(kind))
        };
        stacks.ids().filter(is_of_kind).collect()
    }

    /// Returns the activity from `from_ns` (or the beginning) to `to_ns` (or the end), in
    /// nanoseconds since the attach. `points` is an approximate upper bound on the points of the
    /// timeline.
    ///
    /// In a recording of sums, both ends move to the ends of intervals. Fails if the recording is damaged, or if the
    /// window has no length or lies outside the recorded time.
    pub fn activity(
        &self,
        from_ns: Option<u64>,
        to_ns: Option<u64>,
        points: usize,
    ) -> Result<Activity, Error> {
        self.scored_activity(from_ns, to_ns, points, None)
    }

    /// Like [`Recording::activity`], with scores if `scores` are requested.
    ///
    /// Also fails if scores are requested for a recording that lacks allocations; see
    /// [`Recording::check_scores`].
    pub fn scored_activity(
        &self,
        from_ns: Option<u64>,
        to_ns: Option<u64>,
        points: usize,
        scores: Option<&ScoreOptions>,
    ) -> Result<Activity, Error> {
        let options = ActivityOptions {
            points,
            scores: scores.copied(),
            ..ActivityOptions::default()
        };
        self.activity_with(from_ns, to_ns, &options)
    }

    /// Like [`Recording::activity`], with all options. A recording of sums has no addresses.
    ///
    /// Fails like [`Recording::scored_activity`].
    pub fn activity_with(
        &self,
        from_ns: Option<u64>,
        to_ns: Option<u64>,
        options: &ActivityOptions,
    ) -> Result<Activity, Error> {
        let ActivityOptions { points, scores, .. } = *options;
        if scores.is_some() {
            self.check_scores()?;
        }
        let (start_ns, end_ns) = self.span_ns();
        let start_ns = start_ns.min(to_ns.map_or(start_ns, |to| to.saturating_sub(1)));
        self.check_window(from_ns.unwrap_or(start_ns), to_ns.unwrap_or(u64::MAX))?;
        if self.is_summary() {
            return self.summary_activity(from_ns, to_ns);
        }
        let covered = (
            from_ns.unwrap_or(start_ns),
            to_ns.map_or(end_ns, |to| to.min(end_ns)),
        );
        let run_ns = covered.1.saturating_sub(covered.0);
        let collector = || {
            let scorer = scores.as_ref().map(|options| {
                let looks = self
                    .meta()
                    .notes
                    .iter()
                    .find(|(name, _)| name == LOOKS_NOTE);
                let looks = looks.map_or(Looks::default(), |(_, text)| Looks::of(text));
                Scorer::new(options, run_ns, self.stack_kinds()).with_looks(looks)
            });
            Collector::new(
                Samples {
                    counts: self.samples(),
                    of_id: self.stacks().samples().clone(),
                },
                self.has_release_stacks(),
                covered,
                points,
                scorer,
            )
        };
        let (replay, start) =
            self.start_before(from_ns.unwrap_or(0), self.ledger_options(), collector)?;
        let is_restored = replay.is_restored();
        let asked = (from_ns, to_ns.map(|to| to.min(end_ns)));
        let to_ns = to_ns.unwrap_or(u64::MAX);
        let count = Count {
            maps: AddressMaps::new(covered, options.moments, options.max_cells),
        };
        let mut stretch = Stretch::new(replay, from_ns.unwrap_or(0), to_ns, count);
        if from_ns.is_none() && !is_restored {
            // At the very start, there is no earlier state.
            stretch.begin = Some((0, Totals::default()));
        }
        stretch.run(self, start)?;
        if stretch.replay.now_ns() >= end_ns {
            // After the end of the file, no event can resolve the ones that are still held back.
            stretch.replay.ledger.finish();
        }
        self.meter().end();
        let (begun_ns, totals_before) = stretch.begin_or_now();
        let from_ns = asked.0.map_or(begun_ns, |from| from.max(start_ns));
        let to_ns = asked.1.unwrap_or(stretch.replay.now_ns());
        let unseen_before = Gap::unseen_before(self.gaps(), to_ns).unwrap_or(0);
        let covered = (from_ns, to_ns);
        Ok(finish(
            stretch.replay,
            stretch.watch.maps,
            covered,
            totals_before,
            unseen_before,
        ))
    }
}

/// Facts from the live blocks of a site on a thread.
#[derive(Default)]
struct LiveOfSite {
    oldest_ns: Option<u64>,
    unseen: Estimate,
}

fn finish(
    mut replay: Replay<Collector>,
    maps: AddressMaps,
    (from_ns, to_ns): (u64, u64),
    totals_before: Totals,
    unseen_before: u64,
) -> Activity {
    let totals = replay.totals();
    let collector = std::mem::take(replay.ledger.observer_mut());
    let mut sizes: FxHashMap<u64, Estimate> = FxHashMap::default();
    let mut of_sites: FxHashMap<(u32, u32), LiveOfSite> = FxHashMap::default();
    for block in replay.ledger.live_blocks() {
        let amount = collector.samples().block(block.stack, block.size);
        *sizes.entry(block.size).or_default() += amount;
        let of_site = of_sites.entry((block.stack, block.tid)).or_default();
        let oldest = of_site.oldest_ns.unwrap_or(u64::MAX);
        of_site.oldest_ns = Some(oldest.min(block.time_ns));
        if block.time_ns < unseen_before {
            of_site.unseen += amount;
        }
    }
    let samples = collector.samples().clone();
    let ledger = &replay.ledger;
    let mut activity = collector.finish(to_ns, |thread| ledger.tid_of(thread));
    activity.from_ns = from_ns;
    activity.totals_before = totals_before;
    activity.totals = totals;
    let numbered = (0..).zip(&activity.sites);
    let numbers: FxHashMap<_, u32> = numbered.map(|(n, s)| ((s.stack, s.tid), n)).collect();
    activity.addresses = maps.finish(to_ns, ledger.live_blocks(), |stack, tid| {
        numbers.get(&(stack, tid)).copied()
    });
    for site in &mut activity.sites {
        let of_site = of_sites.remove(&(site.stack, site.tid)).unwrap_or_default();
        site.oldest_ns = of_site.oldest_ns.unwrap_or(u64::MAX);
        site.unseen = of_site.unseen;
        // From here on, samples of a stack are replaced by the amounts that they represent.
        site.stack = samples.of(site.stack).0;
    }
    activity.live_sizes = sizes.into_iter().collect();
    activity.live_sizes.sort_unstable_by_key(|(size, _)| *size);
    activity.add_up();
    activity
}
