//! Reports: pure functions from a model to bytes.

mod json;
mod model;
mod names;
mod profile;
mod stacks;
mod style;
mod text;
mod units;

pub use json::json;
pub use model::{
    AttachInfo, Coverage, Group, ReleaseSite, ReportModel, Sampling, Site, StackFrame, Target,
    Totals,
};
pub use profile::{
    Amount, Flow, HISTOGRAM_BUCKETS, Measures, Point, Profile, ProfileFrame, ProfileModule,
    ProfileSite, Series,
};
pub use style::Style;
pub use text::text;
pub use units::{bytes, change, count, counted, milliseconds, percent};
