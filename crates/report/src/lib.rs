//! Reports: pure functions from a model to bytes.

mod json;
mod model;
mod text;
mod units;

pub use json::json;
pub use model::{AttachInfo, Coverage, ReportModel, Site, StackFrame, Target, Totals};
pub use text::text;
pub use units::{bytes, milliseconds};
