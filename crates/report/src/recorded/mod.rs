//! Reports of a recording. Converts a profile into the model that a live attach also fills.

mod notes;
mod profile;
mod series;
mod symbolizer;

pub(crate) use notes::FROM_START_NOTE;
pub use notes::account;
pub use notes::{NotSearched, check_unreachable, note, overhead, stale};
pub use profile::{Contents, Window, ordered_modules, profile, window_totals};
pub use symbolizer::{NameSources, module_files, symbolizer};
pub(crate) use symbolizer::{candidates, symbolizer_of};

use crate::labels::Labels;
use crate::named_run::NamedRun;
use crate::rows::{Part, RowsBy, SortBy, Sums, size_class};
use crate::seen::Seen;
use crate::types::{UNKNOWN_TYPE, named_by_frames, one_spelling};
use crate::{
    Amount, AttachInfo, Coverage, CustomValues, Measure, Measured, Profile, ProfileScores,
    Released, ReportModel, StackFrame,
};
use memhook_ledger::Estimate;
use memhook_recording::{FUNCTIONS_NOTE, HEAP_COMPARISON_NOTE, HEAP_NOTE, Recording};
use memhook_symbols::{Constructors, Source, Symbolizer};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::ops::Range;

/// Choice of the rows of a report, and their number.
#[derive(Clone, Copy, Debug)]
pub struct Selection {
    /// Kind of the rows.
    pub by: RowsBy,
    /// Measure of the rows.
    pub measure: Measure,
    /// Order of the rows.
    pub sort: SortBy,
    /// Number of rows.
    pub top: usize,
    /// True if the profile covers only a part of the run.
    pub is_window: bool,
    /// True to merge sites whose text is the same, such as calls from one line.
    pub merges_alike: bool,
}

/// A profile that looks up names by stack number.
struct NamedProfile<'a> {
    profile: &'a Profile,
    measure: Measure,
    /// For each return address, the range of its frames in the profile's table.
    of_address: FxHashMap<u64, Range<usize>>,
    /// Kind of each stack, and true if it was cut short.
    calls: FxHashMap<u32, (&'a str, bool)>,
    threads: FxHashMap<u32, &'a str>,
    constructors: Constructors<'a>,
}

impl NamedProfile<'_> {
    fn new<'a>(
        profile: &'a Profile,
        symbols: &'a Symbolizer,
        measure: Measure,
    ) -> NamedProfile<'a> {
        let mut of_address: FxHashMap<u64, Range<usize>> = FxHashMap::default();
        for (at, frame) in profile.frames.iter().enumerate() {
            let range = of_address.entry(frame.address).or_insert(at..at);
            range.end = at + 1;
        }
        let sites = profile.sites.iter();
        let of_sites = sites.clone().map(|s| (s.stack, (&*s.kind, s.truncated)));
        let of_releases = profile.releases.iter().map(|r| (r.by, (r.kind, false)));
        NamedProfile {
            profile,
            measure,
            of_address,
            calls: of_releases.chain(of_sites).collect(),
            threads: sites.map(|site| (site.tid, site.thread.as_str())).collect(),
            constructors: Constructors::new(symbols),
        }
    }
}

impl NamedRun for NamedProfile<'_> {
    fn addresses(&self, stack: u32) -> Vec<u64> {
        let frames = self.profile.known_frames(stack).iter();
        let frames = frames.map(|&frame| &self.profile.frames[frame as usize]);
        let calls = frames.filter(|frame| !frame.frame.inlined);
        calls.map(|frame| frame.address).collect()
    }

    fn frames_at(&self, address: u64) -> Vec<StackFrame> {
        let range = self.of_address.get(&address).cloned().unwrap_or(0..0);
        let frames = self.profile.frames[range].iter();
        frames.map(|frame| frame.frame.clone()).collect()
    }

    fn thread_name(&self, tid: u32) -> String {
        let name = self.threads.get(&tid);
        name.map_or_else(String::new, |&name| name.to_owned())
    }

    fn call(&self, stack: u32) -> (String, bool) {
        let (kind, truncated) = self
            .calls
            .get(&stack)
            .copied()
            .unwrap_or(("unknown", false));
        (kind.to_owned(), truncated)
    }

    fn is_cut(&self, stack: u32) -> bool {
        self.profile.is_cut(stack)
    }

    fn size_name(&self, number: u64) -> String {
        match self.measure {
            Measure::Live => format!("{number} bytes"),
            // Exact sizes are kept only for live blocks.
            _ => size_class(number as u8),
        }
    }

    fn stack(&self, stack: u32) -> Vec<StackFrame> {
        self.profile.stack(stack)
    }

    fn type_of(&self, stack: u32) -> Option<String> {
        let by_frames = named_by_frames(&self.stack(stack));
        by_frames.or_else(|| self.constructors.class(*self.addresses(stack).first()?))
    }
}

/// Looks up the types of the blocks of all sites whose stacks reveal them.
pub fn add_types(profile: &mut Profile, symbols: &Symbolizer) {
    let named = NamedProfile::new(profile, symbols, Measure::Live);
    let stacks: BTreeSet<u32> = profile.sites.iter().map(|site| site.stack).collect();
    let types = stacks
        .into_iter()
        .filter_map(|stack| Some((stack, one_spelling(named.type_of(stack)?))));
    let types = types.collect();
    profile.types = types;
}

/// Keeps only the sites whose blocks have an accepted type. Sums over the whole run do not change.
pub fn keep_types(profile: &mut Profile, passes: impl Fn(&str) -> bool) {
    let types = std::mem::take(&mut profile.types);
    profile.keep_stacks(|stack| passes(types.get(&stack).map_or(UNKNOWN_TYPE, String::as_str)));
    profile.types = types;
}

/// Keeps only the sites whose stacks have an accepted frame, by its function or its place
/// (`src/shop.cc:28`). Sums over the whole run do not change.
pub fn keep_frames(profile: &mut Profile, passes: impl Fn(&str) -> bool) {
    let is_one = |frame: &crate::ProfileFrame| {
        let StackFrame {
            function,
            file,
            line,
            ..
        } = &frame.frame;
        let place = file.as_ref().map(|file| match line {
            Some(line) => format!("{file}:{line}"),
            None => file.to_string(),
        });
        let known = [function.as_deref(), place.as_deref()];
        known.into_iter().flatten().any(&passes)
    };
    let frames: Vec<bool> = profile.frames.iter().map(is_one).collect();
    let is_on = |stack: &Vec<u32>| stack.iter().any(|&frame| frames[frame as usize]);
    let stacks: Vec<bool> = profile.stacks.iter().map(is_on).collect();
    profile.keep_stacks(|stack| stacks[stack as usize]);
}

/// Builds the report.
///
/// # Errors
/// Fails if the recorder's note on the coverage of modules cannot be read.
pub fn report(
    recording: &Recording,
    symbols: &Symbolizer,
    profile: &Profile,
    selection: &Selection,
) -> Result<ReportModel, serde_json::Error> {
    let Selection { by, measure, .. } = *selection;
    let named = NamedProfile::new(profile, symbols, measure);
    let mut parts = parts(profile, by, measure);
    if selection.merges_alike && by == RowsBy::Site {
        merge_alike(&mut parts, profile);
    }
    let amounts = profile.sites.iter().map(|site| measure.of(&site.measures));
    let sum: Amount = amounts.sum();
    // Coverage and releases belong in the overview, not in the answer about a detail.
    let is_overview = by == RowsBy::Site && measure == Measure::Live;
    let shows_releases = is_overview || (by == RowsBy::Site && measure == Measure::Released);
    let is_end = is_overview && profile.to_ns >= recording.span_ns().1;
    let number = |name| note(recording, name).parse::<f64>().unwrap_or(0.0);
    let seconds = |ns: u64| ns as f64 / 1e9;
    let facts = ReportModel {
        is_final: true,
        is_cut: recording.end().is_none(),
        is_recorded: true,
        target: profile.target.clone(),
        attach: AttachInfo {
            attach_ms: number("attach_ms"),
            held_ms: number("held_ms"),
            idle_held_ms: number("idle_held_ms"),
            slots: number("slots") as u64,
            modules: number("modules") as u64,
            depth: profile.depth,
            from_start: profile.from_start,
        },
        from_s: seconds(profile.from_ns),
        gaps: profile.gaps.clone(),
        marks: {
            let marks = recording.marks().iter();
            marks
                .filter(|mark| mark.time_ns <= profile.to_ns)
                .map(crate::Mark::from)
                .collect()
        },
        live_bounds: profile.live_bounds(),
        since_last_s: selection
            .is_window
            .then(|| seconds(profile.to_ns - profile.from_ns)),
        sampling: profile.sampling,
        totals: profile.totals,
        call_stacks: Some(profile.call_stacks(measure)),
        measured: Measured {
            measure: measure.name(),
            bytes: sum.bytes,
            blocks: sum.blocks,
            error_bytes: profile.error_of_sum(measure, sum),
        },
        coverage: if is_overview {
            coverage(recording, symbols)?
        } else {
            Vec::new()
        },
        resident: profile.resident.clone(),
        rss: is_end.then(|| account(recording)).flatten(),
        heap_comparison: is_end
            .then(|| serde_json::from_str(note(recording, HEAP_COMPARISON_NOTE)).ok())
            .flatten(),
        allocator_time: profile.allocator_time,
        overhead: overhead(recording),
        ends_early: profile.to_ns < recording.span_ns().1,
        leaks: is_overview.then(|| profile.leaks.clone()).flatten(),
        // The stale report describes the end of the run.
        stale: is_end.then(|| stale(recording)).flatten(),
        scores: profile.scores.as_ref().map(|scores| scores.run),
        custom_scores: profile
            .scores
            .as_ref()
            .map_or_else(Vec::new, |scores| scores.custom.clone()),
        inferences: profile
            .scores
            .as_ref()
            .map(|scores| scores.inferences.clone()),
        ..ReportModel::default()
    };
    let mut seen = Seen {
        by,
        parts,
        releases: releases(profile, shows_releases),
        now_ns: profile.to_ns,
        facts,
        chosen: None,
    };
    let scores_of = |stack| profile.scores.as_ref()?.of_stack(stack);
    seen.choose(selection.sort, selection.top, &named, |rows| {
        for row in rows.iter_mut().filter(|_| by == RowsBy::Site) {
            let stack = row.key.number as u32;
            row.score = match selection.sort {
                SortBy::Formula(formula) => {
                    let scores = profile.scores.as_ref();
                    scores.and_then(|scores| scores.value_of_stack(formula, stack))
                }
                _ => scores_of(stack).and_then(|scores| scores.together()),
            };
        }
    });
    let mut model = seen.report(&named);
    for site in &mut model.sites {
        site.scores = scores_of(site.stack_id);
        site.custom_scores = custom_of(profile.scores.as_ref(), site.stack_id);
    }
    let heap = note(recording, HEAP_NOTE);
    if heap.is_empty() {
        return Ok(model);
    }
    let functions = note(recording, FUNCTIONS_NOTE).lines();
    let names = functions.filter_map(|line| Some(line.split_once(' ')?.1.to_owned()));
    Ok(model.of_heap(heap, names.collect()))
}

fn custom_of(scores: Option<&ProfileScores>, stack: u32) -> CustomValues {
    let known = scores.and_then(|scores| Some((scores, scores.site(stack)?)));
    known.map_or_else(CustomValues::default, |(scores, site)| {
        scores.named_values(site)
    })
}

/// Collects the parts of one measure.
fn parts(profile: &Profile, by: RowsBy, measure: Measure) -> Vec<Part> {
    let of_size = |number: u64, amount: Amount| {
        let sums = Sums {
            amount: amount.into(),
            growth_bytes: amount.bytes as f64,
            ..Sums::default()
        };
        (number, sums)
    };
    let of_buckets = |buckets: &[(u8, Amount)]| {
        let parts = buckets
            .iter()
            .map(|&(bucket, amount)| of_size(bucket.into(), amount));
        parts.collect()
    };
    match by {
        RowsBy::Size if measure == Measure::Live => {
            let sizes = profile.live_sizes.iter();
            return sizes.map(|&(size, amount)| of_size(size, amount)).collect();
        }
        RowsBy::Size => return of_buckets(&profile.allocated_sizes),
        RowsBy::Lifetime => return of_buckets(&profile.lifetimes),
        _ => {}
    }
    let of_sites = profile.sites.iter().map(|site| {
        let number = match by {
            RowsBy::Thread => site.tid,
            _ => site.stack,
        };
        let sums = Sums {
            amount: measure.of(&site.measures).into(),
            unseen_bytes: match measure {
                Measure::Live => site.unseen.bytes as f64,
                _ => 0.0,
            },
            unreachable: (profile.knows_unreachable() && measure != Measure::Unreachable)
                .then(|| site.measures.unreachable.into()),
            growth_bytes: site.measures.live.bytes as f64 - site.before.bytes as f64,
            oldest_ns: site.oldest_ns,
            released: Estimate::default(),
            in_allocator: site.in_allocator,
        };
        (number.into(), sums)
    });
    let releases = profile.releases.iter().filter(|_| by.repeats_blocks());
    let is_known = |released: &&Released| !profile.stacks[released.by as usize].is_empty();
    let of_releases = releases.filter(is_known).map(|released| {
        let sums = Sums {
            released: released.amount.into(),
            ..Sums::default()
        };
        (released.by.into(), sums)
    });
    of_sites.chain(of_releases).collect()
}

/// Gives stacks with equal texts the number of the first of them.
fn merge_alike(parts: &mut [Part], profile: &Profile) {
    let labels = Labels::with_places(profile);
    let kinds = profile.sites.iter().map(|site| (site.stack, &site.kind));
    let kind_of: FxHashMap<u32, &String> = kinds.collect();
    let mut first: FxHashMap<(Vec<u32>, Option<&String>), u64> = FxHashMap::default();
    for (number, _) in parts {
        let stack = *number as u32;
        let key = (labels.stack(profile, stack), kind_of.get(&stack).copied());
        *number = *first.entry(key).or_insert(*number);
    }
}

/// Returns the releases of stacks, if they were recorded and are shown.
fn releases(profile: &Profile, is_shown: bool) -> Vec<(u32, Amount)> {
    let mut sums: FxHashMap<u32, Amount> = FxHashMap::default();
    let is_known = |released: &&Released| !profile.stacks[released.by as usize].is_empty();
    for released in profile
        .releases
        .iter()
        .filter(|one| is_shown && is_known(one))
    {
        *sums.entry(released.by).or_default() += released.amount;
    }
    sums.into_iter().collect()
}

/// Returns the coverage of each module from the recorder's final note, together with the sources of
/// names that `symbols` knows.
fn coverage(
    recording: &Recording,
    symbols: &Symbolizer,
) -> Result<Vec<Coverage>, serde_json::Error> {
    let mut all: Vec<Coverage> = match note(recording, "coverage") {
        // The recorder died before it made this note.
        "" => Vec::new(),
        noted => serde_json::from_str(noted)?,
    };
    for one in &mut all {
        let mut sources = symbols.sources();
        let source = sources.find(|source| source.path.rsplit('/').next() == Some(&one.module));
        one.symbols = source.map(|source| source_text(source.source));
    }
    Ok(all)
}

/// Returns a word for the source of names.
pub fn source_text(source: Source) -> &'static str {
    match source {
        Source::DebugInfo => "debug info",
        Source::Symbols => "symbols",
        Source::DynamicSymbols => "dynamic symbols",
        Source::Nothing => "nothing",
    }
}
