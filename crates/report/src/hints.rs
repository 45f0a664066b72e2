//! What to ask instead, where the answer is not in the numbers below.

use crate::units::{bytes, count, counted, percent};
use crate::{ReportModel, Style};
use std::fmt::{Result, Write};

/// Less than this is not worth a hint.
const MUCH: u64 = 64 << 20;
/// Frames that are recorded for `run`, `gate` and recordings.
const DEEP: u32 = 64;

/// One line each.
pub(crate) fn hints(out: &mut String, model: &ReportModel, style: Style) -> Result {
    for warning in [unkept_stacks(model), cut_stacks(model)]
        .into_iter()
        .flatten()
    {
        writeln!(out, "  {}", style.warning(&warning))?;
    }
    for hint in [elsewhere(model), short_lived(model)].into_iter().flatten() {
        writeln!(out, "  {hint}")?;
    }
    Ok(())
}

fn unkept_stacks(model: &ReportModel) -> Option<String> {
    let unkept = Some(model.totals.unkept_stacks).filter(|&unkept| unkept > 0)?;
    let kept = model.call_stacks.map_or(0, |stacks| stacks.count);
    Some(format!(
        "{} have no call stack: the memory for stacks was full after {}. A smaller --depth makes room",
        counted(unkept, "call"),
        count(kept),
    ))
}

fn cut_stacks(model: &ReportModel) -> Option<String> {
    let stacks = model.call_stacks.filter(|stacks| stacks.cut_at_depth > 0)?;
    let depth = model.attach.depth;
    let deeper = match depth {
        0..DEEP => format!(" (--depth {DEEP} shows more)"),
        _ => String::new(),
    };
    Some(format!(
        "{} of {} end at --depth {depth}: who called their outermost functions is not known{deeper}",
        count(stacks.cut_at_depth),
        counted(stacks.count, "call stack"),
    ))
}

/// Most of the memory of the process is not what was traced: it is older than the attach, or not from malloc.
fn elsewhere(model: &ReportModel) -> Option<String> {
    let is_repeated = model.since_last_s.is_some() && !model.is_final;
    if is_repeated
        || model.mappings.is_some()
        || has_account(model)
        || model.measured.measure != "live"
    {
        return None;
    }
    let recorded = model.resident.iter().map(|point| point.rss_bytes()).max();
    let resident = model.rss_bytes.or(recorded)?;
    // What was released may still be in memory.
    let traced = model.totals.live_bytes.max(model.totals.peak_live_bytes);
    let rest = resident.saturating_sub(traced);
    if rest < MUCH || traced > resident / 4 {
        return None;
    }
    let remedy = match model.rss_bytes {
        Some(_) => format!("rss {}, or --mappings", model.target.pid),
        None => "--rss, --mappings".to_owned(),
    };
    Some(format!(
        "{:.0} % of {} resident is not in these blocks: {remedy}",
        percent(rest, resident).floor(),
        bytes(resident),
    ))
}

#[cfg(target_arch = "x86_64")]
fn has_account(model: &ReportModel) -> bool {
    model.rss.is_some()
}

#[cfg(not(target_arch = "x86_64"))]
fn has_account(_: &ReportModel) -> bool {
    false
}

/// Next to nothing stays: what costs is the allocating. Where nothing at all stays, that is in the place of the sites.
fn short_lived(model: &ReportModel) -> Option<String> {
    let t = &model.totals;
    let is_nothing = t.live_bytes.max(t.peak_live_bytes) < t.allocated_bytes / 1_000;
    let asks_for_live = model.measured.measure == "live" && model.is_final;
    if !asks_for_live || !is_nothing || t.live_blocks == 0 || t.allocated_bytes < MUCH {
        return None;
    }
    Some(format!(
        "Nearly all of the {} was released again: who allocates it is in a recording (attach -o FILE; report FILE --measure allocated)",
        bytes(t.allocated_bytes),
    ))
}
