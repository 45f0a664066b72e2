//! Preview of `probe --dry-run`: the bytes that a probe would write for each function.

use crate::probes::RefusedRow;
use crate::{Document, Style};
use memhook_foreign::visible;
use serde::Serialize;
use std::fmt::Write;

/// Preview of the changes to a process.
#[derive(Clone, Debug, Serialize)]
pub struct ProbePlanReport {
    /// `memhook-rs/probe-plan/1`.
    pub schema: &'static str,
    /// The process.
    pub pid: i32,
    /// The functions that would be probed.
    pub probes: Vec<ProbePlanRow>,
    /// Functions that could not be probed.
    pub refused: Vec<RefusedRow>,
}

/// One function.
#[derive(Clone, Debug, Serialize)]
pub struct ProbePlanRow {
    /// Name of the function.
    pub function: String,
    /// File name of the function's module.
    pub module: String,
    /// Address of the jump in the process.
    pub address: String,
    /// The bytes that it overwrites.
    pub bytes: String,
    /// The jump.
    pub jump: String,
    /// The instructions that the jump displaces.
    pub displaced: Vec<String>,
    /// Address of the pad.
    pub pad_address: String,
    /// Machine code of the pad.
    pub pad: String,
    /// Machine code of the pad, as assembly text.
    pub pad_assembly: Vec<String>,
}

impl ProbePlanReport {
    /// The schema of the JSON form.
    pub const SCHEMA: &'static str = "memhook-rs/probe-plan/1";
}

impl Document for ProbePlanReport {
    fn text(&self, _: Style) -> String {
        let mut out = String::new();
        for row in &self.probes {
            let _ = writeln!(out, "{} ({})", visible(&row.function), visible(&row.module));
            let _ = writeln!(out, "  {}  {}  ->  {}", row.address, row.bytes, row.jump);
            for instruction in &row.displaced {
                let _ = writeln!(out, "    displaced: {instruction}");
            }
            let _ = writeln!(out, "  pad at {}: {}", row.pad_address, row.pad);
            for instruction in &row.pad_assembly {
                let _ = writeln!(out, "    {instruction}");
            }
            out.push('\n');
        }
        for row in &self.refused {
            let _ = writeln!(
                out,
                "{} ({}): refused: {}",
                visible(&row.function),
                visible(&row.module),
                visible(&row.why)
            );
        }
        out
    }
}
