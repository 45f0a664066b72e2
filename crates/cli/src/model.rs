//! From ledger, region and symbols to a report.

use crate::attach::View;
use crate::consumer::Consumer;
use crate::options::{GroupBy, SortBy};
use crate::rows::{Row, RowKey, rows, sum_up};
use crate::session::Session;
use memhook_abi::{HOOKED_FUNCTIONS, slot_state};
use memhook_report::{
    AttachInfo, Coverage, Group, ReleaseSite, ReportModel, Sampling, Site, StackFrame, Target,
    Totals,
};
use memhook_symbols::{ModuleFile, Symbolizer};
use std::{cmp::Reverse, collections::HashMap};

/// Sums over all allocations, weighted when they are samples.
#[derive(Clone, Copy)]
pub struct Counts {
    sample_bytes: Option<u64>,
    allocations: f64,
    bytes: f64,
}

impl Counts {
    /// Nothing counted; `sample_bytes`: mean bytes between samples.
    pub fn new(sample_bytes: Option<u64>) -> Counts {
        Counts {
            sample_bytes,
            allocations: 0.0,
            bytes: 0.0,
        }
    }

    /// How many allocations one recorded allocation of this size stands for: 1 / the probability
    /// that a Poisson process over the bytes hits it (Horvitz-Thompson).
    pub fn weight(&self, size: u64) -> f64 {
        match self.sample_bytes {
            None => 1.0,
            Some(mean) => 1.0 / -(-(size.max(1) as f64) / mean as f64).exp_m1(),
        }
    }

    /// Counts an event.
    #[inline]
    pub fn count_allocation(&mut self, size: u64) {
        if self.sample_bytes.is_some() {
            let weight = self.weight(size);
            self.allocations += weight;
            self.bytes += weight * size as f64;
        }
    }
}

/// Makes the reports of one attach.
pub struct Reporter {
    pid: i32,
    view: View,
    symbols: Symbolizer,
    /// Each row's bytes at the report before.
    last: HashMap<RowKey, f64>,
}

impl Reporter {
    /// A reporter that has reported nothing yet.
    pub fn new(pid: i32, view: View) -> Self {
        Reporter {
            pid,
            view,
            symbols: Symbolizer::default(),
            last: HashMap::new(),
        }
    }

    /// Builds a report.
    ///
    /// What is needed of the ledger is taken at once: the rings wait for that, not for the symbols.
    pub fn build(&mut self, session: &Session, consumer: &Consumer, is_final: bool) -> ReportModel {
        let elapsed = consumer.elapsed();
        let older = self.view.older;
        let before = older.map(|age| elapsed.saturating_sub(age).as_nanos() as u64);
        let state = consumer.lock();
        let sums = sum_up(self.view.by, &state.ledger, &state.counts, before);
        let releases = state.ledger.release_sites();
        let ledger_totals = state.ledger.totals();
        let counts = state.counts;
        drop(state);
        let pid = self.pid;
        let module_file = |m: &memhook_process::ModuleImage| ModuleFile {
            path: m.path.clone(),
            file: m.file.clone(),
            base: m.base,
            start: m.start,
            end: m.end,
        };
        let all_modules = session.modules.iter().chain(&session.gone);
        self.symbols
            .set_modules(all_modules.map(module_file).collect());
        let symbols = &mut self.symbols;
        let mut rows = rows(self.view.by, &sums, session, symbols);
        let growth = |row: &Row| row.bytes - self.last.get(&row.key).copied().unwrap_or(0.0);
        let largest = |x: f64| Reverse(x.round() as i64);
        match self.view.sort {
            SortBy::Bytes => rows.sort_by_key(|r| (largest(r.bytes), r.key.clone())),
            SortBy::Count => rows.sort_by_key(|r| (largest(r.blocks), r.key.clone())),
            SortBy::Age => rows.sort_by_key(|r| (r.oldest_ns, r.key.clone())),
            SortBy::Growth => rows.sort_by_key(|r| (largest(growth(r)), r.key.clone())),
        }
        let now_ms = elapsed.as_millis() as u64;
        let age = |row: &Row| now_ms.saturating_sub(row.oldest_ns / 1_000_000);
        let mut sites = Vec::new();
        let mut groups = Vec::new();
        for row in rows.iter().take(self.view.top) {
            if let RowKey::Stack(stack) = row.key {
                let (kind, stack) = stack_of(session, symbols, stack);
                sites.push(Site {
                    bytes: row.bytes.round() as u64,
                    blocks: row.blocks.round() as u64,
                    error_bytes: row.error_bytes(),
                    growth_bytes: growth(row).round() as i64,
                    oldest_ms: age(row),
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
                blocks: row.blocks.round() as u64,
                error_bytes: row.error_bytes(),
                growth_bytes: growth(row).round() as i64,
                oldest_ms: if row.blocks > 0.0 { age(row) } else { 0 },
                released_bytes: row.released_bytes,
                released_blocks: row.released_blocks,
            });
        }
        let releases = release_sites(session, symbols, releases, self.view.top);
        let more_rows = rows.len().saturating_sub(self.view.top) as u64;
        let live = (
            rows.iter().map(|r| r.bytes).sum::<f64>(),
            rows.iter().map(|r| r.blocks).sum::<f64>(),
        );
        self.last = rows.into_iter().map(|r| (r.key, r.bytes)).collect();
        let (slots, modules) = session.patched();
        ReportModel {
            schema: "memhook-rs/report/1",
            is_final,
            by: self.view.by.name(),
            target: Target {
                pid,
                exe: session
                    .modules
                    .first()
                    .map(|m| m.path.clone())
                    .unwrap_or_default(),
            },
            attach: AttachInfo {
                attach_ms: session.attach_time.as_secs_f64() * 1e3,
                held_ms: session.held_time.as_secs_f64() * 1e3,
                slots,
                modules,
            },
            elapsed_s: elapsed.as_secs_f64(),
            sampling: counts.sample_bytes.map(|mean_bytes| Sampling {
                mean_bytes,
                recorded_allocations: ledger_totals.allocations,
            }),
            totals: totals(session, &ledger_totals, &counts, live, self.view.by),
            coverage: coverage(session),
            sites,
            groups,
            releases,
            more_rows,
        }
    }
}

fn totals(
    session: &Session,
    t: &memhook_ledger::Totals,
    counts: &Counts,
    live: (f64, f64),
    by: GroupBy,
) -> Totals {
    let losses = session.region().losses();
    let mut totals = Totals {
        allocations: t.allocations,
        releases: t.releases,
        allocated_bytes: t.allocated_bytes,
        released_bytes: t.released_bytes,
        live_bytes: t.live_bytes,
        live_blocks: t.live_blocks,
        peak_live_bytes: t.peak_live_bytes,
        unknown_releases: t.unknown_releases,
        unhooked_releases: t.unhooked_releases,
        lost_events: losses.dropped + losses.ringless,
        truncated_stacks: losses.truncated + losses.stacks_dropped,
        reentrant_calls: losses.reentrant,
    };
    if counts.sample_bytes.is_some() {
        totals.allocations = counts.allocations.round() as u64;
        totals.allocated_bytes = counts.bytes.round() as u64;
        // Frames repeat a block; every other view has each block once.
        if by != GroupBy::Frame {
            totals.live_bytes = live.0.round() as u64;
            totals.live_blocks = live.1.round() as u64;
            totals.released_bytes = totals.allocated_bytes.saturating_sub(totals.live_bytes);
            totals.releases = totals.allocations.saturating_sub(totals.live_blocks);
        }
        totals.peak_live_bytes = 0;
    }
    totals
}

fn coverage(session: &Session) -> Vec<Coverage> {
    let slots = session.region().slots();
    session
        .modules
        .iter()
        .filter_map(|m| {
            let of = |state| {
                slots
                    .iter()
                    .filter(|s| s.module_base == m.base && s.state == state)
                    .count() as u64
            };
            let hooked = of(slot_state::PATCHED) + of(slot_state::RESTORED);
            let refused = of(slot_state::REFUSED) + of(slot_state::CHANGED);
            let mut reasons: Vec<&str> = session
                .unhookable
                .iter()
                .filter(|(name, _)| name == m.name())
                .map(|(_, reason)| *reason)
                .collect();
            let unhookable = refused + reasons.len() as u64;
            if of(slot_state::REFUSED) > 0 {
                reasons.push("the page cannot be made writable");
            }
            if of(slot_state::CHANGED) > 0 {
                reasons.push("a slot holds another function than the loader put there");
            }
            (hooked + unhookable > 0).then(|| Coverage {
                module: m.name().to_owned(),
                hooked,
                unhookable,
                note: reasons.first().copied().unwrap_or("").to_owned(),
            })
        })
        .collect()
}

fn release_sites(
    session: &Session,
    symbols: &mut Symbolizer,
    mut found: Vec<(u32, u64, u64)>,
    top: usize,
) -> Vec<ReleaseSite> {
    found.retain(|&(stack, _, _)| stack != 0);
    found.sort_by_key(|&(stack, _, bytes)| (Reverse(bytes), stack));
    found
        .into_iter()
        .take(top)
        .map(|(stack, blocks, bytes)| {
            let (kind, stack) = stack_of(session, symbols, stack);
            ReleaseSite {
                bytes,
                blocks,
                kind,
                stack,
            }
        })
        .collect()
}

/// Kind and frames of an interned stack.
fn stack_of(session: &Session, symbols: &mut Symbolizer, id: u32) -> (String, Vec<StackFrame>) {
    let Some((function, frames)) = session.stack(id) else {
        return ("unknown".into(), Vec::new());
    };
    let kind = HOOKED_FUNCTIONS
        .get(usize::from(function))
        .map_or("unknown", |f| f.kind);
    let frames = frames.iter();
    (
        kind.to_owned(),
        frames.flat_map(|&a| stack_frames(symbols, a)).collect(),
    )
}

fn stack_frames(symbols: &mut Symbolizer, address: u64) -> Vec<StackFrame> {
    let location = symbols.resolve(address);
    let frame = |f: &memhook_symbols::Frame| StackFrame {
        address: format!("{address:#x}"),
        module: location.module.clone(),
        offset: location
            .module
            .as_ref()
            .map(|_| format!("{:#x}", location.svma)),
        function: f.function.clone(),
        file: f.file.clone(),
        line: f.line,
        inlined: f.inlined,
    };
    if location.frames.is_empty() {
        return vec![frame(&memhook_symbols::Frame::default())];
    }
    location.frames.iter().map(frame).collect()
}
