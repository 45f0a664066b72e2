//! The account as text.

use super::{RssReport, release_call};
use crate::Style;
use crate::units::{bytes, count, percent};
use memhook_foreign::visible;
use memhook_heap::Part;
use std::fmt::Write;

/// Writes the whole report.
pub fn text(report: &RssReport, _: Style) -> String {
    let mut out = String::new();
    // The limits of a read-only copy come before its results.
    let only_looks = report
        .notes
        .iter()
        .any(|note| note.starts_with("read only"));
    if only_looks {
        notes(&mut out, report);
    }
    // Writing into a String cannot fail.
    let _ = head(&mut out, report);
    let _ = parts(&mut out, report);
    let _ = arenas(&mut out, report);
    let _ = allocator(&mut out, report);
    let _ = other_allocators(&mut out, report);
    let _ = holdings(&mut out, report);
    // Without a copy of the memory, pins are unknown, and a note says why.
    if report.lists_pins && report.snapshot.is_some() {
        let _ = pins(&mut out, report);
    }
    if !only_looks {
        notes(&mut out, report);
    }
    out
}

fn notes(out: &mut String, report: &RssReport) {
    for note in &report.notes {
        let _ = writeln!(out, "Note: {}", visible(note));
    }
}

fn head(out: &mut String, report: &RssReport) -> std::fmt::Result {
    let shares = report.private_dirty_bytes.zip(report.pss_bytes);
    let shares = shares.map_or(String::new(), |(private_dirty, pss)| {
        format!(
            ", {} of it written by this process alone; {} if shared pages are divided",
            bytes(private_dirty),
            bytes(pss)
        )
    });
    let zeros = report.huge_zero_bytes.filter(|&zeros| zeros > 0);
    let zeros = zeros.map_or(String::new(), |zeros| {
        format!(" ({} of it zeros that were never written)", bytes(zeros))
    });
    writeln!(
        out,
        "Process {}: {} resident{shares}, {} swapped out, {} in huge pages{zeros}",
        report.pid,
        bytes(report.rss_bytes),
        bytes(report.swap_bytes),
        bytes(report.huge_page_bytes),
    )?;
    if let Some(earlier) = earlier(report) {
        let live = part(report, Part::LiveHeap.name()).unwrap_or(0);
        writeln!(
            out,
            "Live heap: {} since the attach, {} before it (by size, from the heap's own structures)",
            bytes(live),
            bytes(earlier)
        )?;
    }
    if report.hugetlb_bytes > 0 {
        writeln!(
            out,
            "{} of hugetlbfs are not counted as resident",
            bytes(report.hugetlb_bytes)
        )?;
    }
    if let Some(snapshot) = &report.snapshot {
        writeln!(
            out,
            "Snapshot by {}: all threads held {:.2} ms, one thread {:.2} ms before",
            snapshot.method, snapshot.held_ms, snapshot.prepare_held_ms
        )?;
    }
    Ok(())
}

fn parts(out: &mut String, report: &RssReport) -> std::fmt::Result {
    writeln!(out, "\n       bytes   share  part")?;
    for part in report.parts.iter().filter(|part| part.bytes > 0) {
        writeln!(
            out,
            "{:>12} {:>5.1} %  {}",
            bytes(part.bytes),
            percent(part.bytes, report.rss_bytes),
            in_words(report, &part.name)
        )?;
    }
    Ok(())
}

fn part(report: &RssReport, name: &str) -> Option<u64> {
    let found = report.parts.iter().find(|part| part.name == name)?;
    Some(found.bytes)
}

/// Returns the live bytes from before the attach, if they are known.
fn earlier(report: &RssReport) -> Option<u64> {
    part(report, Part::EarlierHeap.name())
}

/// Names a part, and describes its contents if the heap was not examined.
fn in_words(report: &RssReport, name: &str) -> String {
    let more = match name {
        _ if report.snapshot.is_some() => "",
        name if name == Part::LiveHeap.name() => ", by the allocations of the trace",
        "live heap from before the attach" => ", by the allocator's own structures",
        "rest of the allocator's memory" if earlier(report).is_some() => ": free memory, headers",
        "rest of the allocator's memory" => {
            ": blocks whose allocation was not traced, free memory, headers"
        }
        _ => "",
    };
    format!("{name}{more}")
}

fn arenas(out: &mut String, report: &RssReport) -> std::fmt::Result {
    if report.arenas.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n{:<16} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}",
        "arena", "resident", "live", "top", "bins", "tcache", "fragmented", "trimmable"
    )?;
    for arena in &report.arenas {
        writeln!(
            out,
            "{:<16} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}",
            format!("{:#x}", arena.address),
            bytes(arena.resident_bytes),
            bytes(arena.live_bytes),
            bytes(arena.top_bytes),
            bytes(arena.bins_bytes),
            bytes(arena.tcache_bytes),
            bytes(arena.fragmentation_bytes),
            bytes(arena.trim_bytes)
        )?;
    }
    let mapped = bytes(report.mapped_bytes);
    writeln!(out, "{:<16} {mapped:>11} {mapped:>11}", "mapped alone")?;
    if report.other_allocators.iter().any(|one| one.is_trimmed) {
        return Ok(());
    }
    writeln!(
        out,
        "A malloc_trim would give back {} (memhook-rs trim {})",
        bytes(report.trim_bytes),
        report.pid
    )
}

/// Writes how the free pages of other allocators go back.
fn other_allocators(out: &mut String, report: &RssReport) -> std::fmt::Result {
    let asked = report.allocator.as_ref().map(|said| &said.name);
    for one in &report.other_allocators {
        if one.bytes == 0 || asked == Some(&one.name) {
            continue;
        }
        write!(out, "{} keeps {} of free pages", one.name, bytes(one.bytes))?;
        if let Some(call) = release_call(&one.name) {
            write!(
                out,
                ", which malloc_trim does not give back; it does with {call}"
            )?;
        }
        match one.is_trimmed {
            true => writeln!(out, " (memhook-rs trim {} asks it)", report.pid)?,
            false => writeln!(out)?,
        }
    }
    Ok(())
}

fn allocator(out: &mut String, report: &RssReport) -> std::fmt::Result {
    let Some(said) = &report.allocator else {
        return Ok(());
    };
    writeln!(out, "\n       bytes  as {} counts", said.name)?;
    for counter in &said.counters {
        writeln!(out, "{:>12}  {}", bytes(counter.bytes), counter.name)?;
    }
    writeln!(
        out,
        "It would give back {} if it were asked to (memhook-rs trim {}); one thread was held {:.2} ms to ask it",
        bytes(report.trim_bytes),
        report.pid,
        said.held_ms
    )
}

fn holdings(out: &mut String, report: &RssReport) -> std::fmt::Result {
    if report.holdings.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n       bytes  outside of the heap")?;
    for holding in &report.holdings {
        writeln!(
            out,
            "{:>12}  {} ({})",
            bytes(holding.bytes),
            visible(&holding.name),
            holding.part
        )?;
    }
    if report.more_holdings > 0 {
        writeln!(out, "{:>12}  {} more", "", count(report.more_holdings))?;
    }
    Ok(())
}

fn pins(out: &mut String, report: &RssReport) -> std::fmt::Result {
    writeln!(out, "\n      pinned   trimmable         own     blocks  by")?;
    for pin in &report.pins {
        writeln!(
            out,
            "{:>12} {:>11} {:>11} {:>10}  {}",
            bytes(pin.pinned_bytes),
            bytes(pin.trimmable_bytes),
            bytes(pin.own_bytes),
            count(pin.own_blocks),
            visible(&pin.name)
        )?;
    }
    if report.more_pins > 0 {
        writeln!(out, "{:>12}  {} more", "", count(report.more_pins))?;
    }
    writeln!(
        out,
        "Pinned is the free memory around these blocks that goes back if they are freed and the heap is trimmed; \
         trimmable is the part of it that a trim alone gives back.",
    )
}
