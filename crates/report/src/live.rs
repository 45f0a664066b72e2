//! Reports of a trace under way, in steps that do not keep the caller from its rings: a walk over the live
//! blocks, then names as they come.

mod numbers;

pub use numbers::LiveNumbers;

use crate::gaps;
use crate::named_run::{Backtraces, NamedRun, frames_at, is_cut};
use crate::rows::{self, Part, Row, RowKey, RowsBy, SortBy};
use crate::{
    Amount, AttachInfo, CallStacks, Coverage, FoldedGroups, LiveBounds, Mark, Measured, Overhead,
    ReleaseSite, ReportModel, ReportTotals, Sampling, StackFrame, Target,
};
use memhook_ledger::{Bounded, Estimate};
use memhook_stream::{Gap, Losses};
use memhook_symbols::{ModuleFile, Symbolizer};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::time::{Duration, Instant};

/// A traced process, as its reports see it.
pub trait TracedRun: Backtraces {
    /// The modules that addresses may be in, those that are gone too.
    fn module_files(&self) -> Vec<ModuleFile>;
    /// The name of a live thread, or an empty string.
    fn thread_name(&self, tid: u32) -> String;
    /// The marks that were set so far, in order.
    fn marks(&self) -> Vec<Mark>;
    /// What the hook could not record.
    fn losses(&self) -> Losses;
    /// The process.
    fn target(&self) -> Target;
    /// How the attach went.
    fn attach(&self) -> AttachInfo;
    /// Has new modules examined for what is seen of them.
    fn request_coverage(&mut self);
    /// Whether all of them have been examined, after at most `wait`.
    fn is_coverage_ready(&mut self, wait: Duration) -> bool;
    /// What is seen of each module.
    fn coverage(&self, symbols: &Symbolizer) -> Vec<Coverage>;
}

/// What reports show.
#[derive(Clone, Copy, Debug)]
pub struct LiveView {
    /// What the rows are; lifetimes are known of recordings only.
    pub by: RowsBy,
    /// Their order.
    pub sort: SortBy,
    /// How many are shown.
    pub top: usize,
    /// Only blocks at least this old count.
    pub older: Option<Duration>,
}

/// A report that waits for names.
#[derive(Clone)]
struct Draft {
    parts: Vec<Part>,
    /// Sorted and cut to what is shown. Before that, waits for the names that decide the rows.
    rows: Option<Vec<Row>>,
    more_rows: u64,
    /// Rows for text, if some of them are one there, and how many more there are.
    folded: Option<(Vec<Row>, u64)>,
    releases: Vec<(u32, u64, u64)>,
    call_stacks: Option<CallStacks>,
    totals: ReportTotals,
    sampling: Option<Sampling>,
    overhead: Option<Overhead>,
    /// All that was allocated.
    allocated: Estimate,
    bounded: Option<Bounded>,
    gaps: Vec<Gap>,
    unseen: Estimate,
    elapsed: Duration,
    is_final: bool,
}

/// A report that waits for names while another one is made.
pub struct SetAside(Draft);

/// Makes the reports of one attach.
pub struct LiveReporter {
    view: LiveView,
    symbols: Symbolizer,
    /// Each row's bytes in the report before.
    last: FxHashMap<RowKey, f64>,
    last_live_bytes: u64,
    last_elapsed: Option<Duration>,
    draft: Option<Draft>,
}

/// A run with the names that have come.
struct NamedTrace<'a> {
    run: &'a dyn TracedRun,
    symbols: &'a Symbolizer,
}

impl NamedRun for NamedTrace<'_> {
    fn addresses(&self, stack: u32) -> Vec<u64> {
        let backtrace = self.run.backtrace(stack);
        backtrace.unwrap_or_default().addresses
    }

    fn frames_at(&self, address: u64) -> Vec<StackFrame> {
        frames_at(self.symbols, address)
    }

    fn thread_name(&self, tid: u32) -> String {
        self.run.thread_name(tid)
    }

    fn call(&self, stack: u32) -> (String, bool) {
        let backtrace = self.run.backtrace(stack);
        let kind = backtrace.as_ref().and_then(|b| self.run.kind(b));
        let truncated = backtrace.as_ref().is_some_and(|b| b.truncated);
        (kind.unwrap_or_else(|| "unknown".to_owned()), truncated)
    }

    fn is_cut(&self, stack: u32) -> bool {
        let backtrace = self.run.backtrace(stack).unwrap_or_default();
        let depth = self.run.attach().depth;
        is_cut(backtrace.addresses.len(), backtrace.truncated, depth)
    }
}

/// The call stacks of parts that are of call stacks.
fn call_stacks(parts: &[Part], run: &dyn TracedRun) -> CallStacks {
    let depth = run.attach().depth;
    let live = parts.iter().filter(|part| part.amount.blocks > 0.0);
    let backtraces = live.filter_map(|part| run.backtrace(part.number as u32));
    let mut counted = CallStacks::default();
    for backtrace in backtraces {
        let is_cut = is_cut(backtrace.addresses.len(), backtrace.truncated, depth);
        counted.add(is_cut, is_cut && backtrace.truncated);
    }
    counted
}

impl LiveReporter {
    /// A reporter that has reported nothing yet. `symbols` finds the names of the target.
    pub fn new(view: LiveView, symbols: Symbolizer) -> LiveReporter {
        LiveReporter {
            view,
            symbols,
            last: FxHashMap::default(),
            last_live_bytes: 0,
            last_elapsed: None,
            draft: None,
        }
    }

    /// Begins to take what a report needs of the ledger.
    /// `gaps`: the times until now in which nothing was seen.
    pub fn numbers(&self, elapsed: Duration, gaps: Vec<Gap>) -> LiveNumbers {
        let before = |older| elapsed.saturating_sub(older).as_nanos() as u64;
        LiveNumbers::new(self.view.by, self.view.older.map(before), elapsed, gaps)
    }

    /// Begins a report; one that is not finished is given up.
    pub fn begin(&mut self, run: &mut dyn TracedRun, mut numbers: LiveNumbers, is_final: bool) {
        let parts = numbers.parts();
        self.symbols.set_modules(run.module_files());
        run.request_coverage();
        let named = NamedTrace {
            run,
            symbols: &self.symbols,
        };
        let deciding = rows::deciding_addresses(self.view.by, &parts, &named);
        self.symbols.request(deciding);
        let mut releases = numbers.releases;
        releases.retain(|&(stack, _, _)| stack != 0);
        releases.sort_by_key(|&(stack, _, bytes)| (Reverse(bytes), stack));
        releases.truncate(self.view.top);
        let recorded = numbers.totals.allocations;
        let samples = numbers.allocations;
        let all = samples.all(recorded, numbers.totals.allocated_bytes);
        let sampling = samples.sample_bytes().map(|mean_bytes| Sampling {
            mean_bytes,
            recorded_allocations: samples.samples(),
            exact_allocations: (!samples.always)
                .then(|| recorded.saturating_sub(samples.samples())),
            exact_s: samples
                .exact_until_ns
                .filter(|_| numbers.overhead.is_none())
                .map(|until| until as f64 / 1e9),
            allocated_error_bytes: all.error_bytes(),
            ..Sampling::default()
        });
        let mut totals = ReportTotals::exact(&numbers.totals, &run.losses());
        if sampling.is_some() {
            totals.allocations = all.blocks.round() as u64;
            totals.allocated_bytes = all.bytes.round() as u64;
            totals.peak_live_bytes = 0;
        }
        if numbers.bounded.is_some_and(|bounded| bounded.is_thinned) {
            // What the peak was after the bound was reached is not known.
            totals.peak_live_bytes = 0;
        }
        self.draft = Some(Draft {
            call_stacks: self
                .view
                .by
                .is_of_stacks()
                .then(|| call_stacks(&parts, run)),
            parts,
            rows: None,
            more_rows: 0,
            folded: None,
            releases,
            totals,
            sampling,
            overhead: numbers.overhead,
            allocated: all,
            bounded: numbers.bounded,
            gaps: numbers.gaps,
            unseen: numbers.unseen,
            elapsed: numbers.elapsed,
            is_final,
        });
    }

    /// The report that was begun, if its names are there within `wait`.
    pub fn poll(&mut self, run: &mut dyn TracedRun, wait: Duration) -> Option<ReportModel> {
        let deadline = Instant::now() + wait;
        let left = || deadline.saturating_duration_since(Instant::now());
        let mut draft = self.draft.take()?;
        if draft.rows.is_none() && self.symbols.is_ready(left()) {
            self.make_rows(&mut draft, run);
        }
        // Only the last report waits for the coverage.
        let patience = |is_final| if is_final { left() } else { Duration::ZERO };
        let is_ready = draft.rows.is_some()
            && self.symbols.is_ready(left())
            && (run.is_coverage_ready(patience(draft.is_final)) || !draft.is_final);
        if is_ready {
            return Some(self.finish(draft, run));
        }
        self.draft = Some(draft);
        None
    }

    /// The report that was begun, with the names that are there.
    pub fn give_up_names(&mut self, run: &mut dyn TracedRun) -> Option<ReportModel> {
        let mut draft = self.draft.take()?;
        if draft.rows.is_none() {
            self.make_rows(&mut draft, run);
        }
        Some(self.finish(draft, run))
    }

    /// The report that was begun, with the names that are there; it goes on to wait for the others.
    pub fn so_far(&mut self, run: &mut dyn TracedRun) -> Option<ReportModel> {
        let draft = self.draft.clone()?;
        // The whole report says the same of what has changed since the one before.
        let before = (self.last.clone(), self.last_live_bytes, self.last_elapsed);
        let report = self.give_up_names(run);
        (self.last, self.last_live_bytes, self.last_elapsed) = before;
        self.draft = Some(draft);
        report
    }

    /// Suspends the report that was begun while others are made.
    pub fn set_aside(&mut self) -> Option<SetAside> {
        self.draft.take().map(SetAside)
    }

    /// Goes on with a report that waited. One that is not finished is given up.
    pub fn take_up(&mut self, SetAside(draft): SetAside) {
        self.draft = Some(draft);
    }

    /// Looks up the names of these backtraces, and waits for them until `is_given_up`.
    pub fn look_up(
        &mut self,
        run: &dyn TracedRun,
        stacks: impl Iterator<Item = u32>,
        is_given_up: impl Fn() -> bool,
    ) {
        self.symbols.set_modules(run.module_files());
        let backtraces = stacks.filter_map(|id| run.backtrace(id));
        self.symbols.request(backtraces.flat_map(|b| b.addresses));
        while !self.symbols.is_ready(Duration::from_millis(50)) && !is_given_up() {}
    }

    /// Kind of a backtrace, whether it was cut short, and its frames with the names that are there.
    pub fn stack(&self, run: &dyn TracedRun, id: u32) -> (String, bool, Vec<StackFrame>) {
        let named = NamedTrace {
            run,
            symbols: &self.symbols,
        };
        let (kind, truncated) = named.call(id);
        (kind, truncated, named.stack(id))
    }

    fn make_rows(&mut self, draft: &mut Draft, run: &dyn TracedRun) {
        let named = NamedTrace {
            run,
            symbols: &self.symbols,
        };
        let mut all = rows::rows(self.view.by, &draft.parts, &named);
        let t = &mut draft.totals;
        if let Some(sampling) = &mut draft.sampling
            && !self.view.by.repeats_blocks()
        {
            let live: Estimate = all.iter().map(|row| row.amount).sum();
            t.live_bytes = live.bytes.round() as u64;
            t.live_blocks = live.blocks.round() as u64;
            t.released_bytes = t.allocated_bytes.saturating_sub(t.live_bytes);
            t.releases = t.allocations.saturating_sub(t.live_blocks);
            // Where nothing lives there is no row that says what was not hit.
            let live = Estimate {
                unhit: draft.allocated.unhit,
                ..live
            };
            sampling.live_error_bytes = live.error_bytes();
            // Every block is chosen for itself, so the variances of what lives and what was released add up.
            let mut released = draft.allocated;
            released -= live;
            sampling.released_error_bytes = released.error_bytes();
        }
        t.live_growth_bytes = t.live_bytes as i64 - self.last_live_bytes as i64;
        self.last_live_bytes = t.live_bytes;
        for row in &mut all {
            let before = self.last.get(&row.key).copied().unwrap_or(0.0);
            row.growth_bytes = row.amount.bytes - before;
        }
        self.last = all
            .iter()
            .map(|row| (row.key.clone(), row.amount.bytes))
            .collect();
        if let Some(mut folded) = rows::with_ended_as_one(self.view.by, &all) {
            rows::sort(&mut folded, self.view.sort);
            let more_rows = folded.len().saturating_sub(self.view.top) as u64;
            folded.truncate(self.view.top);
            draft.folded = Some((folded, more_rows));
        }
        rows::sort(&mut all, self.view.sort);
        draft.more_rows = all.len().saturating_sub(self.view.top) as u64;
        all.truncate(self.view.top);
        let of_rows = all.iter().flat_map(|row| match self.view.by {
            RowsBy::Site => named.addresses(row.key.number as u32),
            RowsBy::Frame => vec![row.key.number],
            _ => Vec::new(),
        });
        let of_releases = draft.releases.iter().flat_map(|r| named.addresses(r.0));
        let shown: Vec<u64> = of_rows.chain(of_releases).collect();
        self.symbols.request(shown);
        draft.rows = Some(all);
    }

    fn finish(&mut self, draft: Draft, run: &dyn TracedRun) -> ReportModel {
        let named = NamedTrace {
            run,
            symbols: &self.symbols,
        };
        let now_ns = draft.elapsed.as_nanos() as u64;
        let shown = draft.rows.unwrap_or_default();
        let (sites, groups) = rows::shown(self.view.by, shown, now_ns, &named);
        let folded = draft.folded.map(|(rows, more_rows)| FoldedGroups {
            groups: rows::shown(self.view.by, rows, now_ns, &named).1,
            more_rows,
        });
        let release = |&(stack, blocks, bytes): &(u32, u64, u64)| ReleaseSite {
            bytes,
            blocks,
            error_bytes: None,
            heap: None,
            kind: named.call(stack).0,
            stack: named.stack(stack),
        };
        let last_elapsed = self.last_elapsed.replace(draft.elapsed);
        ReportModel {
            schema: ReportModel::SCHEMA,
            is_final: draft.is_final,
            by: self.view.by.name(),
            target: run.target(),
            attach: run.attach(),
            elapsed_s: draft.elapsed.as_secs_f64(),
            live_bounds: (!draft.gaps.is_empty()).then(|| {
                let live = Amount {
                    blocks: draft.totals.live_blocks,
                    bytes: draft.totals.live_bytes,
                    ..Amount::default()
                };
                LiveBounds::new(live, draft.unseen.into())
            }),
            gaps: gaps::until(&draft.gaps, now_ns),
            marks: run.marks(),
            since_last_s: last_elapsed.map(|last| draft.elapsed.saturating_sub(last).as_secs_f64()),
            sampling: draft.sampling,
            bounded: draft
                .bounded
                .map(|b| described(&b, draft.totals.live_blocks)),
            totals: draft.totals,
            call_stacks: draft.call_stacks,
            measured: Measured {
                measure: "live",
                bytes: draft.totals.live_bytes,
                blocks: draft.totals.live_blocks,
                error_bytes: draft
                    .sampling
                    .and_then(|sampling| sampling.live_error_bytes),
            },
            coverage: run.coverage(&self.symbols),
            sites,
            groups,
            folded,
            releases: draft.releases.iter().map(release).collect(),
            more_rows: draft.more_rows,
            overhead: draft.overhead,
            ..ReportModel::default()
        }
    }
}

/// What a ledger that reached its bound no longer knows, for a report with this many live blocks.
pub fn described(bounded: &Bounded, live_blocks: u64) -> crate::Bounded {
    crate::Bounded {
        max_memory_bytes: bounded.max_bytes,
        since_s: bounded.since_ns as f64 / 1e9,
        live_blocks_then: bounded.live_blocks_then,
        kept_blocks: bounded.kept_blocks,
        live_blocks,
        live_is_estimated: bounded.is_thinned,
        all_from_bytes: bounded.all_from_bytes,
        one_address_in: bounded.one_address_in,
        unattributed_allocations: bounded.unattributed_allocations,
        unknown_releases_are_counted: !bounded.ignores_unknown_releases,
    }
}
