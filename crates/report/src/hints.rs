//! Questions to ask instead, where the numbers below do not hold the answer.

use crate::labels::one_line;
use crate::units::{bytes, count, counted, percent};
use crate::{ReportModel, Style};
use std::fmt::{Result, Write};

/// Less than this is not worth a hint.
const MUCH: u64 = 64 << 20;
/// Frames that are recorded for `run`, `gate` and recordings.
const DEEP: u32 = 64;

/// More hints than this are read by nobody.
const MOST: usize = 2;

/// One line each. What makes the numbers wrong comes first, and what is nearly always so last.
pub(crate) fn hints(out: &mut String, model: &ReportModel, style: Style) -> Result {
    for hint in found(model).into_iter().take(MOST) {
        let text = match &hint {
            Hint::Warning(text) => style.warning(text),
            Hint::Advice(text) => text.clone(),
        };
        writeln!(out, "  {text}")?;
    }
    Ok(())
}

/// The hints of a report, each a line.
pub fn in_words(model: &ReportModel) -> Vec<String> {
    let text = |hint| match hint {
        Hint::Warning(text) | Hint::Advice(text) => text,
    };
    found(model).into_iter().take(MOST).map(text).collect()
}

enum Hint {
    Warning(String),
    Advice(String),
}

fn found(model: &ReportModel) -> Vec<Hint> {
    let advice = [
        short_lived(model),
        hidden(model),
        elsewhere(model),
        other_allocator(model),
    ];
    let advice = advice.into_iter().flatten().map(Hint::Advice);
    let unkept = unkept_stacks(model).map(Hint::Warning);
    let cut = cut_stacks(model).map(Hint::Warning);
    unkept.into_iter().chain(advice).chain(cut).collect()
}

/// Objects that are parts of larger blocks.
fn hidden(model: &ReportModel) -> Option<String> {
    let mut of_modules = model.coverage.iter().map(|module| &module.hidden);
    let hidden = of_modules.find(|hidden| !hidden.is_empty())?;
    model.is_final.then(|| one_line(hidden.clone()))
}

/// Allocators other than C libraries' whose heap is dissected.
const DISSECTED: [&str; 3] = ["jemalloc", "mimalloc", "tcmalloc"];

/// Some commands do not know every heap.
fn other_allocator(model: &ReportModel) -> Option<String> {
    let mut modules = model
        .coverage
        .iter()
        .filter(|module| !module.allocator.is_empty());
    let module = modules.next().filter(|_| model.is_final)?;
    if modules.next().is_some() {
        return None;
    }
    // What a recording says of its process is of no use any more.
    let pid = match model.rss_bytes {
        Some(_) => model.target.pid.to_string(),
        None => "PID".to_owned(),
    };
    let name = one_line(module.allocator.clone());
    let leaks = match &model.leaks {
        _ if DISSECTED.contains(&name.as_str()) => "scan knows its heap",
        Some(_) => "scan does not know its heap",
        None => "scan does not know its heap, attach --leaks does",
    };
    let more = match (module.is_linked_in, name.as_str()) {
        (false, "jemalloc" | "tcmalloc") => {
            format!("; rss {pid} asks it what it holds, trim {pid} has it give memory back")
        }
        (false, "mimalloc") => format!("; trim {pid} has it give memory back"),
        _ => String::new(),
    };
    let place = if module.is_linked_in {
        format!(", which is part of {}", one_line(module.module.clone()))
    } else {
        String::new()
    };
    Some(format!(
        "These blocks come from {name}{place}: {leaks}{more}"
    ))
}

fn unkept_stacks(model: &ReportModel) -> Option<String> {
    let unkept = Some(model.totals.unkept_stacks).filter(|&unkept| unkept > 0)?;
    Some(format!(
        "{} have no call stack: the memory for stacks is full. A smaller --depth makes room",
        counted(unkept, "call"),
    ))
}

fn cut_stacks(model: &ReportModel) -> Option<String> {
    let stacks = model.call_stacks.filter(|stacks| stacks.cut_at_depth > 0)?;
    let depth = model.attach.depth;
    let deeper = match depth {
        0..DEEP => format!(" (--depth {DEEP} shows more)"),
        _ => String::new(),
    };
    let end = if stacks.cut_at_depth == 1 {
        "ends"
    } else {
        "end"
    };
    Some(format!(
        "{} of {} {end} at --depth {depth}: who called their outermost functions is not known{deeper}",
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

/// Less than this is not worth a hint about what was released again.
const MUCH_RELEASED: u64 = 4 << 20;

/// Next to nothing stays: what costs is the allocating. Where nothing at all stays, that is in the place of the sites.
fn short_lived(model: &ReportModel) -> Option<String> {
    let t = &model.totals;
    let is_nothing = t.live_bytes.max(t.peak_live_bytes) < t.allocated_bytes / 1_000;
    let asks_for_live = model.measured.measure == "live" && model.is_final;
    let is_in_place_of_sites = t.live_blocks == 0 && model.by == "site";
    if !asks_for_live || !is_nothing || is_in_place_of_sites || t.allocated_bytes < MUCH_RELEASED {
        return None;
    }
    Some(format!(
        "Nearly all of the {} was released again. Who allocates it: {}",
        bytes(t.allocated_bytes),
        who_allocates(model),
    ))
}

/// Returns the command that shows who allocates what is released again.
pub(crate) fn who_allocates(model: &ReportModel) -> String {
    if model.is_recorded {
        return "report --measure allocated, or --measure temporary".to_owned();
    }
    let pid = model.target.pid;
    format!("attach {pid} -o run.mhk, then report run.mhk --measure allocated")
}
