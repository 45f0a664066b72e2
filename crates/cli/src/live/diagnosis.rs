//! Findings of `doctor` about a process.

use memhook_process::{Check, ModuleImage};
use serde_json::Value;

/// Findings about a process.
pub(super) struct Diagnosis {
    /// Checks with their findings. An attach refuses unless all are ok.
    pub(super) checks: Vec<Check>,
    /// Its modules, if they were examined.
    pub(super) modules: Vec<ModuleImage>,
    /// Everything else, as text.
    pub(super) details: String,
    /// Effects of each command on the process, in JSON.
    pub(super) commands: Vec<Value>,
}
