//! Reports as text.

use crate::report::ScanReport;
use memhook_foreign::visible;
use std::fmt::Write;

/// `1.5 MiB` and the like.
pub fn bytes_text(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

/// The leak report.
pub fn text(report: &ScanReport) -> String {
    let mut out = String::new();
    let s = &report.snapshot;
    let t = &report.totals;
    for finding in &report.findings {
        let word = if s.in_malloc > 0 {
            "In change, or damaged,"
        } else {
            "DAMAGE"
        };
        let _ = writeln!(
            out,
            "{word} at {:#x}: {}",
            finding.address,
            visible(&finding.what)
        );
    }
    for note in &report.notes {
        let _ = writeln!(out, "Note: {}", visible(note));
    }
    let _ = writeln!(
        out,
        "Process {}: {} in {} blocks leaked ({} directly), {} in {} blocks reachable",
        report.pid,
        bytes_text(t.leaked_bytes),
        t.leaked_blocks,
        t.direct_blocks,
        bytes_text(t.live_bytes),
        t.live_blocks
    );
    let _ = writeln!(
        out,
        "Snapshot by {}: {} copied in {:.0} ms, {} threads held {:.2} ms for the last {}{}; {} searched in {:.0} ms",
        s.method,
        bytes_text(s.copied_bytes),
        s.taken_ms,
        s.threads,
        s.held_ms,
        bytes_text(s.held_bytes),
        if s.prepare_held_ms > 0.0 {
            format!(" (one thread {:.2} ms before)", s.prepare_held_ms)
        } else {
            String::new()
        },
        bytes_text(s.scanned_bytes),
        s.mark_ms
    );
    for group in &report.leaks {
        let _ = write!(
            out,
            "\n{} in {} blocks of {} B: {}",
            bytes_text(group.bytes),
            group.blocks,
            group.block_bytes,
            visible(&group.kind)
        );
        if let Some(owner) = &group.owner {
            let _ = write!(out, ", held by leaked {}", visible(owner));
        }
        if group.held_blocks > 0 {
            let _ = write!(
                out,
                ", holding {} in {} more blocks",
                bytes_text(group.held_bytes),
                group.held_blocks
            );
        }
        let _ = writeln!(out, "\n    {}  {}", group.example, group.peek);
    }
    if report.more_groups > 0 {
        let _ = writeln!(out, "\n{} more groups (--top)", report.more_groups);
    }
    out
}
