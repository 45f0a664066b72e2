//! Reports: pure functions from a model to bytes.

mod json;
mod model;
mod text;
mod units;

pub use json::json;
pub use model::{
    AttachInfo, Coverage, Group, ReleaseSite, ReportModel, Sampling, Site, StackFrame, Target,
    Totals,
};
pub use text::{Style, text};
pub use units::{bytes, milliseconds};
