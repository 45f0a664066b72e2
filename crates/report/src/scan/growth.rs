//! Allocations of a process between two snapshots, and their retainers, as text and as JSON with
//! the schema `memhook-rs/snapshot-diff/1`.

use crate::units::{bytes, change, counted};
use crate::{Document, Style};
use memhook_foreign::visible;
use memhook_heap::{Change, HeapGrowth};
use serde::Serialize;
use std::fmt::Write;

/// Name of the JSON schema.
const SCHEMA: &str = "memhook-rs/snapshot-diff/1";

/// Comparison of two snapshots of a process.
#[derive(Clone, Debug, Serialize)]
pub struct GrowthReport {
    /// Name of the schema.
    pub schema: &'static str,
    /// The process.
    pub pid: i32,
    /// Changes of the process's blocks.
    #[serde(flatten)]
    pub growth: HeapGrowth,
}

impl GrowthReport {
    /// Creates the report of a process's growth.
    pub fn new(pid: i32, growth: HeapGrowth) -> GrowthReport {
        GrowthReport {
            schema: SCHEMA,
            pid,
            growth,
        }
    }
}

impl Document for GrowthReport {
    fn text(&self, _: Style) -> String {
        let mut out = String::new();
        let growth = &self.growth;
        let by = i128::from(growth.new.bytes) - i128::from(growth.old.bytes);
        let _ = writeln!(
            out,
            "Process {}: {}, from {} in {} to {} in {}; {} in {} are new, {} in {} are gone",
            self.pid,
            change(by as i64),
            bytes(growth.old.bytes),
            counted(growth.old.blocks, "block"),
            bytes(growth.new.bytes),
            counted(growth.new.blocks, "block"),
            bytes(growth.added.bytes),
            counted(growth.added.blocks, "block"),
            bytes(growth.gone.bytes),
            counted(growth.gone.blocks, "block"),
        );
        head(&mut out, "held by");
        for row in &growth.holders {
            line(&mut out, &row.change, &row.name, "");
            for kind in &row.types {
                line(&mut out, &kind.change, &kind.name, "    ");
            }
        }
        more(&mut out, growth.more_holders, "more holder");
        head(&mut out, "type");
        for row in &growth.types {
            line(&mut out, &row.change, &row.name, "");
        }
        more(&mut out, growth.more_types, "more type");
        out
    }
}

fn head(out: &mut String, what: &str) {
    let _ = writeln!(
        out,
        "\n      change     blocks        new       gone  {what}"
    );
}

fn line(out: &mut String, row: &Change, name: &str, indent: &str) {
    let _ = writeln!(
        out,
        "{:>12} {:>+10} {:>10} {:>10}  {indent}{}",
        change(row.change_bytes),
        row.change_blocks,
        bytes(row.added.bytes),
        bytes(row.gone.bytes),
        visible(name)
    );
}

fn more(out: &mut String, rows: u64, what: &str) {
    if rows > 0 {
        let _ = writeln!(out, "{:47}{} (--top)", "", counted(rows, what));
    }
}
