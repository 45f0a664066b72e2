#![doc = include_str!("../README.md")]

mod activity;
mod error;
mod file;
mod replay;
mod scores;

pub use activity::{
    ACCESS_NOTE, Activity, ActivityOptions, AddressCell, AddressMap, HeapAt, ReleaseFlow,
    SiteActivity, SiteChange,
};
pub use error::{Error, WhyNoScores};
pub use file::decode::Visitor;
pub use file::format::VERSION;
pub use file::gaps::{GAPS_NOTE, gaps_text};
pub use file::heap_notes::{FUNCTIONS_NOTE, HEAP_NOTE, function_in};
pub use file::marks::{MARKS_NOTE, marks_text};
pub use file::meter::Meter;
pub use file::options::{Mode, Options, path_of_heap, path_of_mappings};
pub use file::part::STREAM;
pub use file::reader::Recording;
pub use file::records::{ClockPoint, Meta, Module, NamedFrame, RecordingEnd, ThreadName};
pub use file::resident::{
    ACCOUNT_NOTE, CALL_TIMES_NOTE, HEAP_COMPARISON_NOTE, OVERHEAD_NOTE, RESIDENT_NOTE,
    ResidentSample, STALE_NOTE, TWO_LOOKS_NOTE, UNREACHABLE_NOTE, resident_of, resident_text,
};
pub use file::samples::{SAMPLES_NOTE, samples_text};
pub use file::stacks::{StackView, Stacks};
pub use file::summary::{HISTOGRAM_BUCKETS, Interval, SiteInterval};
pub use file::writer::{Writer, WriterState};
pub use replay::{Replay, Window};
pub use scores::{
    AccessSums, Chunk, ChunkAccesses, GroupLimit, GrowingRuns, KeptChunks, LOOKS_NOTE, Look,
    LookWord, Loops, SampledAccesses, SampledScore, ScoreOptions, ScoredRun, ScoredSite,
    geometric_mean, looks_text, variance,
};
