#![doc = include_str!("../README.md")]

mod activity;
mod error;
mod file;
mod replay;
mod scores;

pub use activity::{ACCESS_NOTE, Activity, HeapAt, ReleaseFlow, SiteActivity, SiteChange};
pub use error::Error;
pub use file::decode::Visitor;
pub use file::format::VERSION;
pub use file::gaps::{GAPS_NOTE, gaps_text};
pub use file::marks::{MARKS_NOTE, marks_text};
pub use file::meter::Meter;
pub use file::options::{Mode, Options, path_of_mappings};
pub use file::part::STREAM;
pub use file::reader::Recording;
pub use file::records::{ClockPoint, Meta, Module, NamedFrame, RecordingEnd, ThreadName};
pub use file::resident::{RESIDENT_NOTE, ResidentSample, STALE_NOTE, resident_of, resident_text};
pub use file::stacks::{StackView, Stacks};
pub use file::summary::{HISTOGRAM_BUCKETS, Interval, SiteInterval, bucket_of};
pub use file::writer::{Writer, WriterState};
pub use replay::{Replay, Window};
pub use scores::{
    AccessSums, Chunk, GroupLimit, GrowingRuns, KeptChunks, Loops, ScoreOptions, ScoredRun,
    ScoredSite, geometric_mean, variance,
};
