//! The census of a heap as text.

use crate::units::{bytes, count, counted, percent};
use crate::{Document, Style};
use memhook_foreign::visible;
use memhook_heap::{Census, CensusClass, TypesTold};
use serde::Serialize;
use std::fmt::Write;

/// The census of a heap, with the resident memory of its process.
#[derive(Serialize)]
pub struct CensusReport {
    /// The census.
    #[serde(flatten)]
    pub census: Census,
    /// Resident memory; absent for a saved snapshot.
    pub rss: Option<crate::RssReport>,
}

impl Document for CensusReport {
    fn text(&self, style: Style) -> String {
        let census = census_text(&self.census);
        match &self.rss {
            Some(account) => format!("{census}\n{}", account.text(style)),
            None => census,
        }
    }
}

/// Names the allocators of the blocks.
fn allocators(census: &Census) -> String {
    let glibc = (!census.glibc.is_empty()).then(|| format!("glibc {}", census.glibc));
    let all: Vec<String> = glibc
        .into_iter()
        .chain(census.others.iter().cloned())
        .collect();
    all.join(", ")
}

/// Writes a line about unused debug information, followed by a line about the share of blocks with
/// known types.
pub(super) fn told_text(out: &mut String, told: &TypesTold, all: u64) {
    for note in &told.notes {
        let _ = writeln!(out, "Note: {}", visible(note));
    }
    let share = |part| format!("{:.0} %", percent(part, all));
    let _ = writeln!(
        out,
        "Types are known for {} of the bytes: {} by vtables, {} by declarations",
        share(told.bytes),
        share(told.vtable_bytes),
        share(told.declared_bytes)
    );
}

/// Returns the census as text.
fn census_text(census: &Census) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "Process {} ({}): {} in {}; malloc keeps {} free, {:.1} % of its memory is free between blocks{}",
        census.pid,
        allocators(census),
        bytes(census.bytes),
        counted(census.blocks, "block"),
        bytes(census.free_bytes),
        census.fragmentation * 100.0,
        if census.whole {
            ""
        } else {
            " (part of the heap could not be parsed)"
        }
    );
    told_text(&mut out, &census.types_told, census.bytes);
    fn table<'c>(out: &mut String, title: &str, classes: impl Iterator<Item = &'c CensusClass>) {
        let _ = writeln!(out, "\n{title}");
        for class in classes {
            let _ = writeln!(
                out,
                "{:>12} {:>10}  {}",
                bytes(class.bytes),
                count(class.blocks),
                visible(&class.name)
            );
        }
    }
    let types = census.types.iter().map(|row| &row.class);
    table(&mut out, "       bytes     blocks  type", types);
    table(
        &mut out,
        "       bytes     blocks  size",
        census.sizes.iter(),
    );
    let _ = writeln!(
        out,
        "\n{:<16} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}",
        "arena", "system", "used", "in bins", "in caches", "fast", "top"
    );
    for arena in &census.arenas {
        let c = &arena.counts;
        let _ = writeln!(
            out,
            "{:<16} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}",
            format!("{:#x}", arena.address),
            bytes(arena.system_bytes),
            bytes(c.used_bytes),
            bytes(c.free_bytes),
            bytes(c.cached_bytes),
            bytes(c.fast_bytes),
            bytes(c.top_bytes)
        );
    }
    let _ = writeln!(
        out,
        "{:<16} {:>11} in {}",
        "mapped alone",
        bytes(census.mmapped.1),
        counted(census.mmapped.0, "block")
    );
    let _ = writeln!(out, "\nLargest blocks");
    for (address, size, kind) in &census.largest {
        let _ = writeln!(out, "{:>12}  {address}  {kind}", bytes(*size));
    }
    out
}
