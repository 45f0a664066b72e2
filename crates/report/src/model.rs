//! What a report says; serialized as is, this is the JSON schema `memhook-rs/report/1`.

use serde::Serialize;

/// One report.
#[derive(Clone, Debug, Serialize)]
pub struct ReportModel {
    /// Always `memhook-rs/report/1`.
    pub schema: &'static str,
    /// Last report of this attach.
    #[serde(rename = "final")]
    pub is_final: bool,
    /// The process.
    pub target: Target,
    /// How the attach went.
    pub attach: AttachInfo,
    /// Seconds since the attach.
    pub elapsed_s: f64,
    /// Sums since the attach.
    pub totals: Totals,
    /// What is seen of each module.
    pub coverage: Vec<Coverage>,
    /// Live memory by allocation site, largest first.
    pub sites: Vec<Site>,
    /// Sites beyond those listed.
    pub more_sites: u64,
}

/// The process.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    /// Process id.
    pub pid: i32,
    /// Executable's path.
    pub exe: String,
}

/// How the attach went.
#[derive(Clone, Debug, Serialize)]
pub struct AttachInfo {
    /// Whole attach in ms.
    pub attach_ms: f64,
    /// Time one thread was held, in ms.
    pub held_ms: f64,
    /// Slots patched.
    pub slots: u64,
    /// Modules with at least one slot patched.
    pub modules: u64,
}

/// Sums since the attach.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[allow(missing_docs)] // the names are the definition
pub struct Totals {
    pub allocations: u64,
    pub releases: u64,
    pub allocated_bytes: u64,
    pub released_bytes: u64,
    pub live_bytes: u64,
    pub live_blocks: u64,
    pub peak_live_bytes: u64,
    pub unknown_releases: u64,
    pub lost_events: u64,
    pub truncated_stacks: u64,
    pub reentrant_calls: u64,
}

/// What is seen of a module.
#[derive(Clone, Debug, Serialize)]
pub struct Coverage {
    /// File name.
    pub module: String,
    /// Slots patched.
    pub hooked: u64,
    /// Slots or functions that cannot be hooked.
    pub unhookable: u64,
    /// Why, or empty.
    pub note: String,
}

/// One allocation site.
#[derive(Clone, Debug, Serialize)]
pub struct Site {
    /// Live bytes.
    pub bytes: u64,
    /// Live blocks.
    pub blocks: u64,
    /// Change of the live bytes since the last report.
    pub growth_bytes: i64,
    /// Age of the oldest live block in ms.
    pub oldest_ms: u64,
    /// Allocating function: malloc, new, ...
    pub kind: String,
    /// Innermost first.
    pub stack: Vec<StackFrame>,
}

/// One frame.
#[derive(Clone, Debug, Serialize)]
pub struct StackFrame {
    /// Return address, hexadecimal.
    pub address: String,
    /// File name of the module.
    pub module: Option<String>,
    /// Function.
    pub function: Option<String>,
    /// Source file.
    pub file: Option<String>,
    /// Line.
    pub line: Option<u32>,
    /// Inlined into the next frame.
    pub inlined: bool,
}
