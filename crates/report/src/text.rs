//! Text for a terminal.

use crate::{ReportModel, StackFrame, bytes, milliseconds};
use std::fmt::Write;

/// The report as text.
pub fn text(model: &ReportModel) -> String {
    let mut out = String::new();
    let t = &model.totals;
    let _ = (|| -> std::fmt::Result {
        if t.lost_events > 0 {
            writeln!(
                out,
                "{} events were lost: the numbers below are too low or too high by what they held",
                t.lost_events
            )?;
        }
        writeln!(
            out,
            "After {:.1} s: {} live in {} blocks (peak {})",
            model.elapsed_s,
            bytes(t.live_bytes),
            t.live_blocks,
            bytes(t.peak_live_bytes)
        )?;
        writeln!(
            out,
            "  allocated {} in {} blocks, released {} in {} blocks, {:.0} allocations/s",
            bytes(t.allocated_bytes),
            t.allocations,
            bytes(t.released_bytes),
            t.releases,
            t.allocations as f64 / model.elapsed_s.max(1e-3)
        )?;
        writeln!(
            out,
            "  {} blocks from before the attach were released; {} events lost; {} stacks cut short; {} re-entrant calls passed by",
            t.unknown_releases, t.lost_events, t.truncated_stacks, t.reentrant_calls
        )?;
        writeln!(out, "\n  hooked  not hookable  module")?;
        for c in &model.coverage {
            let note = if c.note.is_empty() {
                String::new()
            } else {
                format!("  ({})", c.note)
            };
            writeln!(
                out,
                "  {:>6}  {:>12}  {}{note}",
                c.hooked, c.unhookable, c.module
            )?;
        }
        if model.sites.is_empty() {
            writeln!(out, "\nNo live blocks.")?;
        }
        for site in &model.sites {
            let share = 100.0 * site.bytes as f64 / t.live_bytes.max(1) as f64;
            let sign = if site.growth_bytes < 0 { "-" } else { "+" };
            writeln!(
                out,
                "\n{} in {} blocks ({share:.1} %), {sign}{} since the last report, oldest {}, by {}",
                bytes(site.bytes),
                site.blocks,
                bytes(site.growth_bytes.unsigned_abs()),
                milliseconds(site.oldest_ms),
                site.kind
            )?;
            for frame in &site.stack {
                writeln!(out, "    {}", line_of(frame))?;
            }
        }
        if model.more_sites > 0 {
            writeln!(out, "\n... and {} more sites", model.more_sites)?;
        }
        Ok(())
    })();
    out
}

fn line_of(frame: &StackFrame) -> String {
    let mut line = match &frame.function {
        Some(function) => function.clone(),
        None => frame.address.clone(),
    };
    if let Some(file) = &frame.file {
        let _ = write!(line, " at {file}");
        if let Some(number) = frame.line {
            let _ = write!(line, ":{number}");
        }
    }
    if let Some(module) = &frame.module {
        let _ = write!(line, " ({module})");
    }
    if frame.inlined {
        line.push_str(" [inlined]");
    }
    line
}
