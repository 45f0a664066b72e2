//! Text for a terminal.

use crate::{Coverage, ReportModel, StackFrame, bytes, milliseconds};
use std::fmt::{Result, Write};

/// How text looks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// Use ANSI colours.
    pub color: bool,
}

impl Style {
    fn paint(self, code: &str, text: &str) -> String {
        if self.color {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
    fn strong(self, text: &str) -> String {
        self.paint("1", text)
    }
    fn faint(self, text: &str) -> String {
        self.paint("2", text)
    }
    fn warning(self, text: &str) -> String {
        self.paint("1;31", text)
    }
}

/// The report as text.
pub fn text(model: &ReportModel, style: Style) -> String {
    let mut out = String::new();
    // Writing into a String cannot fail.
    let _ = head(&mut out, model, style)
        .and_then(|()| coverage(&mut out, &model.coverage))
        .and_then(|()| sites(&mut out, model, style))
        .and_then(|()| groups(&mut out, model, style))
        .and_then(|()| releases(&mut out, model, style));
    out
}

fn head(out: &mut String, model: &ReportModel, style: Style) -> Result {
    let t = &model.totals;
    if t.lost_events > 0 {
        let lost = format!(
            "{} events were lost: what follows is wrong by what they held",
            t.lost_events
        );
        writeln!(out, "{}", style.warning(&lost))?;
    }
    if let Some(sampling) = &model.sampling {
        writeln!(
            out,
            "Estimates from {} sampled allocations, one in about {}",
            sampling.recorded_allocations,
            bytes(sampling.mean_bytes)
        )?;
    }
    let peak = match t.peak_live_bytes {
        0 => String::new(),
        peak => format!(" (peak {})", bytes(peak)),
    };
    let live = format!(
        "After {:.1} s: {} live in {} blocks{peak}",
        model.elapsed_s,
        bytes(t.live_bytes),
        t.live_blocks,
    );
    writeln!(out, "{}", style.strong(&live))?;
    let rate = |n: u64| n as f64 / model.elapsed_s.max(1e-3);
    writeln!(
        out,
        "  allocated {:>10} in {} blocks ({:.0}/s, {}/s)",
        bytes(t.allocated_bytes),
        t.allocations,
        rate(t.allocations),
        bytes(rate(t.allocated_bytes) as u64)
    )?;
    writeln!(
        out,
        "  released  {:>10} in {} blocks ({:.0}/s), {} of them from before the attach",
        bytes(t.released_bytes),
        t.releases,
        rate(t.releases),
        t.unknown_releases
    )?;
    let share = 100.0 * t.truncated_stacks as f64 / t.allocations.max(1) as f64;
    writeln!(
        out,
        "  events lost {}, stacks cut short {} ({share:.2} %), re-entrant calls passed by {}, releases not seen {}",
        t.lost_events, t.truncated_stacks, t.reentrant_calls, t.unhooked_releases
    )
}

fn coverage(out: &mut String, coverage: &[Coverage]) -> Result {
    let hooked: u64 = coverage.iter().map(|c| c.hooked).sum();
    write!(
        out,
        "\nSeen: {hooked} slots in {} modules:",
        coverage.iter().filter(|c| c.hooked > 0).count()
    )?;
    let mut width = 80;
    for c in coverage.iter().filter(|c| c.hooked > 0) {
        let item = format!(" {} {}", c.module, c.hooked);
        if width + item.len() > 100 {
            write!(out, "\n ")?;
            width = 1;
        }
        width += item.len() + 1;
        write!(out, "{item},")?;
    }
    if out.ends_with(',') {
        out.pop();
    }
    writeln!(out)?;
    for c in coverage.iter().filter(|c| c.unhookable > 0) {
        writeln!(
            out,
            "Not seen: {} in {} ({})",
            c.unhookable, c.module, c.note
        )?;
    }
    Ok(())
}

fn share_of(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

fn growth(change: i64) -> String {
    let sign = if change < 0 { "-" } else { "+" };
    format!("{sign}{}", bytes(change.unsigned_abs()))
}

fn with_error(n: u64, error: Option<u64>) -> String {
    match error {
        Some(error) => format!("{} ± {}", bytes(n), bytes(error)),
        None => bytes(n),
    }
}

fn blocks(n: u64) -> String {
    format!("{n} block{}", if n == 1 { "" } else { "s" })
}

fn sites(out: &mut String, model: &ReportModel, style: Style) -> Result {
    if model.by != "site" {
        return Ok(());
    }
    if model.sites.is_empty() {
        writeln!(out, "\nNo live blocks.")?;
    }
    for (i, site) in model.sites.iter().enumerate() {
        let title = format!(
            "#{} {} in {} ({:.1} %)",
            i + 1,
            with_error(site.bytes, site.error_bytes),
            blocks(site.blocks),
            share_of(site.bytes, model.totals.live_bytes),
        );
        writeln!(
            out,
            "\n{}, {} since the last report, oldest {}, by {}",
            style.strong(&title),
            growth(site.growth_bytes),
            milliseconds(site.oldest_ms),
            site.kind
        )?;
        stack(out, &site.stack, style)?;
    }
    more(out, model, "sites")
}

fn more(out: &mut String, model: &ReportModel, what: &str) -> Result {
    if model.more_rows > 0 {
        writeln!(out, "\n... and {} more {what} (--top)", model.more_rows)?;
    }
    Ok(())
}

fn groups(out: &mut String, model: &ReportModel, style: Style) -> Result {
    if model.by == "site" {
        return Ok(());
    }
    let released = model.groups.iter().any(|g| g.released_blocks > 0);
    write!(
        out,
        "\n{:>11} {:>7} {:>10} {:>11} {:>9}",
        "bytes", "share", "blocks", "growth", "oldest"
    )?;
    if released {
        write!(out, " {:>11}", "released")?;
    }
    writeln!(out, "  {}", model.by)?;
    for g in &model.groups {
        write!(
            out,
            "{:>11} {:>6.1}% {:>10} {:>11} {:>9}",
            bytes(g.bytes),
            share_of(g.bytes, model.totals.live_bytes),
            g.blocks,
            growth(g.growth_bytes),
            milliseconds(g.oldest_ms)
        )?;
        if released {
            write!(out, " {:>11}", bytes(g.released_bytes))?;
        }
        let name = g.frame.as_ref().map(|f| line_of(f, style));
        writeln!(out, "  {}", name.unwrap_or_else(|| g.name.clone()))?;
    }
    more(out, model, "rows")
}

fn releases(out: &mut String, model: &ReportModel, style: Style) -> Result {
    for (i, site) in model.releases.iter().enumerate() {
        let title = format!(
            "released #{}: {} in {}",
            i + 1,
            bytes(site.bytes),
            blocks(site.blocks)
        );
        writeln!(out, "\n{}, by {}", style.strong(&title), site.kind)?;
        stack(out, &site.stack, style)?;
    }
    Ok(())
}

fn stack(out: &mut String, frames: &[StackFrame], style: Style) -> Result {
    for frame in frames {
        writeln!(out, "    {}", line_of(frame, style))?;
    }
    if frames.is_empty() {
        writeln!(out, "    (no call stack)")?;
    }
    Ok(())
}

fn line_of(frame: &StackFrame, style: Style) -> String {
    let mut line = match (&frame.function, &frame.module, &frame.offset) {
        (Some(function), _, _) => readable(function),
        (None, Some(module), Some(offset)) => format!("{module}+{offset}"),
        _ => frame.address.clone(),
    };
    if let Some(file) = &frame.file {
        let number = frame.line.map_or(String::new(), |n| format!(":{n}"));
        let file = file.strip_prefix("./").unwrap_or(file);
        line += &style.faint(&format!(" at {file}{number}"));
    }
    if frame.function.is_some()
        && let Some(module) = &frame.module
    {
        line += &style.faint(&format!(" ({module})"));
    }
    if frame.inlined {
        line += &style.faint(" [inlined]");
    }
    line
}

/// Demangled C++ as people write it; JSON has the full form.
fn readable(function: &str) -> String {
    const STRING: &str =
        "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";
    function
        .replace(STRING, "std::string")
        .replace("(anonymous namespace)::", "")
        .replace("std::__cxx11::", "std::")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_called_strings() {
        let long =
            "f(std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >&)";
        assert_eq!(readable(long), "f(std::string&)");
    }
}
