//! Unreachable blocks in a report.

use crate::claims::{Seen, unseen_blocks};
use crate::site_head::{SiteHead, SiteRow as HeadRow, heads_of};
use crate::stacks::{StackEnd, stack};
use crate::text::is_table;
use crate::units::{bytes, count, counted, percent};
use crate::{ReportModel, StackFrame, Style};
use memhook_foreign::visible;
use serde::{Deserialize, Serialize};
use std::fmt::{Result, Write};

/// Leaks at the end of a trace: the heap of glibc's malloc, and the traced blocks of other
/// allocators.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Leaks {
    /// Facts about the memory snapshot; `None` if the memory could not be copied.
    pub snapshot: Option<SnapshotTaken>,
    /// Sums.
    pub totals: LeakTotals,
    /// Leaks, grouped by the call stack of the blocks that no other leaked block points to, largest
    /// first.
    pub sites: Vec<LeakSite>,
    /// Number of unlisted sites.
    pub more_sites: u64,
    /// Blocks that are reachable only through interior pointers, by call stack, largest first.
    /// Empty unless the user asked for them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub possible: Vec<LeakSite>,
    /// Number of unlisted call stacks of possibly lost blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub more_possible: Option<u64>,
    /// Parts of the memory that were not seen.
    pub gaps: Vec<String>,
}

/// Details of the copy of the memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SnapshotTaken {
    /// Method: precopy, fork or stop.
    pub method: String,
    /// Milliseconds for which all threads were held.
    pub held_ms: f64,
    /// Milliseconds for which one thread was held before that.
    pub prepare_held_ms: f64,
    /// Bytes copied.
    pub copied_bytes: u64,
}

/// Sums in bytes. A block whose allocation was traced counts as its requested size, any other block
/// as its usable size.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct LeakTotals {
    /// Unreachable bytes.
    pub leaked_bytes: u64,
    /// Number of unreachable blocks.
    pub leaked_blocks: u64,
    /// Number of unreachable blocks that no other leaked block points to.
    pub direct_blocks: u64,
    /// Reachable bytes.
    pub reachable_bytes: u64,
    /// Number of reachable blocks.
    pub reachable_blocks: u64,
}

/// Leaked blocks of one call stack.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LeakSite {
    /// Bytes of blocks that no other leaked block points to.
    pub bytes: u64,
    /// Number of these blocks.
    pub blocks: u64,
    /// Bytes of further leaked blocks, from any call stack, that are reachable only through these
    /// blocks.
    pub held_bytes: u64,
    /// Number of these further blocks.
    pub held_blocks: u64,
    /// Allocating function, or `an unknown caller`.
    pub kind: String,
    /// True if the stack is longer than shown, but the unwinder could not follow it.
    pub truncated: bool,
    /// Frames, innermost first; empty if the allocation was not traced.
    pub stack: Vec<StackFrame>,
}

/// Text shown in place of the allocating function for untraced blocks.
const UNSEEN: &str = "an unknown caller";

fn is_unseen(site: &LeakSite) -> bool {
    site.kind == UNSEEN && site.stack.is_empty()
}

/// Writes the row of a leaking site, and leaves out the call stack if a row above already shows it.
fn leak_row(
    out: &mut String,
    row: HeadRow,
    (site, head): (&LeakSite, &SiteHead),
    rows: &Shown<'_>,
    style: Style,
) -> Result {
    writeln!(out)?;
    if is_unseen(site) {
        let share = row.share.map_or(String::new(), |share| format!(" {share}"));
        return writeln!(
            out,
            "{} {}{share}  {}  {}",
            style.strong(&row.label),
            style.number(&row.amount),
            unseen_blocks(rows.seen).sentence,
            row.facts.concat()
        );
    }
    let above = rows.number_of(site);
    let by = match above {
        Some(number) => format!(", stack: #{number} above"),
        None => format!(", by {}", visible(&site.kind)),
    };
    let facts = row.facts.into_iter().chain([by]).collect();
    HeadRow { facts, ..row }.write(out, head, style)?;
    if above.is_some() {
        return Ok(());
    }
    let end = StackEnd::of(&site.stack, site.truncated, rows.depth);
    stack(out, &site.stack, end, style)
}

/// Rows that the report has already printed, with their stacks.
pub(crate) struct Shown<'a> {
    /// The sites of the report.
    sites: &'a [crate::SiteRow],
    /// True if their call stacks are known.
    has_stacks: bool,
    /// Maximum number of frames collected from each stack.
    depth: u32,
    /// True if the rows describe an earlier time.
    ends_early: bool,
    /// Facts about leaks that may have been missed.
    seen: Seen,
}

impl<'a> Shown<'a> {
    /// Returns the parts of a report that are printed above the leaks.
    pub fn of(model: &'a ReportModel, style: Style) -> Shown<'a> {
        Shown {
            sites: &model.sites,
            has_stacks: !is_table(model, style),
            depth: model.attach.depth,
            ends_early: model.ends_early,
            seen: Seen::of(model),
        }
    }

    fn number_of(&self, site: &LeakSite) -> Option<usize> {
        let sites = self.sites.iter().filter(|_| self.has_stacks);
        let is_same = |row: &crate::SiteRow| {
            let addresses = |frames: &[StackFrame]| -> Vec<_> {
                frames.iter().map(|f| f.address.clone()).collect()
            };
            row.kind == site.kind && addresses(&row.stack) == addresses(&site.stack)
        };
        let mut numbered = sites.zip(1..);
        numbered.find_map(|(row, number)| is_same(row).then_some(number))
    }
}

/// Writes the part of a report about leaks.
pub(crate) fn leaks(out: &mut String, leaks: &Leaks, rows: &Shown<'_>, style: Style) -> Result {
    let t = &leaks.totals;
    writeln!(out)?;
    for gap in &leaks.gaps {
        writeln!(out, "{}", style.warning(&visible(&format!("Leaks: {gap}"))))?;
    }
    let Some(snapshot) = &leaks.snapshot else {
        return Ok(());
    };
    writeln!(
        out,
        "{} {} in {} ({} directly), {} in {} reachable {}",
        style.strong(match rows.ends_early {
            true => "Leaked at the end of the run:",
            false => "Leaked:",
        }),
        style.number(&bytes(t.leaked_bytes)),
        counted(t.leaked_blocks, "block"),
        count(t.direct_blocks),
        bytes(t.reachable_bytes),
        counted(t.reachable_blocks, "block"),
        style.faint(&format!(
            "({} copied by {}, all threads held {:.1} ms)",
            bytes(snapshot.copied_bytes),
            snapshot.method,
            snapshot.held_ms
        )),
    )?;
    let heads =
        |sites: &[LeakSite]| heads_of(sites.iter().map(|site| (&site.kind, &site.stack)), style);
    for (i, (site, head)) in leaks.sites.iter().zip(heads(&leaks.sites)).enumerate() {
        let holding = match site.held_blocks {
            0 => String::new(),
            n => format!(
                ", holding {} in {}",
                bytes(site.held_bytes),
                counted(n, "more block")
            )
            .replace("more blocks", "more"),
        };
        let share = percent(site.bytes + site.held_bytes, t.leaked_bytes);
        let row = HeadRow {
            label: format!("L{}", i + 1),
            amount: bytes(site.bytes),
            share: Some(format!("{share:.1} %")),
            facts: vec![counted(site.blocks, "block") + &holding],
        };
        leak_row(out, row, (site, &head), rows, style)?;
    }
    if leaks.more_sites > 0 {
        let more = format!(
            "\n{} more (--top)",
            counted(leaks.more_sites, "leaking site")
        );
        writeln!(out, "{}", style.faint(&more))?;
    }
    for (i, (site, head)) in leaks
        .possible
        .iter()
        .zip(heads(&leaks.possible))
        .enumerate()
    {
        let blocks = counted(site.blocks, "block");
        let row = HeadRow {
            label: format!("P{}", i + 1),
            amount: bytes(site.bytes),
            share: None,
            facts: vec![format!(
                "{blocks} possibly lost: only pointers into blocks reach them"
            )],
        };
        leak_row(out, row, (site, &head), rows, style)?;
    }
    if let Some(more) = leaks.more_possible.filter(|&more| more > 0) {
        let more = counted(more, "more site");
        let more = format!("\n{more} of possibly lost blocks (--top)");
        writeln!(out, "{}", style.faint(&more))?;
    }
    Ok(())
}
