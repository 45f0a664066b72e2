//! Builds the profile of a recording, from which every view and format is made.

use super::notes::{
    FROM_START_NOTE, aging, arenas, call_times, note, resident, stale, unreachable,
};
use super::series::largest_over_time;
use crate::allocator_time::all_in_allocator;
use crate::gaps;
use crate::profile_tables::{ProfileTables, hex};
use crate::scores::inferences;
use crate::{
    AllocatorTime, Amount, Flow, Measures, Point, Profile, ProfileModule, ProfileScores,
    ProfileSite, Released, ReportTotals, RunScores, Sampling, Scores, Series, SitePoint,
    SiteScores, Target, UnreachableSite,
};
use memhook_abi::HOOKED_FUNCTIONS;
use memhook_ledger::{Estimate, TimeTaken, Totals};
use memhook_recording::{
    Activity, ActivityOptions, FUNCTIONS_NOTE, Module, Recording, ReleaseFlow, ScoreOptions,
    ScoredRun, ScoredSite, function_in,
};
use memhook_symbols::Symbolizer;
use rustc_hash::FxHashMap;
use std::{cmp::Reverse, collections::BTreeSet, time::Duration};

/// Number of points of the timeline.
const POINTS: usize = 1000;
/// Number of sites that are followed over time.
const SERIES: usize = 200;

/// A part of a run in nanoseconds since the attach; `None` is the start or the end of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Start of the part.
    pub from_ns: Option<u64>,
    /// End of the part.
    pub to_ns: Option<u64>,
}

/// Number of moments for which an HTML page contains the addresses of blocks.
const MOMENTS: usize = 9;
/// Maximum number of cells in all moments together: about a megabyte of the page.
const MAX_CELLS: usize = 180_000;

/// Optional contents of a profile.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Contents {
    /// Options for scores; `None` for no scores.
    pub scores: Option<ScoreOptions>,
    /// True to include the addresses of blocks.
    pub addresses: bool,
}

impl Contents {
    /// Includes scores, if there are options for them, and nothing else.
    pub fn scored(scores: Option<ScoreOptions>) -> Contents {
        Contents {
            scores,
            ..Contents::default()
        }
    }
}

/// Builds the profile of a window. `symbols` must know the recording's modules. Waits for names.
pub fn profile(
    recording: &Recording,
    symbols: &mut Symbolizer,
    window: Window,
    contents: Contents,
) -> Result<Profile, memhook_recording::Error> {
    if window == Window::default() {
        // All names will be needed. Other threads look them up during the replay.
        request(recording, recording.stacks().ids(), symbols);
    }
    let options = ActivityOptions {
        points: POINTS,
        scores: contents.scores,
        moments: if contents.addresses { MOMENTS } else { 0 },
        max_cells: MAX_CELLS,
    };
    let mut activity = recording.activity_with(window.from_ns, window.to_ns, &options)?;
    let meta = recording.meta();
    let depth = note(recording, "depth").parse().unwrap_or(0);
    let mut tables = Tables::new(recording, depth);
    let names: FxHashMap<u32, &str> = recording
        .threads()
        .iter()
        .map(|thread| (thread.tid, thread.name.as_str()))
        .collect();
    tables.look_up(&activity, symbols);
    let times = call_times(recording);
    let time_of = |stack: u32, blocks: f64| {
        let time = times.as_ref().and_then(|times| times.get(stack));
        time.map_or_else(TimeTaken::default, |time| time.of(blocks))
    };
    let mut sites = Vec::with_capacity(activity.sites.len());
    for site in &activity.sites {
        let stack = recording.stacks().get(site.stack);
        sites.push(ProfileSite {
            stack: tables.stack(site.stack, symbols),
            kind: match name_of_call(recording, site.stack) {
                "" => "unknown".to_owned(),
                kind => kind.to_owned(),
            },
            tid: site.tid,
            thread: names.get(&site.tid).copied().unwrap_or("").to_owned(),
            truncated: stack.is_some_and(|stack| stack.truncated),
            measures: Measures {
                live: Amount::from(site.live),
                peak: Amount::from(site.peak),
                allocated: Amount::from(site.allocated),
                released: Amount::from(site.released),
                temporary: Amount::from(site.temporary),
                unreachable: Amount::default(),
            },
            unseen: Amount::from(site.unseen),
            before: Amount::from(site.before),
            in_allocator: time_of(site.stack, site.allocated.blocks),
            oldest_ns: Some(site.oldest_ns).filter(|&oldest| oldest != u64::MAX),
            sizes: whole(&site.sizes),
            lifetimes: whole(&site.lifetimes),
        });
    }
    let in_allocator = all_in_allocator(&sites, times.as_ref());
    let searched = unreachable(recording);
    if let Some(found) = &searched {
        let keys = activity.sites.iter().map(|site| (site.stack, site.tid));
        add_unreachable(&mut sites, keys, &found.sites);
    }
    let flows = activity.flows.iter().map(|flow| Flow {
        allocated_by: tables.stack(flow.allocated_by, symbols),
        released_by: tables.stack(flow.released_by, symbols),
        kind: match flow.released_by {
            ReleaseFlow::OTHERS => Flow::OTHERS,
            stack => kind_of(recording, stack),
        },
        amount: Amount::from(flow.amount),
    });
    let flows = flows.collect();
    let releases = activity.releases.iter().map(|&(stack, amount)| Released {
        by: tables.stack(stack, symbols),
        kind: kind_of(recording, stack),
        amount: Amount::from(amount),
    });
    let releases = releases.collect();
    let timeline = activity.timeline.iter().map(|point| Point {
        time_ns: point.time_ns,
        live: Amount::from(point.live),
        allocated: Amount::from(point.allocated),
        temporary: Amount::from(point.temporary),
    });
    let timeline = timeline.collect();
    let followed = largest_over_time(&activity, SERIES);
    let series = followed.into_iter().map(|one| Series {
        stack: tables.stack(one.stack, symbols),
        live: one.live.into_iter().map(Amount::from).collect(),
        allocated: one.allocated.into_iter().map(Amount::from).collect(),
    });
    let series = series.collect();
    let stack_of = tables.of_stack;
    let looks = crate::TwoLooks::of(recording, |id| stack_of.get(&id).copied());
    let profile = Profile {
        target: Target {
            pid: meta.pid as i32,
            name: note(recording, "name").to_owned(),
            exe: note(recording, "exe").to_owned(),
        },
        began_unix_ms: meta.started_unix_ns / 1_000_000,
        from_ns: activity.from_ns,
        to_ns: activity.to_ns,
        is_part: activity.from_ns > 0 || activity.to_ns < recording.span_ns().1,
        gaps: gaps::until(recording.gaps(), activity.to_ns),
        peak_ns: activity.peak_ns,
        from_start: note(recording, FROM_START_NOTE) == "1",
        sampling: sampling(recording, &activity),
        totals: totals(recording, &activity),
        sites,
        live_sizes: activity
            .live_sizes
            .iter()
            .map(|&(size, amount)| (size, Amount::from(amount)))
            .collect(),
        allocated_sizes: by_bucket(&activity.allocated_sizes),
        lifetimes: by_bucket(&activity.lifetimes),
        has_release_stacks: recording.has_release_stacks(),
        flows,
        releases,
        allocator_time: AllocatorTime::of(in_allocator),
        leaks: searched.map(|found| found.leaks),
        timeline,
        resident: resident(recording, (activity.from_ns, activity.to_ns)),
        aging: stale(recording)
            .and_then(|report| aging(report, (activity.from_ns, activity.to_ns))),
        series,
        changes: activity.changes.iter().map(changed).collect(),
        addresses: std::mem::take(&mut activity.addresses),
        looks,
        arenas: if activity.to_ns >= recording.span_ns().1 {
            arenas(recording)
        } else {
            Vec::new()
        },
        ..Profile::default()
    };
    let mut profile = tables.tables.fill(profile);
    profile.forget_cuts_below_main();
    let scored = activity.scored.take();
    profile.scores = scored.map(|run| scored_sites(&profile, recording, &stack_of, run));
    if let Some(scores) = &mut profile.scores {
        scores.run.accesses_missed = note(recording, "access_missed").parse().unwrap_or(0);
    }
    Ok(profile)
}

/// Scores a profile. `stack_of` maps stack ids of the recording to indices of the profile.
fn scored_sites(
    profile: &Profile,
    recording: &Recording,
    stack_of: &FxHashMap<u32, u32>,
    run: ScoredRun,
) -> ProfileScores {
    let known = |site: &ScoredSite| stack_of.get(&site.stack).copied();
    let named = run.sites.iter().filter_map(|site| {
        let stack = recording.stacks().get(site.stack);
        let is_truncated = stack.is_some_and(|stack| stack.truncated);
        let kind = match name_of_call(recording, site.stack) {
            "" => "unknown",
            kind => kind,
        };
        Some((known(site)?, site, kind, is_truncated))
    });
    let inferences = inferences(profile, &named.collect::<Vec<_>>());
    let run_scores = RunScores::of(&run);
    // A stack that several threads use becomes several sites of the profile.
    let mut live: FxHashMap<u32, Amount> = FxHashMap::default();
    let mut timed: FxHashMap<u32, TimeTaken> = FxHashMap::default();
    for site in &profile.sites {
        *live.entry(site.stack).or_default() += site.measures.live;
        *timed.entry(site.stack).or_default() += site.in_allocator;
    }
    let sites = run.sites.into_iter().filter_map(|numbers| {
        let stack = known(&numbers)?;
        Some(SiteScores {
            stack,
            scores: Scores::of(&numbers),
            numbers,
            live: live.get(&stack).copied().unwrap_or_default(),
            in_allocator: timed.get(&stack).copied().unwrap_or_default(),
        })
    });
    let mut sites: Vec<SiteScores> = sites.collect();
    sites.sort_by_key(|site| site.stack);
    ProfileScores {
        run: run_scores,
        sites,
        inferences,
        is_timed: profile.allocator_time.is_some(),
        run_s: profile.to_ns.saturating_sub(profile.from_ns) as f64 / 1e9,
        ..ProfileScores::default()
    }
}

/// Adds unreachable blocks to the sites. `keys` yields the stack and thread of each site of the
/// recording. If the profile covers only a window, blocks that were allocated after the window have
/// no site.
fn add_unreachable(
    sites: &mut [ProfileSite],
    keys: impl Iterator<Item = (u32, u32)>,
    found: &[UnreachableSite],
) {
    let mut of_site: FxHashMap<(u32, u32), usize> = FxHashMap::default();
    let mut of_stack: FxHashMap<u32, usize> = FxHashMap::default();
    for (at, (stack, tid)) in keys.enumerate() {
        of_site.entry((stack, tid)).or_insert(at);
        of_stack.entry(stack).or_insert(at);
    }
    for one in found {
        // Recordings of sums do not distinguish threads.
        let known = of_site.get(&(one.stack, one.tid));
        if let Some(&at) = known.or_else(|| of_stack.get(&one.stack)) {
            sites[at].measures.unreachable += one.amount;
        }
    }
}

/// Like `kind_of`, but also names functions that the user has described.
fn name_of_call(recording: &Recording, stack: u32) -> &str {
    let Some(found) = recording.stacks().get(stack) else {
        return "";
    };
    let described = function_in(note(recording, FUNCTIONS_NOTE), found.function);
    described.unwrap_or_else(|| kind_of(recording, stack))
}

/// Returns the function whose call recorded this stack, or an empty text.
fn kind_of(recording: &Recording, stack: u32) -> &'static str {
    let stack = recording.stacks().get(stack);
    let function = stack.and_then(|stack| HOOKED_FUNCTIONS.get(usize::from(stack.function)));
    function.map_or("", |function| function.kind)
}

fn changed(change: &memhook_recording::SiteChange) -> SitePoint {
    SitePoint {
        point: change.point,
        site: change.site,
        live: Amount::from(change.live),
        allocated: Amount::from(change.allocated),
    }
}

fn whole(histogram: &[(u8, f64)]) -> Vec<(u8, u64)> {
    let buckets = histogram.iter();
    buckets.map(|&(b, n)| (b, n.round() as u64)).collect()
}

fn by_bucket(amounts: &[(u8, Estimate)]) -> Vec<(u8, Amount)> {
    let buckets = amounts.iter();
    buckets
        .map(|&(bucket, amount)| (bucket, Amount::from(amount)))
        .collect()
}

/// Describes how allocations were sampled, if they were.
fn sampling(recording: &Recording, activity: &Activity) -> Option<Sampling> {
    let samples = recording.samples();
    let mean_bytes = samples.sample_bytes()?;
    let recorded = activity.window_totals().allocations;
    let error = |sum: Estimate| samples.with_unhit(sum).error_bytes();
    let is_mixed = !samples.always;
    Some(Sampling {
        mean_bytes,
        recorded_allocations: if is_mixed {
            activity.sampled_allocations
        } else {
            recorded
        },
        exact_allocations: is_mixed.then(|| recorded.saturating_sub(activity.sampled_allocations)),
        exact_s: None,
        live_error_bytes: error(activity.sum.live),
        allocated_error_bytes: error(activity.sum.allocated),
        released_error_bytes: error(activity.sum.released),
        is_in_budget: recording.meta().flags & memhook_abi::flags::BUDGET != 0,
    })
}

/// Returns the sums of the window, as if a trace had begun and ended with the window.
fn totals(recording: &Recording, activity: &Activity) -> ReportTotals {
    let losses = |until_ns: u64| {
        let counted = recording.losses_over_time().iter();
        let last = counted.take_while(|(time, _)| *time <= until_ns).last();
        last.map(|(_, losses)| *losses).unwrap_or_default()
    };
    let is_whole = activity.to_ns >= recording.span_ns().1;
    let now = if is_whole {
        *recording.losses()
    } else {
        losses(activity.to_ns)
    };
    let before = match activity.from_ns {
        0 => memhook_stream::Losses::default(),
        from_ns => losses(from_ns),
    };
    let since = |now: u64, before: u64| now.saturating_sub(before);
    let lost = memhook_stream::Losses {
        dropped: since(now.dropped, before.dropped),
        ringless: since(now.ringless, before.ringless),
        truncated: since(now.truncated, before.truncated),
        stacks_dropped: since(now.stacks_dropped, before.stacks_dropped),
        reentrant: since(now.reentrant, before.reentrant),
        unwatched_libraries: since(now.unwatched_libraries, before.unwatched_libraries),
        ..memhook_stream::Losses::default()
    };
    let mut totals = ReportTotals::exact(&window_totals(recording, activity), &lost);
    let before = Amount::from(activity.sum.before);
    totals.live_growth_bytes = totals.live_bytes as i64 - before.bytes as i64;
    totals
}

/// Returns the sums of the window, estimated where allocations were sampled.
pub fn window_totals(recording: &Recording, activity: &Activity) -> Totals {
    let mut totals = activity.window_totals();
    if recording.sample_bytes().is_some() {
        let of = |sum: Estimate| (sum.blocks.round() as u64, sum.bytes.round() as u64);
        let sum = &activity.sum;
        (totals.allocations, totals.allocated_bytes) = of(sum.allocated);
        (totals.releases, totals.released_bytes) = of(sum.released);
        (totals.live_blocks, totals.live_bytes) = of(sum.live);
    }
    totals
}

/// Looks up the names on these stacks in the background.
fn request(recording: &Recording, ids: impl Iterator<Item = u32>, symbols: &mut Symbolizer) {
    let stacks = ids.filter_map(|id| recording.stacks().get(id));
    let addresses: BTreeSet<u64> = stacks.flat_map(|s| s.frames.iter().copied()).collect();
    symbols.request(addresses);
}

/// The profile's tables, with access by the recording's stack ids.
struct Tables<'a> {
    recording: &'a Recording,
    tables: ProfileTables,
    /// Stacks by their id in the recording.
    of_stack: FxHashMap<u32, u32>,
}

/// Returns the modules in the order in which an address most likely belongs to them: loaded
/// modules, then the most recently unloaded.
pub fn ordered_modules(recording: &Recording) -> Vec<&Module> {
    let mut modules: Vec<&Module> = recording.modules().iter().collect();
    modules.sort_by_key(|module| Reverse(module.unloaded_ns.unwrap_or(u64::MAX)));
    modules
}

impl<'a> Tables<'a> {
    fn new(recording: &'a Recording, depth: u32) -> Tables<'a> {
        let modules = ordered_modules(recording).into_iter();
        let modules = modules.map(|module| ProfileModule {
            path: module.path.clone(),
            build_id: hex(&module.build_id),
            start: module.start,
            end: module.end,
            bias: module.base,
        });
        Tables {
            recording,
            tables: ProfileTables::new(modules.collect(), depth),
            of_stack: FxHashMap::default(),
        }
    }

    /// Looks up all names at once, for several modules in parallel.
    fn look_up(&self, activity: &Activity, symbols: &mut Symbolizer) {
        let of_sites = activity.sites.iter().map(|site| site.stack);
        let of_releases = activity.releases.iter().map(|(stack, _)| *stack);
        let ids: BTreeSet<u32> = of_sites.chain(of_releases).collect();
        request(self.recording, ids.into_iter(), symbols);
        while !symbols.is_ready(Duration::from_secs(1)) {}
    }

    fn stack(&mut self, id: u32, symbols: &Symbolizer) -> u32 {
        let (recording, tables) = (self.recording, &mut self.tables);
        *self.of_stack.entry(id).or_insert_with(|| {
            let stack = recording.stacks().get(id);
            let addresses = stack.map_or(&[][..], |stack| stack.frames);
            tables.push(addresses, stack.is_some_and(|s| s.truncated), symbols)
        })
    }
}
