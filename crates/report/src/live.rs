//! Reports of a running trace, in steps short enough that the caller can keep emptying its rings:
//! first a walk over the live blocks, then names as they arrive.

mod numbers;

pub use numbers::LiveNumbers;

use crate::gaps;
use crate::named_run::{Backtrace, Backtraces, NamedRun, frames_at, is_cut, may_be_cut};
use crate::rows::{self, Part, RowKey, RowsBy, SortBy};
use crate::seen::Seen;
use crate::{
    Amount, AttachInfo, CallStacks, Coverage, LiveBounds, Mark, Measured, ReportModel,
    ReportTotals, Sampling, StackFrame, Target,
};
use memhook_ledger::{Bounded, Estimate};
use memhook_stream::{Gap, Losses};
use memhook_symbols::{ModuleFile, Symbolizer};
use rustc_hash::FxHashMap;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// A traced process, as its reports see it.
pub trait TracedRun: Backtraces {
    /// Returns the modules that may contain addresses, including unloaded modules.
    fn module_files(&self) -> Vec<ModuleFile>;
    /// Returns the name of a live thread, or an empty string.
    fn thread_name(&self, tid: u32) -> String;
    /// Returns the marks set so far, in order.
    fn marks(&self) -> Vec<Mark>;
    /// Returns counts of the events that the hook could not record.
    fn losses(&self) -> Losses;
    /// Returns facts about the process.
    fn target(&self) -> Target;
    /// Returns facts about the attach.
    fn attach(&self) -> AttachInfo;
    /// Requests a check of how well new modules are covered.
    fn request_coverage(&mut self);
    /// Returns true if all new modules have been examined, after waiting at most `wait`.
    fn is_coverage_ready(&mut self, wait: Duration) -> bool;
    /// Returns the coverage of each module.
    fn coverage(&self, symbols: &Symbolizer) -> Vec<Coverage>;
}

/// Settings of live reports.
#[derive(Clone, Copy, Debug)]
pub struct LiveView {
    /// Kind of the rows. Lifetimes are available only for recordings.
    pub by: RowsBy,
    /// Order of the rows.
    pub sort: SortBy,
    /// Number of rows shown.
    pub top: usize,
    /// Minimum age of the blocks that count.
    pub older: Option<Duration>,
}

/// A report that waits for names while another report is made.
pub struct SetAside(Seen);

/// Makes the reports of one attach.
pub struct LiveReporter {
    view: LiveView,
    symbols: Symbolizer,
    before: Before,
    /// The current report. It has no rows while it waits for the names that determine them.
    begun: Option<Seen>,
}

/// Numbers of the previous report.
#[derive(Clone, Default)]
struct Before {
    /// Bytes of each row in the previous report.
    rows: FxHashMap<RowKey, f64>,
    live_bytes: u64,
    /// Time of that report in nanoseconds since the attach.
    now_ns: Option<u64>,
}

/// A run with the names that have arrived.
struct NamedTrace<'a>(&'a dyn TracedRun, &'a Symbolizer);

impl NamedRun for NamedTrace<'_> {
    fn addresses(&self, stack: u32) -> Vec<u64> {
        let backtrace = self.0.backtrace(stack);
        backtrace.unwrap_or_default().addresses
    }

    fn frames_at(&self, address: u64) -> Vec<StackFrame> {
        frames_at(self.1, address)
    }

    fn thread_name(&self, tid: u32) -> String {
        self.0.thread_name(tid)
    }

    fn call(&self, stack: u32) -> (String, bool) {
        let backtrace = self.0.backtrace(stack);
        let kind = backtrace.as_ref().and_then(|b| self.0.kind(b));
        let is_truncated =
            |b: &Backtrace| b.truncated && (b.addresses.is_empty() || self.is_cut_short(b));
        let truncated = backtrace.as_ref().is_some_and(is_truncated);
        (kind.unwrap_or_else(|| "unknown".to_owned()), truncated)
    }

    fn is_cut(&self, stack: u32) -> bool {
        let backtrace = self.0.backtrace(stack).unwrap_or_default();
        self.is_cut_short(&backtrace)
    }
}

impl NamedTrace<'_> {
    fn is_cut_short(&self, backtrace: &Backtrace) -> bool {
        let depth = self.0.attach().depth;
        let found = backtrace.addresses.len();
        let last = last_of(backtrace).iter();
        let last: Vec<StackFrame> = last.flat_map(|&a| self.frames_at(a)).collect();
        is_cut(found, backtrace.truncated, depth, &last)
    }

    /// Counts the call stacks of the parts that have one.
    fn call_stacks(&self, parts: &[Part]) -> CallStacks {
        let mut counted = CallStacks::default();
        for backtrace in backtraces(parts, self.0) {
            let is_cut = self.is_cut_short(&backtrace);
            counted.add(is_cut, is_cut && backtrace.truncated);
        }
        counted
    }
}

/// Iterates over the backtraces of live parts that have call stacks.
fn backtraces(parts: &[Part], run: &dyn TracedRun) -> impl Iterator<Item = Backtrace> {
    let live = parts.iter().filter(|part| part.1.amount.blocks > 0.0);
    live.filter_map(|part| run.backtrace(part.0 as u32))
}

/// Returns the outermost calls of a backtrace.
fn last_of(backtrace: &Backtrace) -> &[u64] {
    let all = &backtrace.addresses;
    &all[all.len().saturating_sub(2)..]
}

/// Returns the outermost calls of stacks that may be cut. The names of these calls determine whether the stacks are
/// cut.
fn last_addresses(parts: &[Part], run: &dyn TracedRun) -> HashSet<u64> {
    let depth = run.attach().depth;
    let unsure = backtraces(parts, run)
        .filter(|found| may_be_cut(found.addresses.len(), found.truncated, depth));
    unsure.flat_map(|found| last_of(&found).to_vec()).collect()
}

impl LiveReporter {
    /// Creates a reporter without a previous report. `symbols` finds the names of the target.
    pub fn new(view: LiveView, symbols: Symbolizer) -> LiveReporter {
        LiveReporter {
            view,
            symbols,
            before: Before::default(),
            begun: None,
        }
    }

    /// Starts taking a report's numbers from the ledger. `gaps` contains the times without events up to now.
    pub fn numbers(&self, elapsed: Duration, gaps: Vec<Gap>) -> LiveNumbers {
        let before = |older| elapsed.saturating_sub(older).as_nanos() as u64;
        LiveNumbers::new(self.view.by, self.view.older.map(before), elapsed, gaps)
    }

    /// Begins a report, and drops an unfinished one.
    pub fn begin(&mut self, run: &mut dyn TracedRun, mut numbers: LiveNumbers, is_final: bool) {
        let parts = numbers.parts();
        self.symbols.set_modules(run.module_files());
        run.request_coverage();
        let named = NamedTrace(run, &self.symbols);
        let deciding = rows::deciding_addresses(self.view.by, &parts, &named);
        self.symbols.request(deciding);
        if self.view.by.is_of_stacks() {
            self.symbols.request(last_addresses(&parts, run));
        }
        let recorded = numbers.totals.allocations;
        let samples = numbers.allocations;
        let all = samples.all(recorded, numbers.totals.allocated_bytes);
        let now_ns = numbers.elapsed.as_nanos() as u64;
        let mut totals = ReportTotals::exact(&numbers.totals, &run.losses());
        let sampling = samples.sample_bytes().map(|mean_bytes| {
            // If there are no live blocks, no part accounts for the bytes that the samples missed.
            let live = Estimate {
                unhit: all.unhit,
                ..parts.iter().map(|part| part.1.amount).sum()
            };
            // Each block is chosen independently, so the variances of live and released memory add up.
            let mut released = all;
            released -= live;
            totals.allocations = all.blocks.round() as u64;
            totals.allocated_bytes = all.bytes.round() as u64;
            totals.live_bytes = live.bytes.round() as u64;
            totals.live_blocks = live.blocks.round() as u64;
            totals.released_bytes = totals.allocated_bytes.saturating_sub(totals.live_bytes);
            totals.releases = totals.allocations.saturating_sub(totals.live_blocks);
            Sampling {
                mean_bytes,
                recorded_allocations: samples.samples(),
                exact_allocations: (!samples.always)
                    .then(|| recorded.saturating_sub(samples.samples())),
                exact_s: samples
                    .exact_until_ns
                    .filter(|_| numbers.overhead.is_none())
                    .map(|until| until as f64 / 1e9),
                live_error_bytes: live.error_bytes(),
                allocated_error_bytes: all.error_bytes(),
                released_error_bytes: released.error_bytes(),
                ..Sampling::default()
            }
        });
        if sampling.is_some() || numbers.bounded.is_some_and(|bounded| bounded.is_thinned) {
            // The peak is unknown if blocks were not recorded or the bound was reached.
            totals.peak_live_bytes = 0;
        }
        let live = Amount {
            blocks: totals.live_blocks,
            bytes: totals.live_bytes,
            ..Amount::default()
        };
        let by = self.view.by;
        self.begun = Some(Seen {
            by,
            releases: numbers.released(),
            now_ns,
            facts: ReportModel {
                is_final,
                gaps: gaps::until(&numbers.gaps, now_ns),
                live_bounds: (!numbers.gaps.is_empty())
                    .then(|| LiveBounds::new(live, numbers.unseen.into())),
                bounded: numbers.bounded.map(|b| described(&b, live.blocks)),
                measured: Measured {
                    measure: "live",
                    bytes: live.bytes,
                    blocks: live.blocks,
                    error_bytes: sampling.and_then(|sampling| sampling.live_error_bytes),
                },
                totals,
                sampling,
                allocator_time: numbers.allocator_time(),
                overhead: numbers.overhead,
                ..ReportModel::default()
            },
            parts,
            chosen: None,
        });
    }

    /// Returns the current report, if its names arrive within `wait`.
    pub fn poll(&mut self, run: &mut dyn TracedRun, wait: Duration) -> Option<ReportModel> {
        let deadline = Instant::now() + wait;
        let left = || deadline.saturating_duration_since(Instant::now());
        let mut seen = self.begun.take()?;
        if seen.chosen.is_none() && self.symbols.is_ready(left()) {
            self.choose_rows(&mut seen, run);
        }
        // Only the last report waits for the coverage.
        let is_final = seen.facts.is_final;
        let patience = || if is_final { left() } else { Duration::ZERO };
        let is_ready = seen.chosen.is_some()
            && self.symbols.is_ready(left())
            && (run.is_coverage_ready(patience()) || !is_final);
        if is_ready {
            return Some(self.finish(seen, run));
        }
        self.begun = Some(seen);
        None
    }

    /// Ends the wait for names. Returns the current report with the names that have arrived.
    pub fn give_up_names(&mut self, run: &mut dyn TracedRun) -> Option<ReportModel> {
        let mut seen = self.begun.take()?;
        if seen.chosen.is_none() {
            self.choose_rows(&mut seen, run);
        }
        Some(self.finish(seen, run))
    }

    /// Returns the current report with the names that have arrived, and keeps waiting for the other
    /// names.
    pub fn so_far(&mut self, run: &mut dyn TracedRun) -> Option<ReportModel> {
        let begun = self.begun.clone()?;
        // The complete report must be compared with the report before this one.
        let before = self.before.clone();
        let report = self.give_up_names(run);
        (self.before, self.begun) = (before, Some(begun));
        report
    }

    /// Suspends the current report while others are made.
    pub fn set_aside(&mut self) -> Option<SetAside> {
        self.begun.take().map(SetAside)
    }

    /// Resumes a report that was set aside, and drops an unfinished report.
    pub fn take_up(&mut self, SetAside(seen): SetAside) {
        self.begun = Some(seen);
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

    /// Returns the kind of a backtrace, whether it was cut short, and its frames with the names that have arrived.
    pub fn stack(&self, run: &dyn TracedRun, id: u32) -> (String, bool, Vec<StackFrame>) {
        let named = NamedTrace(run, &self.symbols);
        let (kind, truncated) = named.call(id);
        (kind, truncated, named.stack(id))
    }

    fn choose_rows(&mut self, seen: &mut Seen, run: &dyn TracedRun) {
        let named = NamedTrace(run, &self.symbols);
        seen.facts.call_stacks = (seen.by.is_of_stacks()).then(|| named.call_stacks(&seen.parts));
        let totals = &mut seen.facts.totals;
        let (live_bytes, before) = (totals.live_bytes, &mut self.before);
        totals.live_growth_bytes = live_bytes as i64 - before.live_bytes as i64;
        before.live_bytes = live_bytes;
        seen.choose(self.view.sort, self.view.top, &named, |all| {
            for row in all.iter_mut() {
                let before = before.rows.get(&row.key).copied().unwrap_or(0.0);
                row.sums.growth_bytes = row.sums.amount.bytes - before;
            }
            let bytes = all
                .iter()
                .map(|row| (row.key.clone(), row.sums.amount.bytes));
            before.rows = bytes.collect();
        });
        let rows = seen.chosen.iter().flat_map(|chosen| &chosen.rows.0);
        let of_rows = rows.flat_map(|row| match seen.by {
            RowsBy::Site => named.addresses(row.key.number as u32),
            RowsBy::Frame => vec![row.key.number],
            _ => Vec::new(),
        });
        let of_releases = seen.releases.iter().flat_map(|r| named.addresses(r.0));
        let shown: Vec<u64> = of_rows.chain(of_releases).collect();
        self.symbols.request(shown);
    }

    fn finish(&mut self, seen: Seen, run: &dyn TracedRun) -> ReportModel {
        let named = NamedTrace(run, &self.symbols);
        let now_ns = seen.now_ns;
        let before_ns = self.before.now_ns.replace(now_ns);
        ReportModel {
            target: run.target(),
            attach: run.attach(),
            marks: run.marks(),
            since_last_s: before_ns.map(|before| now_ns.saturating_sub(before) as f64 / 1e9),
            coverage: run.coverage(&self.symbols),
            ..seen.report(&named)
        }
    }
}

/// Describes what a ledger lost after it reached its bound, for a report with the given number of live blocks.
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
