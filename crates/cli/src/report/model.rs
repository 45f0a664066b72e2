//! From a profile to the report that a live attach gives too.

use super::profile::note;
use super::rows::{Row, rows};
use crate::coverage::source_text;
use crate::options::SortBy;
use memhook_recording::Recording;
use memhook_report::{
    Amount, AttachInfo, Coverage, Group, Measure, Measured, Profile, ReleaseSite, ReportModel,
    Site, StackFrame,
};
use memhook_symbols::Symbolizer;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

pub use super::rows::RowsBy;

/// What is shown, and how much of it.
#[derive(Clone, Copy)]
pub struct Selection {
    pub by: RowsBy,
    pub measure: Measure,
    pub sort: SortBy,
    pub top: usize,
    /// The profile is of a part of the run.
    pub is_window: bool,
}

/// The report.
pub fn model(
    recording: &Recording,
    symbols: &Symbolizer,
    profile: &Profile,
    selection: &Selection,
) -> ReportModel {
    let mut rows = rows(profile, selection.by, selection.measure);
    let key = |row: &Row| {
        let number = match selection.sort {
            SortBy::Bytes => Reverse(row.amount.bytes as i64),
            SortBy::Count => Reverse(row.amount.blocks as i64),
            SortBy::Growth => Reverse(row.growth_bytes),
            SortBy::Age => Reverse(-(row.oldest_ns.unwrap_or(u64::MAX >> 1) as i64)),
        };
        (number, Reverse(row.self_bytes), row.order.clone())
    };
    // Lifetimes have an order of their own, in which they make a histogram.
    if selection.by != RowsBy::Lifetime {
        rows.sort_by_cached_key(key);
    }
    let more_rows = match selection.by {
        RowsBy::Lifetime => 0,
        _ => rows.len().saturating_sub(selection.top),
    };
    rows.truncate(rows.len() - more_rows);
    let amounts = profile.sites.iter();
    let amounts = amounts.map(|site| selection.measure.of(&site.measures));
    let sum: Amount = amounts.sum();
    let (mut sites, mut groups) = (Vec::new(), Vec::new());
    for row in rows {
        let oldest_ms = row.oldest_ns.map_or(0, |oldest| {
            (profile.to_ns / 1_000_000).saturating_sub(oldest / 1_000_000)
        });
        match row.stack {
            Some((stack, kind, truncated)) => sites.push(Site {
                bytes: row.amount.bytes,
                blocks: row.amount.blocks,
                error_bytes: row.amount.error_bytes(),
                growth_bytes: row.growth_bytes,
                oldest_ms,
                kind,
                truncated,
                stack: frames(profile, stack),
            }),
            None => groups.push(Group {
                name: row.name,
                frame: row.frame,
                bytes: row.amount.bytes,
                self_bytes: row.self_bytes,
                blocks: row.amount.blocks,
                error_bytes: row.amount.error_bytes(),
                growth_bytes: row.growth_bytes,
                oldest_ms,
                released_bytes: row.released.bytes,
                released_blocks: row.released.blocks,
            }),
        }
    }
    // Who asks for a detail has seen the rest.
    let is_overview = selection.by == RowsBy::Site && selection.measure == Measure::Live;
    let shows_releases = selection.measure == Measure::Released && selection.by == RowsBy::Site;
    let number = |name| note(recording, name).parse::<f64>().unwrap_or(0.0);
    let seconds = |ns: u64| ns as f64 / 1e9;
    ReportModel {
        schema: "memhook-rs/report/1",
        is_final: true,
        by: selection.by.name(),
        target: profile.target.clone(),
        attach: AttachInfo {
            attach_ms: number("attach_ms"),
            held_ms: number("held_ms"),
            idle_held_ms: number("idle_held_ms"),
            slots: number("slots") as u64,
            modules: number("modules") as u64,
            depth: profile.depth,
        },
        from_s: seconds(profile.from_ns),
        elapsed_s: seconds(profile.to_ns),
        since_last_s: selection
            .is_window
            .then(|| seconds(profile.to_ns - profile.from_ns)),
        sampling: profile.sampling,
        bounded: None,
        totals: profile.totals,
        measured: Measured {
            measure: selection.measure.name(),
            bytes: sum.bytes,
            blocks: sum.blocks,
            error_bytes: sum.error_bytes(),
        },
        coverage: match is_overview {
            true => coverage(recording, symbols),
            false => Vec::new(),
        },
        sites,
        groups,
        releases: match is_overview || shows_releases {
            true => releases(profile, selection.top),
            false => Vec::new(),
        },
        more_rows: more_rows as u64,
        leaks: None,
    }
}

/// A stack with names, innermost first.
pub fn frames(profile: &Profile, stack: u32) -> Vec<StackFrame> {
    let stack = profile.stacks[stack as usize].iter();
    stack
        .map(|&frame| profile.frames[frame as usize].frame.clone())
        .collect()
}

/// Who releases most, where release stacks were recorded.
fn releases(profile: &Profile, top: usize) -> Vec<ReleaseSite> {
    let mut sums: FxHashMap<(u32, &str), Amount> = FxHashMap::default();
    for released in &profile.releases {
        *sums.entry((released.by, released.kind)).or_default() += released.amount;
    }
    let mut sums: Vec<_> = sums
        .into_iter()
        .filter(|((stack, _), _)| !profile.stacks[*stack as usize].is_empty())
        .collect();
    sums.sort_unstable_by_key(|&(stack, amount)| (Reverse(amount.bytes), stack));
    sums.truncate(top);
    sums.into_iter()
        .map(|((stack, kind), amount)| ReleaseSite {
            bytes: amount.bytes,
            blocks: amount.blocks,
            error_bytes: amount.error_bytes(),
            kind: kind.to_owned(),
            stack: frames(profile, stack),
        })
        .collect()
}

/// What the recorder saw of each module, as it noted at the end; names come from here.
fn coverage(recording: &Recording, symbols: &Symbolizer) -> Vec<Coverage> {
    let noted = serde_json::from_str(note(recording, "coverage"));
    let noted: Vec<serde_json::Value> = noted.unwrap_or_default();
    let one = |value: &serde_json::Value| {
        let text = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
        let number = |field: &str| value[field].as_u64().unwrap_or(0);
        let module = text("module");
        let named = |path: &str| path.rsplit('/').next() == Some(module.as_str());
        let source = symbols.sources().find(|source| named(&source.path));
        Coverage {
            hooked: number("hooked"),
            unhookable: number("unhookable"),
            note: text("note"),
            calls_seen: number("calls_seen"),
            symbols: source.map(|source| source_text(source.source)),
            module,
        }
    };
    noted.iter().map(one).collect()
}
