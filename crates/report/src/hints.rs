//! Hints that name another command if it answers a question that this report leaves open.

use crate::labels::one_line;
use crate::units::{bytes, count, counted, percent};
use crate::{ReportModel, Style};
use std::fmt::{Result, Write};

/// Bytes below which a hint is not worthwhile.
const MUCH: u64 = 64 << 20;
/// Frames that `run`, `gate` and recordings collect.
const DEEP: u32 = 64;

/// Maximum number of hints. Nobody reads more.
const MOST: usize = 2;

/// Writes one line for each hint. Hints about unreliable numbers come first, and the most common
/// hint comes last.
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

/// Returns the hints of a report, one line each.
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

/// Returns the hint about objects that are parts of larger blocks.
fn hidden(model: &ReportModel) -> Option<String> {
    let mut of_modules = model.coverage.iter().map(|module| &module.hidden);
    let hidden = of_modules.find(|hidden| !hidden.is_empty())?;
    model.is_final.then(|| one_line(hidden.clone()))
}

/// Allocators, other than those of C libraries, whose heaps can be dissected.
const DISSECTED: [&str; 3] = ["jemalloc", "mimalloc", "tcmalloc"];

/// Returns the hint that lists the commands that cannot read this allocator's heap.
fn other_allocator(model: &ReportModel) -> Option<String> {
    let mut modules = model
        .coverage
        .iter()
        .filter(|module| !module.allocator.is_empty());
    let module = modules.next().filter(|_| model.is_final)?;
    if modules.next().is_some() {
        return None;
    }
    // The process id of a recording is no longer valid.
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

/// Returns the hint about memory that was not traced because it is older than the attach or not
/// from malloc.
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
    // Released memory may still be resident.
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

fn has_account(model: &ReportModel) -> bool {
    model.rss.is_some()
}

/// Released bytes below which a hint is not worthwhile.
const MUCH_RELEASED: u64 = 4 << 20;

/// Returns the hint about short-lived allocations, for a program that keeps almost nothing live. If
/// nothing at all is live, the hint replaces the sites.
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

/// Returns the command that shows which functions allocate the short-lived blocks.
pub(crate) fn who_allocates(model: &ReportModel) -> String {
    if model.is_recorded {
        return "report --measure allocated, or --measure temporary".to_owned();
    }
    let pid = model.target.pid;
    format!("attach {pid} -o run.mhk, then report run.mhk --measure allocated")
}
