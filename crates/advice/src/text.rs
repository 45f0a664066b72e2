//! Advice as a page of text.

use crate::{Advice, Finding};
use memhook_foreign::visible;
use memhook_report::{Style, bytes, change, wrapped};
use std::fmt::{Result, Write};

/// Maximum width, which is also the width without a terminal.
const WIDTH: usize = 100;
/// Number of columns for the subject of a line, before the command that shows the details.
const LINE: usize = 52;
/// Indentation of the lines of a finding.
const INDENT: &str = "   ";

pub fn text(advice: &Advice, style: Style) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut out, advice, style);
    out
}

fn write(out: &mut String, advice: &Advice, style: Style) -> Result {
    let width = style.width.unwrap_or(WIDTH).min(WIDTH);
    // The limits of a read-only copy come before its results.
    let only_looks = advice
        .notes
        .iter()
        .any(|note| note.starts_with("read only"));
    if only_looks {
        notes(out, advice, width)?;
        writeln!(out)?;
    }
    for (at, line) in advice.lines_of_answer().iter().enumerate() {
        let line = wrapped(&visible(line), width);
        writeln!(out, "{}", if at == 0 { style.strong(&line) } else { line })?;
    }
    for (at, finding) in advice.findings.iter().enumerate() {
        writeln!(out)?;
        of_finding(out, at + 1, finding, width, style)?;
    }
    writeln!(out)?;
    balance(out, advice)?;
    if !advice.notes.is_empty() && !only_looks {
        writeln!(out)?;
        notes(out, advice, width)?;
    }
    Ok(())
}

fn notes(out: &mut String, advice: &Advice, width: usize) -> Result {
    for note in &advice.notes {
        let note = format!("Note: {}", visible(note));
        writeln!(out, "{}", wrapped(&note, width))?;
    }
    Ok(())
}

/// Writes the parts of the memory, and their changes since the start.
fn balance(out: &mut String, advice: &Advice) -> Result {
    let resident = advice
        .rss_bytes
        .map_or(String::new(), |rss| format!(", {} resident", bytes(rss)));
    let name = visible(&advice.name);
    writeln!(out, "{name} ({}), {}{resident}", advice.pid, advice.time())?;
    for line in &advice.lines {
        let more = line.bytes_before.map_or(String::new(), |before| {
            change(line.bytes as i64 - before as i64)
        });
        let rate = line.growth_an_hour().map_or(String::new(), |rate| {
            format!("  {} an hour at this rate", change(rate))
        });
        let shown = format!("{}{rate}", line.what);
        writeln!(
            out,
            "{:>11} {more:>12}  {shown:<LINE$}  {}",
            bytes(line.bytes),
            line.evidence
        )?;
    }
    Ok(())
}

fn of_finding(
    out: &mut String,
    number: usize,
    finding: &Finding,
    width: usize,
    style: Style,
) -> Result {
    writeln!(out, "{}", style.strong(&finding.heading(number)))?;
    let lines = [
        visible(&finding.found).into_owned(),
        format!("Do: {}", visible(&finding.remedy)),
        format!("Cost: {}", finding.cost),
        format!("See: {} ({})", finding.evidence, finding.certainty),
    ];
    for line in lines {
        let wrapped = wrapped(&line, width.saturating_sub(INDENT.len()));
        for part in wrapped.lines() {
            writeln!(out, "{INDENT}{part}")?;
        }
    }
    Ok(())
}
