//! The report of a scan as text.

use crate::scan::{LeakGroup, Place, ScanReport};
use crate::units::{bytes, count, counted};
use crate::{Document, Style};
use memhook_foreign::visible;
use memhook_heap::Method;
use std::fmt::Write;

impl Document for ScanReport {
    fn text(&self, _: Style) -> String {
        scan_text(self)
    }
}

/// Returns the leak report.
fn scan_text(report: &ScanReport) -> String {
    let mut out = String::new();
    let s = &report.snapshot;
    let t = &report.totals;
    for part in &report.not_searched {
        let _ = writeln!(out, "NOT SEARCHED: {}", visible(part));
    }
    for Place {
        address,
        what,
        cause,
    } in &report.findings
    {
        let _ = writeln!(out, "At {address:#x}, {cause}: {}", visible(what));
    }
    for note in &report.notes {
        let _ = writeln!(out, "Note: {}", visible(note));
    }
    let _ = writeln!(
        out,
        "Process {}: {} in {} leaked ({} directly), {} in {} reachable",
        report.pid,
        bytes(t.leaked_bytes),
        counted(t.leaked_blocks, "block"),
        count(t.direct_blocks),
        bytes(t.live_bytes),
        counted(t.live_blocks, "block"),
    );
    if s.method == Method::Core.name() {
        let _ = writeln!(
            out,
            "Core dump: {} of {} read in {:.0} ms; {} searched in {:.0} ms",
            bytes(s.copied_bytes),
            counted(s.threads, "thread"),
            s.taken_ms,
            bytes(s.scanned_bytes),
            s.mark_ms
        );
    } else {
        let _ = writeln!(
            out,
            "Snapshot by {}: {} copied in {:.0} ms, {} held {:.2} ms for the last {}{}; {} searched in {:.0} ms",
            s.method,
            bytes(s.copied_bytes),
            s.taken_ms,
            counted(s.threads, "thread"),
            s.held_ms,
            bytes(s.held_bytes),
            if s.prepare_held_ms > 0.0 {
                format!(" (one thread {:.2} ms before)", s.prepare_held_ms)
            } else {
                String::new()
            },
            bytes(s.scanned_bytes),
            s.mark_ms
        );
    }
    groups(&report.leaks, &mut out);
    if report.more_groups > 0 {
        let _ = writeln!(
            out,
            "\n{} (--top)",
            counted(report.more_groups, "more group")
        );
    }
    if let Some(possible) = &report.possible {
        let _ = writeln!(
            out,
            "\nOf what is reachable, {} in {} possibly lost: only pointers into blocks reach them",
            bytes(possible.bytes),
            match possible.blocks {
                1 => "1 block is".to_owned(),
                blocks => format!("{} blocks are", count(blocks)),
            }
        );
        groups(&possible.groups, &mut out);
        if possible.more_groups > 0 {
            let _ = writeln!(
                out,
                "\n{} (--top)",
                counted(possible.more_groups, "more group")
            );
        }
    }
    out
}

fn groups(groups: &[LeakGroup], out: &mut String) {
    for group in groups {
        let _ = write!(
            out,
            "\n{} in {} of {} B: {}",
            bytes(group.bytes),
            counted(group.blocks, "block"),
            count(group.block_bytes),
            visible(&group.kind)
        );
        if let Some(owner) = &group.owner {
            let _ = write!(out, ", held by leaked {}", visible(owner));
        }
        if group.held_blocks > 0 {
            let _ = write!(
                out,
                ", holding {} in {}",
                bytes(group.held_bytes),
                counted(group.held_blocks, "more block")
            );
        }
        let _ = writeln!(out, "\n    {}  {}", group.example, group.peek);
    }
}
