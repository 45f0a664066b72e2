//! Memory retained by holders, types and blocks of a heap: JSON with the schema `memhook-rs/retained/1`, and text.

use super::census::told_text;
use super::not_reported::{in_no_heap, not_searched};
use crate::units::{bytes, count, counted, percent};
use crate::{Document, Style};
use memhook_foreign::visible;
use memhook_heap::{
    Heap, HolderRow, LargestBlock, PictureNode, Retained, Snapshot, StructureStep, Sum, TypeRow,
    Types, TypesTold,
};
use serde::Serialize;
use std::fmt::Write;

/// Name of the JSON schema.
const SCHEMA: &str = "memhook-rs/retained/1";
/// Number of variables of a module that the text lists.
const VARIABLES: usize = 8;
/// Maximum number of holders named in the text for a block that several holders point to.
const NAMES: usize = 3;
/// Name of the row for blocks that several holders or variables reach, but no single one retains.
const TOGETHER: &str = "several of these together";

/// The whole report.
#[derive(Clone, Debug, Serialize)]
pub struct RetainedReport {
    /// Name of the schema.
    pub schema: &'static str,
    /// The process.
    pub pid: i32,
    /// Usable bytes of all blocks.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Blocks that several holders reach, but no single one retains.
    pub shared: Sum,
    /// Holders of blocks, sorted by the memory that they retain.
    pub holders: Vec<HolderRow>,
    /// Number of unlisted holders.
    pub more_holders: u64,
    /// Types, sorted by the memory that their blocks retain.
    pub types: Vec<TypeRow>,
    /// Number of unlisted types.
    pub more_types: u64,
    /// Share of the heap with known types.
    pub types_told: TypesTold,
    /// Blocks that no other block retains, sorted by the memory that they retain.
    pub largest: Vec<LargestBlock>,
    /// A bounded tree of retainers and retained blocks.
    pub picture: Vec<PictureNode>,
    /// Milliseconds that the search took.
    pub search_ms: f64,
    /// True if the whole heap could be parsed.
    pub whole: bool,
    /// Further notes.
    pub notes: Vec<String>,
}

impl RetainedReport {
    /// Builds the report, with the `top` largest of each kind.
    pub fn new(
        snapshot: &Snapshot,
        heap: &Heap,
        retained: &Retained,
        types: &Types,
        top: usize,
    ) -> RetainedReport {
        let Sum {
            bytes: all_bytes,
            blocks,
        } = retained.all();
        let (holders, more_holders) = retained.holders(top);
        let (type_rows, more_types) = retained.types(types, top);
        let mut notes = snapshot.meta.notes.clone();
        notes.extend(not_searched(snapshot, heap));
        notes.extend(in_no_heap(snapshot, heap, all_bytes));
        RetainedReport {
            schema: SCHEMA,
            pid: snapshot.meta.pid,
            bytes: all_bytes,
            blocks,
            shared: retained.shared(),
            holders,
            more_holders,
            types: type_rows,
            more_types,
            types_told: retained.types_told(types),
            largest: retained.largest_blocks(heap, types, top),
            picture: retained.picture(heap, types),
            search_ms: retained.took.as_secs_f64() * 1e3,
            whole: heap.is_whole(),
            notes,
        }
    }

    fn head(&self, out: &mut String) {
        for note in &self.notes {
            let _ = writeln!(out, "Note: {}", visible(note));
        }
        let whole = match self.whole {
            true => "",
            false => " (part of the heap could not be parsed)",
        };
        let _ = write!(
            out,
            "Process {}: {} in {}{whole}",
            self.pid,
            bytes(self.bytes),
            counted(self.blocks, "block")
        );
        let share = |part| format!("{:.0} %", percent(part, self.bytes));
        let first = self.holders.first();
        if first.is_none_or(|first| first.retained_bytes < self.shared.bytes) {
            let (size, share) = (bytes(self.shared.bytes), share(self.shared.bytes));
            let _ = write!(
                out,
                "; {size} ({share}) is held by several holders together"
            );
            self.most_of(None, self.shared.bytes, out);
        } else if let Some(first) = first {
            let holder = first.variables.first().filter(|variable| {
                variable.retained_bytes.saturating_mul(2) >= first.retained_bytes
            });
            let (name, retained) = match holder {
                Some(v) => (
                    format!("{} of {}", v.name, file_name(&first.name)),
                    v.retained_bytes,
                ),
                None => (first.name.clone(), first.retained_bytes),
            };
            let (name, size) = (visible(&name), bytes(retained));
            let _ = write!(out, "; {name} retains {size} ({})", share(retained));
            if holder.is_none() {
                self.most_of(Some(&first.name), retained, out);
            }
        }
        out.push('\n');
        told_text(out, &self.types_told, self.bytes);
    }

    /// Names the pointers to the block through which its holder holds most of its memory, or through which several
    /// holders together do.
    fn most_of(&self, holder: Option<&str>, held: u64, out: &mut String) {
        let is_most = |block: &&LargestBlock| {
            block.held_by.as_deref() == holder && block.retained_bytes.saturating_mul(2) >= held
        };
        let block = self.largest.iter().find(is_most);
        if let Some(block) = block.filter(|block| !block.pointed_to_by.is_empty()) {
            let size = bytes(block.retained_bytes);
            let _ = write!(out, ", {size} of it by {}", names(&block.pointed_to_by));
        }
    }

    fn holder_table(&self, out: &mut String) {
        let _ = writeln!(out, "\n    retained     blocks  held by");
        for row in &self.holders {
            line(
                out,
                (row.retained_bytes, row.retained_blocks),
                &row.name,
                "",
            );
            // If a single variable holds everything, the line above names it.
            for variable in row.variables.iter().take(VARIABLES) {
                let sum = (variable.retained_bytes, variable.retained_blocks);
                line(out, sum, &variable.name, "    ");
            }
            let together = row.together.filter(|sum| sum.blocks > 0);
            if let Some(Sum { bytes, blocks }) = together {
                line(out, (bytes, blocks), TOGETHER, "    ");
            }
            let more = row.variables.len().saturating_sub(VARIABLES) as u64 + row.more_variables;
            if more > 0 {
                let text = counted(more, "more variable");
                let _ = writeln!(out, "{:25}    {text}", "");
            }
        }
        if self.shared.blocks > 0 {
            let sum = (self.shared.bytes, self.shared.blocks);
            line(out, sum, TOGETHER, "");
        }
        more(out, self.more_holders, "more holder");
    }
}

/// Lists the holders of a shared block, or the first of them if there are many.
fn names(names: &[String]) -> String {
    // The remaining holders lead to the block through other blocks.
    if let [one] = names {
        return format!("{} and others", visible(one));
    }
    let (first, more) = names.split_at(names.len().min(NAMES));
    let first: Vec<String> = first.iter().map(|name| visible(name).to_string()).collect();
    let last = match more.len() {
        0 => None,
        more => Some(format!("{} more", count(more as u64))),
    };
    let all: Vec<String> = first.into_iter().chain(last).collect();
    match all.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        _ => all.concat(),
    }
}

fn line(out: &mut String, (size, blocks): (u64, u64), name: &str, indent: &str) {
    let _ = writeln!(
        out,
        "{:>12} {:>10}  {indent}{}",
        bytes(size),
        count(blocks),
        visible(name)
    );
}

fn more(out: &mut String, rows: u64, what: &str) {
    if rows > 0 {
        let _ = writeln!(out, "{:25}{} (--top)", "", counted(rows, what));
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

impl Document for RetainedReport {
    fn text(&self, _: Style) -> String {
        let mut out = String::new();
        self.head(&mut out);
        self.holder_table(&mut out);
        let _ = writeln!(out, "\n    retained        own     blocks  type");
        for row in &self.types {
            let _ = writeln!(
                out,
                "{:>12} {:>10} {:>10}  {}",
                bytes(row.retained_bytes),
                bytes(row.bytes),
                count(row.blocks),
                visible(&row.name)
            );
        }
        more(&mut out, self.more_types, "more type");
        let _ = writeln!(out, "\nLargest of what only these hold");
        for block in &self.largest {
            largest_text(block, &mut out);
        }
        out
    }
}

fn largest_text(block: &LargestBlock, out: &mut String) {
    let holder = match (&block.pointed_to_by[..], &block.held_by) {
        ([], Some(holder)) => visible(holder).to_string(),
        ([], None) => "several together".into(),
        (pointing, _) => names(pointing),
    };
    let _ = writeln!(
        out,
        "{:>12} {:>10}  {holder}",
        bytes(block.retained_bytes),
        count(block.retained_blocks),
    );
    for step in &block.path {
        let _ = writeln!(out, "{:25}-> {}", "", step_text(step));
    }
}

fn step_text(step: &StructureStep) -> String {
    let what = format!("{} B, {}", count(step.block_bytes), visible(&step.name));
    match step.blocks {
        1 => format!(
            "{} ({what}), retains {}",
            step.address,
            bytes(step.retained_bytes)
        ),
        blocks => format!(
            "{} and {} like it ({what}), retain {}",
            step.address,
            count(blocks - 1),
            bytes(step.retained_bytes)
        ),
    }
}
