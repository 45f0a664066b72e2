//! Text for a terminal.

use crate::apart::KnownSite;
use crate::claims::{
    Seen, completeness, slots_text, unseen_calls, unseen_releases, unwatched_libraries,
};
use crate::gaps;
use crate::group_table::groups;
use crate::heaps::MAIN_HEAP;
use crate::hints::{hints, who_allocates};
use crate::labels::one_line;
use crate::leaks::{Shown, leaks};
use crate::mappings::mappings;
use crate::places::source_root;
use crate::scores::{inferences_text, run_text, site_text};
use crate::site_head::{SiteHead, SiteRow, heads, heads_of};
use crate::stacks::{StackEnd, stack};
use crate::unhit::{counted_apart, unhit};
use crate::units::{bytes, change, count, counted, milliseconds, percent, with_error};
use crate::{Bounded, Coverage, Document, Mark, ReportModel, Sampling, Style};
use memhook_foreign::visible;
use std::fmt::{Result, Write};

impl Document for ReportModel {
    fn text(&self, style: Style) -> String {
        let mut out = String::new();
        let stacks = self.sites.iter().map(|site| &site.stack);
        let of_groups = self.groups.iter().filter_map(|group| group.frame.as_ref());
        let root = source_root(stacks.flatten().chain(of_groups));
        let style = Style {
            root: &root,
            ..style
        };
        // Writing into a String cannot fail.
        let _ = warnings(&mut out, self, style)
            .and_then(|()| head(&mut out, self, style))
            .and_then(|()| heaps(&mut out, self))
            .and_then(|()| coverage(&mut out, self, style))
            .and_then(|()| over_time(&mut out, self))
            .and_then(|()| match &self.scores {
                Some(scores) => run_text(&mut out, scores, &self.custom_scores, style),
                None => Ok(()),
            })
            .and_then(|()| measure(&mut out, self, style))
            .and_then(|()| sites(&mut out, self, style))
            .and_then(|()| groups(&mut out, self, style))
            .and_then(|()| match &self.inferences {
                Some(found) => inferences_text(&mut out, found, self.attach.depth, style),
                None => Ok(()),
            })
            .and_then(|()| releases(&mut out, self, style))
            .and_then(|()| match &self.mappings {
                Some(found) => mappings(&mut out, found, style),
                None => Ok(()),
            })
            .and_then(|()| resident(&mut out, self, style))
            .and_then(|()| match &self.leaks {
                Some(found) => leaks(&mut out, found, &Shown::of(self, style), style),
                None => Ok(()),
            })
            .and_then(|()| match &self.stale {
                Some(found) => write!(out, "\n{}", found.text(style)),
                None => Ok(()),
            });
        out
    }
}

/// Describes the changes of resident memory.
fn over_time(out: &mut String, model: &ReportModel) -> Result {
    let points = &model.resident;
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return Ok(());
    };
    let most = points.iter().max_by_key(|point| point.rss_bytes());
    let most = most.unwrap_or(last);
    writeln!(
        out,
        "  {} resident at the beginning, {} at most ({} after the attach), {} at the end ({} of it anonymous memory)",
        bytes(first.rss_bytes()),
        bytes(most.rss_bytes()),
        milliseconds(most.time_ms),
        bytes(last.rss_bytes()),
        bytes(last.anonymous_bytes),
    )
}

/// Describes the resident memory, if the user asked for it.
fn resident(out: &mut String, model: &ReportModel, style: Style) -> Result {
    match &model.rss {
        Some(account) => writeln!(out, "\n{}", account.text(style).trim_end()),
        None => Ok(()),
    }
}

/// Describes the latest marks.
fn marks(marks: &[Mark]) -> Option<String> {
    const SHOWN: usize = 8;
    let last = &marks[marks.len().saturating_sub(SHOWN)..];
    let shown = last.iter().map(|mark| {
        let at = milliseconds((mark.at_s * 1e3).round() as u64);
        one_line(format!("\"{}\" at {at}", mark.name))
    });
    let shown = shown.collect::<Vec<_>>().join(", ");
    let more = match marks.len() - last.len() {
        0 => String::new(),
        more => format!("{} before, then ", count(more as u64)),
    };
    (!marks.is_empty()).then(|| format!("Marks: {more}{shown}"))
}

/// Writes the lines above the numbers: first their deficiencies, then marks that identify the run.
fn warnings(out: &mut String, model: &ReportModel, style: Style) -> Result {
    let lost = Some(model.totals.lost_events).filter(|&lost| lost > 0);
    let lost = lost.map(|lost| {
        format!(
            "{} lost: what follows is wrong by what they held. Try --set ring-size=16M, or --on-full wait",
            counted(lost, "event")
        )
    });
    let faults = [
        gaps::warning(&model.gaps, model.live_bounds.as_ref()),
        unseen_calls(model).map(|claim| claim.sentence),
        unwatched_libraries(model.totals.unwatched_libraries),
        lost,
        model.bounded.as_ref().map(Bounded::in_words),
    ];
    for fault in faults.into_iter().flatten() {
        writeln!(out, "{}", style.warning(&fault))?;
    }
    if let Some(overhead) = &model.overhead {
        writeln!(out, "{}", overhead.in_words())?;
    }
    if let Some(sampling) = &model.sampling {
        let samples = format!(
            "{}, one in about {}",
            counted(sampling.recorded_allocations, "sampled allocation"),
            bytes(sampling.mean_bytes)
        );
        match sampling.exact_allocations {
            None => writeln!(out, "Estimates from {samples}")?,
            Some(exact) if model.overhead.is_some() || sampling.is_in_budget => writeln!(
                out,
                "Of about {}, {} were all counted, and the others are estimated from {samples} at most{}",
                counted(model.totals.allocations, "allocation"),
                count(exact),
                unhit(sampling),
            )?,
            Some(exact) => writeln!(
                out,
                "{}: of about {}, {} were all counted, and the others are estimated from {samples} (--on-full wait \
                 counts all, and slows the process){}",
                exact_time(sampling),
                counted(model.totals.allocations, "allocation"),
                count(exact),
                unhit(sampling),
            )?,
        }
    }
    if let Some(marks) = marks(&model.marks) {
        writeln!(out, "{marks}")?;
    }
    Ok(())
}

/// Returns a text such as `Exact for 41 s, then estimated`.
fn exact_time(sampling: &Sampling) -> String {
    match sampling.exact_s {
        Some(exact_s) => format!(
            "Exact for {}, then estimated where rings were nearly full",
            milliseconds((exact_s * 1e3) as u64)
        ),
        None => "Rings were nearly full at times".to_owned(),
    }
}

fn head(out: &mut String, model: &ReportModel, style: Style) -> Result {
    let t = &model.totals;
    let errors = model.sampling.unwrap_or_default();
    let name = if model.target.name.is_empty() {
        String::new()
    } else {
        format!("{}, ", visible(&model.target.name))
    };
    let mut aside = Vec::new();
    if let Some(seconds) = model.since_last_s {
        let since = milliseconds((seconds * 1e3) as u64);
        aside.push(format!(
            "{} in the last {since}",
            change(t.live_growth_bytes)
        ));
    }
    if t.peak_live_bytes > 0 {
        aside.push(format!("peak {}", bytes(t.peak_live_bytes)));
    }
    let aside = if aside.is_empty() {
        String::new()
    } else {
        format!(" ({})", aside.join(", "))
    };
    writeln!(
        out,
        "{} {} in {}{aside}",
        style.strong(&format!("{name}{} after the attach:", covered(model))),
        style.number(&live_text(model)),
        gaps::live_blocks(model.live_bounds.as_ref(), t.live_blocks),
    )?;
    let length = gaps::seen_seconds(&model.gaps, model.from_s, model.elapsed_s).max(1e-3);
    let rate = |n: u64| (n as f64 / length) as u64;
    let known = t.releases.saturating_sub(t.unknown_releases);
    let rows = [
        (
            "allocated",
            t.allocated_bytes,
            t.allocations,
            errors.allocated_error_bytes,
        ),
        (
            "released",
            t.released_bytes,
            known,
            errors.released_error_bytes,
        ),
    ];
    let columns = rows.map(|(_, b, n, error)| {
        let every_second = format!("{}/s, {}/s", count(rate(n)), bytes(rate(b)));
        (with_error(b, error), counted(n, "block"), every_second)
    });
    let width = columns.iter().map(|c| c.1.len()).max().unwrap_or(0);
    for ((label, ..), (total, blocks, rates)) in rows.iter().zip(columns) {
        writeln!(
            out,
            "  {label:<10}{total:>11} in {blocks:<width$}  {}",
            style.faint(&rates)
        )?;
    }
    if let Some(time) = model.allocator_time {
        writeln!(out, "  took      {:>11}", time.in_words())?;
    }
    if t.unknown_releases > 0 {
        writeln!(
            out,
            "  {} released whose allocation was not seen: {}",
            counted(t.unknown_releases, "block"),
            unseen_releases(Seen::of(model)).sentence
        )?;
    }
    if t.unhooked_releases > 0 {
        writeln!(
            out,
            "  {} whose release was not seen: their addresses were handed out again",
            counted(t.unhooked_releases, "block")
        )?;
    }
    Ok(())
}

/// Writes the described heaps.
fn heaps(out: &mut String, model: &ReportModel) -> Result {
    for heap in model.heaps.iter().skip(1) {
        let text = heap.in_words(model.since_last_s);
        writeln!(out, "  heap {}: {text}", visible(&heap.name))?;
    }
    Ok(())
}

/// Returns `4.0 KiB live`, or the bounds if a gap makes the number uncertain.
fn live_text(model: &ReportModel) -> String {
    let error = model
        .sampling
        .and_then(|sampling| sampling.live_error_bytes);
    let most = with_error(model.totals.live_bytes, error);
    match &model.live_bounds {
        Some(bounds) if !bounds.is_exact() => {
            format!("{} to {most} live", bytes(bounds.least_bytes))
        }
        _ => format!("{most} live"),
    }
}

/// Maximum number of modules that are shown although nothing is missing in them.
const MODULES_SHOWN: usize = 12;

/// Writes one line if nothing is missing. Lists modules at the end; with `-v` all of them.
fn coverage(out: &mut String, model: &ReportModel, style: Style) -> Result {
    let t = &model.totals;
    let lost = match t.lost_events {
        0 => "no event lost".to_owned(),
        n => style.warning(&format!("{} lost", counted(n, "event"))),
    };
    let stacks = if model.releases.is_empty() {
        t.allocations
    } else {
        t.allocations + t.releases
    };
    let is_news = |c: &&Coverage| c.unhookable > 0 || !c.note.is_empty();
    let complete = completeness(model).filter(|_| !style.verbose);
    if let Some(complete) = complete {
        writeln!(
            out,
            "  {} ({}; -v for more)",
            complete.sentence,
            slots_text(model)
        )?;
        return hints(out, model, style);
    }
    writeln!(
        out,
        "  {} hooked in {}, {lost}, {} cut short ({:.1} %), {} skipped",
        counted(model.attach.slots, "slot"),
        counted(model.attach.modules, "module"),
        counted(t.truncated_stacks, "stack"),
        percent(t.truncated_stacks, stacks).min(100.0),
        counted(t.reentrant_calls, "re-entrant call"),
    )?;
    hints(out, model, style)?;
    let (mut shown, quiet): (Vec<&Coverage>, Vec<&Coverage>) =
        model.coverage.iter().partition(is_news);
    let room = match (style.verbose, model.is_final) {
        (true, _) => usize::MAX,
        (false, true) => MODULES_SHOWN.saturating_sub(shown.len()),
        (false, false) => 0,
    };
    let left_out = quiet.len().saturating_sub(room);
    shown.extend(quiet.into_iter().take(room));
    if shown.is_empty() {
        return Ok(());
    }
    let width = shown
        .iter()
        .map(|c| visible(&c.module).len())
        .fold("module".len(), usize::max);
    let header = format!(
        "\n  {:<width$}  slots  calls seen  not seen  names from",
        "module"
    );
    writeln!(out, "{}", style.faint(&header))?;
    for c in shown {
        let line = format!(
            "  {:<width$}  {:>5}  {:>10}  {:>8}  {}",
            visible(&c.module),
            c.hooked,
            count(c.calls_seen),
            count(c.unhookable),
            c.symbols.unwrap_or("(not asked)"),
        );
        writeln!(out, "{line}")?;
        if !c.note.is_empty() {
            writeln!(
                out,
                "  {:<width$}  {}",
                "",
                style.warning(&visible(&c.note))
            )?;
        }
    }
    if left_out > 0 && room > 0 {
        let rest = format!(
            "  and {}, hooked too (-v)",
            counted(left_out as u64, "more module")
        );
        writeln!(
            out,
            "{}",
            style.faint(&rest.replace("more modules", "more"))
        )?;
    }
    Ok(())
}

/// Returns `10.0 s`, or `from 5.0 s to 10.0 s`.
fn covered(model: &ReportModel) -> String {
    let time = |seconds: f64| milliseconds((seconds * 1e3) as u64);
    if model.from_s > 0.0 {
        format!("from {} to {}", time(model.from_s), time(model.elapsed_s))
    } else {
        time(model.elapsed_s)
    }
}

pub(crate) fn is_live(model: &ReportModel) -> bool {
    model.measured.measure == "live"
}

/// Names the measure of the rows below, unless it is live memory.
fn measure(out: &mut String, model: &ReportModel, style: Style) -> Result {
    let title = match model.measured.measure {
        "peak" => "Live when most was live",
        "allocated" => "Allocated",
        "released" => "Released",
        "unreachable" => "Unreachable at the end of the run",
        "temporary" => "Temporary: released before the thread's next allocation",
        _ => return Ok(()),
    };
    let measured = &model.measured;
    let sum = style.number(&with_error(measured.bytes, measured.error_bytes));
    let blocks = counted(model.measured.blocks, "block");
    writeln!(
        out,
        "\n{} {sum} in {blocks}",
        style.strong(&format!("{title}:"))
    )
}

pub(crate) fn sites(out: &mut String, model: &ReportModel, style: Style) -> Result {
    if model.by != "site" {
        return Ok(());
    }
    if model.sites.is_empty() {
        writeln!(out, "\n{}", nothing(model))?;
    }
    let is_table = is_table(model, style);
    if !model.sites.is_empty() {
        let heading = format!("Sites, and their share of {}:", model.whole_text());
        // A table needs no other line before it.
        writeln!(out, "\n{}", style.faint(&heading))?;
    }
    let known = model.sites.iter().map(|site| KnownSite {
        stack: site.stack_id,
        kind: &site.kind,
        frames: &site.stack,
    });
    let heads = heads(&known.collect::<Vec<_>>(), style);
    for (i, (site, head)) in model.sites.iter().zip(&heads).enumerate() {
        if !is_table {
            writeln!(out)?;
        }
        site_header(out, model, i, head, style)?;
        if let Some(scores) = &site.scores {
            site_text(out, scores, &site.custom_scores, style)?;
        }
        if !is_table {
            let end = StackEnd::of(&site.stack, site.truncated, model.attach.depth);
            stack(out, &site.stack, end, style)?;
        }
    }
    more(out, model.more_rows, "site")
}

/// Returns true if a report must fit the screen, because another report follows it on the terminal. Its rows then have
/// no stacks.
pub(crate) fn is_table(model: &ReportModel, style: Style) -> bool {
    !model.is_final && style.width.is_some() && !style.verbose
}

/// Explains why there are no rows.
pub(crate) fn nothing(model: &ReportModel) -> String {
    match model.measured.measure {
        "live" => nothing_live(model),
        "unreachable" => "Every block that is live at the end can be reached.".into(),
        "temporary" => "No block was released before the thread's next allocation.".into(),
        _ => "No block was allocated.".into(),
    }
}

/// Returns a text such as `#1 6.3 MiB 51.9 %  ImageCache::get  shop/cache.cc:28  400 blocks, oldest 199 ms, by new`
fn site_header(
    out: &mut String,
    model: &ReportModel,
    at: usize,
    head: &SiteHead,
    style: Style,
) -> Result {
    let site = &model.sites[at];
    let mut facts = counted(site.blocks, "block");
    if site.unseen_bytes > 0 {
        facts += &format!(", {} of it not seen since", bytes(site.unseen_bytes));
    }
    if let Some(unreachable) = site.unreachable_bytes.filter(|&bytes| bytes > 0) {
        let sum = with_error(unreachable, site.unreachable_error_bytes);
        facts += &match is_live(model) && !model.ends_early {
            true => format!(", {sum} of it unreachable"),
            // Not all of the site's blocks are counted here.
            false => format!(", {sum} of its blocks unreachable at the end"),
        };
    }
    let mut facts = vec![facts];
    if let Some(time) = site.allocator_time {
        facts.push(format!(", {}", time.in_words()));
    }
    if model.since_last_s.is_some() && is_live(model) {
        facts.push(format!(", {}", change(site.growth_bytes)));
    }
    if is_live(model) && site.blocks > 0 {
        facts.push(format!(", oldest {}", milliseconds(site.oldest_ms)));
    }
    let mut by = format!(", by {}", visible(&site.kind));
    if let Some(heap) = site.heap.as_ref().filter(|heap| *heap != MAIN_HEAP) {
        by += &format!(" of heap {}", visible(heap));
    }
    facts.push(by);
    let share = percent(site.bytes, model.bytes_of_heap(site.heap.as_deref()));
    let row = SiteRow {
        label: format!("#{}", at + 1),
        amount: with_error(site.bytes, counted_apart(model, site.error_bytes)),
        share: Some(format!("{share:.1} %")),
        facts,
    };
    row.write(out, head, style)
}

/// Describes a program that has nothing live. It may still allocate a lot.
fn nothing_live(model: &ReportModel) -> String {
    let totals = &model.totals;
    if model.is_cut {
        return "The readable part of the recording has no live block.".into();
    }
    if totals.allocations == 0 {
        return "No block was allocated since the attach.".into();
    }
    format!(
        "Nothing grows: all of {} in {} was released again, and no block that was allocated since the attach is live.\n\
         Who allocates it: {}",
        bytes(totals.allocated_bytes),
        counted(totals.allocations, "block"),
        who_allocates(model),
    )
}

pub(crate) fn more(out: &mut String, more_rows: u64, what: &str) -> Result {
    if more_rows > 0 {
        writeln!(
            out,
            "\n... and {} (--top)",
            counted(more_rows, &format!("more {what}"))
        )?;
    }
    Ok(())
}

fn releases(out: &mut String, model: &ReportModel, style: Style) -> Result {
    if model.releases.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n{}",
        style.strong("Who releases, and their share of all released bytes:")
    )?;
    let is_table = is_table(model, style);
    let known = model.releases.iter().map(|site| (&site.kind, &site.stack));
    let heads = heads_of(known, style);
    for (i, (site, head)) in model.releases.iter().zip(&heads).enumerate() {
        if !is_table {
            writeln!(out)?;
        }
        let share = percent(site.bytes, model.totals.released_bytes);
        let row = SiteRow {
            label: format!("R{}", i + 1),
            amount: with_error(site.bytes, site.error_bytes),
            share: Some(format!("{share:.1} %")),
            facts: vec![
                counted(site.blocks, "block"),
                format!(", by {}", visible(&site.kind)),
            ],
        };
        row.write(out, head, style)?;
        if !is_table {
            let end = StackEnd::of(&site.stack, false, model.attach.depth);
            stack(out, &site.stack, end, style)?;
        }
    }
    Ok(())
}
