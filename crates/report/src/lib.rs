//! Reports: pure functions from a model to bytes.

mod json;
mod model;
mod names;
mod stacks;
mod style;
mod text;
mod units;

pub use json::json;
pub use model::{
    AttachInfo, Coverage, Group, ReleaseSite, ReportModel, Sampling, Site, StackFrame, Target,
    Totals,
};
pub use style::Style;
pub use text::text;
pub use units::{bytes, change, count, counted, milliseconds, percent};
