//! From ledger, region and symbols to a report.

use crate::attach::View;
use crate::consumer::Consumer;
use crate::counts::Counts;
use crate::coverage::Coverages;
use crate::frames::{module_files, stack_frames, stack_of};
use crate::options::{GroupBy, SortBy};
use crate::rows::{Row, RowKey, Sums};
use crate::session::Session;
use crate::signals;
use memhook_ledger::Bounded;
use memhook_report::{
    AttachInfo, Group, Measured, ReleaseSite, ReportModel, Sampling, Site, StackFrame, Target,
    Totals,
};
use memhook_symbols::Symbolizer;
use std::{
    cmp::Reverse,
    collections::HashMap,
    path::PathBuf,
    time::{Duration, Instant},
};

/// Makes the reports of one attach, in steps that do not keep the caller from its rings: a walk over
/// the live blocks, then names as they come.
pub struct Reporter {
    pid: i32,
    view: View,
    depth: u32,
    symbols: Symbolizer,
    coverages: Coverages,
    /// Each row's bytes at the report before.
    last: HashMap<RowKey, f64>,
    last_live_bytes: u64,
    last_elapsed: Option<Duration>,
    draft: Option<Draft>,
}

/// A report that waits for names.
struct Draft {
    sums: Sums,
    /// Sorted and cut to what is shown; before, the names that make rows are waited for.
    rows: Option<Vec<Row>>,
    more_rows: u64,
    /// Stack id, blocks, bytes.
    releases: Vec<(u32, u64, u64)>,
    totals: Totals,
    recorded_allocations: u64,
    sample_bytes: Option<u64>,
    bounded: Option<Bounded>,
    elapsed: Duration,
    is_final: bool,
}

impl Reporter {
    /// A reporter that has reported nothing yet.
    pub fn new(pid: i32, view: View, depth: u32) -> Self {
        let roots = vec![format!("/proc/{pid}/root").into(), PathBuf::from("/")];
        Reporter {
            pid,
            view,
            depth,
            symbols: Symbolizer::new(roots),
            coverages: Coverages::default(),
            last: HashMap::new(),
            last_live_bytes: 0,
            last_elapsed: None,
            draft: None,
        }
    }

    /// Takes the numbers of this moment for a report; one that is not finished is given up.
    ///
    /// What is needed of the ledger is taken at once: the rings wait for that, not for names.
    pub fn begin(&mut self, session: &Session, consumer: &Consumer, is_final: bool) {
        let elapsed = consumer.elapsed();
        let older = self.view.older;
        let before = older.map(|age| elapsed.saturating_sub(age).as_nanos() as u64);
        let state = consumer.lock();
        let sums = Sums::collect(self.view.by, &state.ledger, &state.counts, before);
        let mut releases = state.ledger.release_sites();
        let ledger_totals = state.ledger.totals();
        let counts = state.counts;
        let bounded = state.ledger.bounded();
        drop(state);
        // Of what came after the bound was reached it is not known.
        let peak = match bounded {
            Some(bounded) if bounded.is_thinned => 0,
            _ if counts.is_sampled() => 0,
            _ => ledger_totals.peak_live_bytes,
        };
        self.symbols.set_modules(module_files(session));
        self.coverages.request(&session.modules);
        self.symbols.request(sums.addresses(session));
        releases.retain(|&(stack, _, _)| stack != 0);
        releases.sort_by_key(|&(stack, _, bytes)| (Reverse(bytes), stack));
        releases.truncate(self.view.top);
        self.draft = Some(Draft {
            sums,
            rows: None,
            more_rows: 0,
            releases,
            totals: Totals {
                peak_live_bytes: peak,
                ..totals(session, &ledger_totals, &counts)
            },
            recorded_allocations: ledger_totals.allocations,
            sample_bytes: counts.sample_bytes,
            bounded,
            elapsed,
            is_final,
        });
    }

    /// The report that was begun, if its names are there within `wait`.
    pub fn poll(&mut self, session: &Session, wait: Duration) -> Option<ReportModel> {
        let deadline = Instant::now() + wait;
        let left = || deadline.saturating_duration_since(Instant::now());
        let mut draft = self.draft.take()?;
        if draft.rows.is_none() && self.symbols.is_ready(left()) {
            self.make_rows(&mut draft, session);
        }
        let is_final = draft.is_final;
        // The scan of the code is waited for only at the end.
        let ready = draft.rows.is_some()
            && self.symbols.is_ready(left())
            && (self.coverages.is_ready(Duration::ZERO)
                || !is_final
                || self.coverages.is_ready(left()));
        if ready {
            return Some(self.finish(draft, session));
        }
        self.draft = Some(draft);
        None
    }

    /// The report that was begun with the names that are there.
    pub fn give_up_names(&mut self, session: &Session) -> Option<ReportModel> {
        let mut draft = self.draft.take()?;
        if draft.rows.is_none() {
            self.make_rows(&mut draft, session);
        }
        Some(self.finish(draft, session))
    }

    /// Has the names of these backtraces looked up, and waits for them until whoever traces gives up.
    pub fn look_up(&mut self, session: &Session, stacks: impl Iterator<Item = u32>) {
        self.symbols.set_modules(module_files(session));
        let addresses = stacks.flat_map(|id| session.stack(id).map_or(Vec::new(), |s| s.1));
        self.symbols.request(addresses);
        while !self.symbols.is_ready(Duration::from_millis(50)) && signals::stops() < 2 {}
    }

    /// Kind of a backtrace, whether it was cut short, and its frames with the names that are there.
    pub fn stack(&self, session: &Session, id: u32) -> (String, bool, Vec<StackFrame>) {
        let truncated = session.region().stack(id).is_some_and(|s| s.truncated);
        let (kind, stack) = stack_of(session, &self.symbols, id);
        (kind, truncated, stack)
    }

    fn growth(&self, row: &Row) -> f64 {
        row.bytes - self.last.get(&row.key).copied().unwrap_or(0.0)
    }

    fn make_rows(&mut self, draft: &mut Draft, session: &Session) {
        let mut rows = draft.sums.rows(session, &self.symbols);
        let t = &mut draft.totals;
        // Frames and functions repeat a block; every other view has each block once.
        let once = !matches!(self.view.by, GroupBy::Frame | GroupBy::Function);
        if draft.sample_bytes.is_some() && once {
            t.live_bytes = rows.iter().map(|r| r.bytes).sum::<f64>().round() as u64;
            t.live_blocks = rows.iter().map(|r| r.blocks).sum::<f64>().round() as u64;
            t.released_bytes = t.allocated_bytes.saturating_sub(t.live_bytes);
            t.releases = t.allocations.saturating_sub(t.live_blocks);
        }
        t.live_growth_bytes = t.live_bytes as i64 - self.last_live_bytes as i64;
        self.last_live_bytes = t.live_bytes;
        let largest = |x: f64| Reverse(x.round() as i64);
        match self.view.sort {
            SortBy::Bytes => rows.sort_by_cached_key(|r| {
                (
                    largest(r.bytes),
                    largest(r.self_bytes),
                    Reverse(r.released_bytes),
                    r.key.clone(),
                )
            }),
            SortBy::Count => rows.sort_by_cached_key(|r| (largest(r.blocks), r.key.clone())),
            SortBy::Age => rows.sort_by_cached_key(|r| (r.oldest_ns, r.key.clone())),
            SortBy::Growth => rows.sort_by_cached_key(|r| (largest(self.growth(r)), r.key.clone())),
        }
        draft.more_rows = rows.len().saturating_sub(self.view.top) as u64;
        let now: HashMap<RowKey, f64> = rows.iter().map(|r| (r.key.clone(), r.bytes)).collect();
        rows.truncate(self.view.top);
        let of_rows = rows.iter().flat_map(|row| match row.key {
            RowKey::Stack(id) => session.stack(id).map_or(Vec::new(), |(_, frames)| frames),
            RowKey::Frame(address) => vec![address],
            _ => Vec::new(),
        });
        let releases = draft.releases.iter();
        let of_releases = releases.flat_map(|r| session.stack(r.0).map_or(Vec::new(), |s| s.1));
        self.symbols.request(of_rows.chain(of_releases));
        for row in &mut rows {
            row.growth_bytes = self.growth(row);
        }
        self.last = now;
        draft.rows = Some(rows);
    }

    fn finish(&mut self, draft: Draft, session: &Session) -> ReportModel {
        let symbols = &self.symbols;
        let now_ms = draft.elapsed.as_millis() as u64;
        let age = |row: &Row| now_ms.saturating_sub(row.oldest_ns / 1_000_000);
        let (mut sites, mut groups) = (Vec::new(), Vec::new());
        for row in draft.rows.unwrap_or_default() {
            if let RowKey::Stack(stack) = row.key {
                let truncated = session.region().stack(stack).is_some_and(|s| s.truncated);
                let (kind, stack) = stack_of(session, symbols, stack);
                sites.push(Site {
                    truncated,
                    bytes: row.bytes.round() as u64,
                    blocks: row.blocks.round() as u64,
                    error_bytes: row.error_bytes(),
                    growth_bytes: row.growth_bytes.round() as i64,
                    oldest_ms: age(&row),
                    kind,
                    stack,
                });
                continue;
            }
            groups.push(Group {
                name: row.key.name(),
                frame: match row.key {
                    RowKey::Frame(address) => stack_frames(symbols, address).pop(),
                    _ => None,
                },
                bytes: row.bytes.round() as u64,
                self_bytes: row.self_bytes.round() as u64,
                blocks: row.blocks.round() as u64,
                error_bytes: row.error_bytes(),
                growth_bytes: row.growth_bytes.round() as i64,
                oldest_ms: if row.blocks > 0.0 { age(&row) } else { 0 },
                released_bytes: row.released_bytes,
                released_blocks: row.released_blocks,
            });
        }
        let release = |&(stack, blocks, bytes): &(u32, u64, u64)| {
            let (kind, stack) = stack_of(session, symbols, stack);
            ReleaseSite {
                bytes,
                blocks,
                error_bytes: None,
                kind,
                stack,
            }
        };
        let (slots, modules) = session.patched();
        let executable = session.modules.first();
        ReportModel {
            schema: "memhook-rs/report/1",
            is_final: draft.is_final,
            by: self.view.by.name(),
            target: Target {
                pid: self.pid,
                name: crate::attach::name_of(self.pid),
                exe: executable.map(|m| m.path.clone()).unwrap_or_default(),
            },
            attach: AttachInfo {
                attach_ms: session.attach_time.as_secs_f64() * 1e3,
                held_ms: session.held_time.as_secs_f64() * 1e3,
                idle_held_ms: session.idle_held_time.as_secs_f64() * 1e3,
                slots,
                modules,
                depth: self.depth,
            },
            from_s: 0.0,
            elapsed_s: draft.elapsed.as_secs_f64(),
            since_last_s: self
                .last_elapsed
                .replace(draft.elapsed)
                .map(|last| draft.elapsed.saturating_sub(last).as_secs_f64()),
            sampling: draft.sample_bytes.map(|mean_bytes| Sampling {
                mean_bytes,
                recorded_allocations: draft.recorded_allocations,
                ..Sampling::default()
            }),
            bounded: draft.bounded.map(|b| described(&b, &draft.totals)),
            totals: draft.totals,
            measured: Measured {
                measure: "live",
                bytes: draft.totals.live_bytes,
                blocks: draft.totals.live_blocks,
                error_bytes: None,
            },
            coverage: self.coverages.of(session, symbols),
            sites,
            groups,
            releases: draft.releases.iter().map(release).collect(),
            more_rows: draft.more_rows,
            leaks: None,
        }
    }
}

/// What the ledger no longer knows, for a report with these totals.
pub fn described(bounded: &Bounded, totals: &Totals) -> memhook_report::Bounded {
    memhook_report::Bounded {
        max_memory_bytes: bounded.max_bytes,
        since_s: bounded.since_ns as f64 / 1e9,
        live_blocks_then: bounded.live_blocks_then,
        kept_blocks: bounded.kept_blocks,
        live_blocks: totals.live_blocks,
        live_is_estimated: bounded.is_thinned,
        all_from_bytes: bounded.all_from_bytes,
        one_address_in: bounded.one_address_in,
        unattributed_allocations: bounded.unattributed_allocations,
        unknown_releases_are_counted: !bounded.ignores_unknown_releases,
    }
}

fn totals(session: &Session, t: &memhook_ledger::Totals, counts: &Counts) -> Totals {
    let mut totals = exact_totals(t, &session.region().losses());
    if counts.is_sampled() {
        totals.allocations = counts.allocations.round() as u64;
        totals.allocated_bytes = counts.bytes.round() as u64;
    }
    totals
}

/// The sums of a ledger, and what was lost besides.
pub fn exact_totals(t: &memhook_ledger::Totals, losses: &memhook_stream::Losses) -> Totals {
    Totals {
        allocations: t.allocations,
        releases: t.releases,
        allocated_bytes: t.allocated_bytes,
        released_bytes: t.released_bytes,
        live_bytes: t.live_bytes,
        live_blocks: t.live_blocks,
        live_growth_bytes: 0,
        peak_live_bytes: t.peak_live_bytes,
        unknown_releases: t.unknown_releases,
        unhooked_releases: t.unhooked_releases,
        lost_events: losses.dropped + losses.ringless,
        truncated_stacks: losses.truncated + losses.stacks_dropped,
        reentrant_calls: losses.reentrant,
    }
}
