//! From ledger, region and symbols to a report.

use crate::session::Session;
use memhook_abi::{HOOKED_FUNCTIONS, slot_state};
use memhook_ledger::{Ledger, SiteLive};
use memhook_report::{AttachInfo, Coverage, ReportModel, Site, StackFrame, Target, Totals};
use memhook_symbols::{ModuleFile, Symbolizer};
use std::{cmp::Reverse, collections::HashMap, path::PathBuf, time::Duration};

/// What a report shows.
pub struct View {
    pub top: usize,
    pub sort: crate::attach::SortBy,
    pub older: Option<Duration>,
}

/// Makes the reports of one attach.
pub struct Reporter {
    pub pid: i32,
    pub view: View,
    symbols: Symbolizer,
    /// Each site's bytes at the report before.
    last: HashMap<u32, u64>,
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
}

/// Builds a report; the site sizes in the reporter are renewed.
pub fn build(
    reporter: &mut Reporter,
    session: &Session,
    ledger: &Ledger,
    elapsed: Duration,
    is_final: bool,
) -> ReportModel {
    let Reporter {
        pid,
        view,
        symbols,
        last,
    } = reporter;
    let pid = *pid;
    symbols.set_modules(
        session
            .modules
            .iter()
            .map(|m| ModuleFile {
                path: m.path.clone(),
                file: PathBuf::from(format!("/proc/{pid}/root{}", m.path)),
                base: m.base,
                start: m.start,
                end: m.end,
            })
            .collect(),
    );
    let now_ms = elapsed.as_millis() as u64;
    let before = view
        .older
        .map(|older| elapsed.saturating_sub(older).as_nanos() as u64);
    let mut live = ledger.live_by(before);
    let growth = |s: &SiteLive| s.bytes as i64 - last.get(&s.stack).copied().unwrap_or(0) as i64;
    use crate::attach::SortBy;
    match view.sort {
        SortBy::Bytes => live.sort_by_key(|s| (Reverse(s.bytes), s.stack)),
        SortBy::Count => live.sort_by_key(|s| (Reverse(s.blocks), s.stack)),
        SortBy::Age => live.sort_by_key(|s| (s.oldest_ns, s.stack)),
        SortBy::Growth => live.sort_by_key(|s| (Reverse(growth(s)), s.stack)),
    }
    let sites = live
        .iter()
        .take(view.top)
        .map(|s| {
            let stack = session.region().stack(s.stack);
            let (kind, frames) = match stack {
                Some(stack) => (
                    HOOKED_FUNCTIONS
                        .get(usize::from(stack.function))
                        .map_or("unknown", |f| f.kind),
                    stack.frames,
                ),
                None => ("unknown", Vec::new()),
            };
            Site {
                bytes: s.bytes,
                blocks: s.blocks,
                growth_bytes: growth(s),
                oldest_ms: now_ms.saturating_sub(s.oldest_ns / 1_000_000),
                kind: kind.to_owned(),
                stack: frames
                    .iter()
                    .flat_map(|&a| stack_frames(symbols, a))
                    .collect(),
            }
        })
        .collect();
    let more_sites = live.len().saturating_sub(view.top) as u64;
    *last = live.iter().map(|s| (s.stack, s.bytes)).collect();
    let t = ledger.totals();
    let losses = session.region().losses();
    let (slots, modules) = session.patched();
    ReportModel {
        schema: "memhook-rs/report/1",
        is_final,
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
        totals: Totals {
            allocations: t.allocations,
            releases: t.releases,
            allocated_bytes: t.allocated_bytes,
            released_bytes: t.released_bytes,
            live_bytes: t.live_bytes,
            live_blocks: t.live_blocks,
            peak_live_bytes: t.peak_live_bytes,
            unknown_releases: t.unknown_releases,
            lost_events: losses.dropped + losses.ringless,
            truncated_stacks: losses.truncated + losses.stacks_dropped,
            reentrant_calls: losses.reentrant,
        },
        coverage: coverage(session),
        sites,
        more_sites,
    }
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
            let refused = of(slot_state::REFUSED);
            let reasons: Vec<&str> = session
                .unhookable
                .iter()
                .filter(|(name, _)| name == m.name())
                .map(|(_, reason)| *reason)
                .collect();
            let unhookable = refused + reasons.len() as u64;
            (hooked + unhookable > 0).then(|| Coverage {
                module: m.name().to_owned(),
                hooked,
                unhookable,
                note: reasons.first().copied().unwrap_or("").to_owned(),
            })
        })
        .collect()
}

fn stack_frames(symbols: &mut Symbolizer, address: u64) -> Vec<StackFrame> {
    let location = symbols.resolve(address);
    let frame = |f: &memhook_symbols::Frame| StackFrame {
        address: format!("{address:#x}"),
        module: location.module.clone(),
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
