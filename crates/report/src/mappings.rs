//! The part of a report about the process's mappings.

use crate::group_table::groups;
use crate::text::sites;
use crate::units::{bytes, change, counted, percent};
use crate::{GroupRow, ReportModel, SiteRow, Style};
use memhook_foreign::visible;
use serde::Serialize;
use std::fmt::{Result, Write};

/// Mappings made by traced calls, and their share of the address space.
#[derive(Clone, Debug, Serialize)]
pub struct Mappings {
    /// Sums of the mappings.
    pub totals: MappingTotals,
    /// Rows by call stack, largest first; empty if the report has rows of another kind.
    pub sites: Vec<SiteRow>,
    /// Rows of a report that is not by call stack; otherwise empty.
    pub groups: Vec<GroupRow>,
    /// Number of unlisted rows.
    pub more_rows: u64,
    /// The rest of the address space; `None` if the process has ended.
    pub process: Option<AddressSpace>,
    #[serde(skip)]
    report: ReportModel,
}

/// Sums since the attach.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct MappingTotals {
    /// Calls that mapped memory.
    pub mappings: u64,
    /// Calls that unmapped memory, including mappings from before the attach.
    pub unmappings: u64,
    /// Bytes of address space that were mapped.
    pub mapped_bytes: u64,
    /// Part of `mapped_bytes` that was unmapped.
    pub unmapped_bytes: u64,
    /// Part of `mapped_bytes` that is still mapped.
    pub live_bytes: u64,
    /// Number of live pieces.
    pub live_mappings: u64,
    /// Change of `live_bytes` since the last report.
    pub live_growth_bytes: i64,
    /// The largest `live_bytes`.
    pub peak_live_bytes: u64,
    /// Calls of madvise with MADV_DONTNEED or MADV_FREE.
    pub discards: u64,
    /// Bytes whose contents were discarded. The bytes stay mapped.
    pub discarded_bytes: u64,
}

/// The whole address space, as /proc shows it.
#[derive(Clone, Debug, Serialize)]
pub struct AddressSpace {
    /// Bytes of address space.
    pub bytes: u64,
    /// Bytes mapped by traced calls.
    pub traced_bytes: u64,
    /// Bytes that traced calls mapped and that no longer exist, although no traced call unmapped
    /// them.
    pub gone_bytes: u64,
    /// Bytes mapped since the attach by untraced calls.
    pub unseen_bytes: u64,
    /// Untraced parts, largest first.
    pub parts: Vec<AddressSpacePart>,
    /// Number of unlisted parts.
    pub more_parts: u64,
}

/// A part of the address space.
#[derive(Clone, Debug, Serialize)]
pub struct AddressSpacePart {
    /// Kind of this part of the address space: stack, file, heap, before the attach, kernel,
    /// ourselves or unseen.
    pub kind: &'static str,
    /// Thread or path of the part.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
}

impl Mappings {
    /// Creates this part of the report from a report of the mapping ledger. `discarded` has the
    /// number of calls and the number of bytes.
    pub fn new(
        report: ReportModel,
        discarded: (u64, u64),
        process: Option<AddressSpace>,
    ) -> Mappings {
        let totals = report.totals;
        Mappings {
            totals: MappingTotals {
                mappings: totals.allocations,
                unmappings: totals.releases,
                mapped_bytes: totals.allocated_bytes,
                unmapped_bytes: totals.released_bytes,
                live_bytes: totals.live_bytes,
                live_mappings: totals.live_blocks,
                live_growth_bytes: totals.live_growth_bytes,
                peak_live_bytes: totals.peak_live_bytes,
                discards: discarded.0,
                discarded_bytes: discarded.1,
            },
            sites: report.sites.clone(),
            groups: report.groups.clone(),
            more_rows: report.more_rows,
            process,
            report,
        }
    }
}

/// Writes the part of a report about mappings.
pub(crate) fn mappings(out: &mut String, found: &Mappings, style: Style) -> Result {
    let t = &found.totals;
    let growth = match found.report.since_last_s {
        Some(_) => format!("{} since the last report, ", change(t.live_growth_bytes)),
        None => String::new(),
    };
    writeln!(
        out,
        "\n{} {} live in {} ({growth}peak {})",
        style.strong("Mappings:"),
        style.number(&bytes(t.live_bytes)),
        counted(t.live_mappings, "piece"),
        bytes(t.peak_live_bytes),
    )?;
    writeln!(
        out,
        "  {} mapped by {}, {} of it unmapped; {} of unmapping; {} gave back contents of {}",
        bytes(t.mapped_bytes),
        counted(t.mappings, "call"),
        bytes(t.unmapped_bytes),
        counted(t.unmappings, "call"),
        counted(t.discards, "madvise call"),
        bytes(t.discarded_bytes),
    )?;
    if let Some(process) = &found.process {
        address_space(out, process, style)?;
    }
    if found.sites.is_empty() && found.groups.is_empty() {
        return Ok(());
    }
    sites(out, &found.report, style)?;
    groups(out, &found.report, style)
}

fn address_space(out: &mut String, process: &AddressSpace, style: Style) -> Result {
    writeln!(
        out,
        "  {} of address space in all: {} by the call stacks below, {} mapped since the attach by calls that were not \
         seen (direct system calls, the C library, the loader)",
        bytes(process.bytes),
        bytes(process.traced_bytes),
        bytes(process.unseen_bytes),
    )?;
    if process.gone_bytes > 0 {
        let gone = format!(
            "  {} of the memory below no longer exists: it was unmapped by calls that were not seen",
            bytes(process.gone_bytes)
        );
        writeln!(out, "{}", style.warning(&gone))?;
    }
    for part in &process.parts {
        writeln!(
            out,
            "{:>12} {:>5.1} %  {}: {}",
            bytes(part.bytes),
            percent(part.bytes, process.bytes),
            part.kind,
            visible(&part.name)
        )?;
    }
    if process.more_parts > 0 {
        writeln!(
            out,
            "{:>12}  {}",
            "",
            counted(process.more_parts, "more part")
        )?;
    }
    Ok(())
}
