//! Reports: pure functions from a model to bytes.

mod call_tree;
mod diff;
mod export;
mod formats;
mod json;
mod labels;
mod leaks;
mod model;
mod names;
mod profile;
mod read_back;
mod stacks;
mod style;
mod text;
mod tree;
mod units;
mod view;
mod who_frees;

pub use call_tree::Root;
pub use diff::{Diff, Fate, Run, SiteChange, diff};
pub use export::{ExportFormat, ExportOptions, Measure, Unit, export};
pub use json::json;
pub use labels::{name as frame_name, site_name};
pub use leaks::{LeakSite, LeakTotals, Leaks, SnapshotTaken};
pub use model::{
    AttachInfo, Bounded, Coverage, Group, Measured, ReleaseSite, ReportModel, Sampling, Site,
    StackFrame, Target, Totals,
};
pub use profile::{
    Amount, Flow, HISTOGRAM_BUCKETS, Measures, Point, Profile, ProfileFrame, ProfileModule,
    ProfileSite, Released, Series, SitePoint, SourceLines,
};
pub use read_back::{ReadBackError, read_back};
pub use style::Style;
pub use text::text;
pub use tree::{Tree, TreeNode, tree};
pub use units::{bytes, change, count, counted, milliseconds, percent};
pub use who_frees::{Freed, WhoFrees, who_frees};
