//! Judges the leaks of a program: which allocations leaked, and whether the leaks are within the
//! limits.
//!
//! The caller gathers [`Evidence`] (from a scan joined with a trace, or from a recording).
//! [`judge`] weighs it against [`Limits`], [`Suppressions`] and a [`Baseline`]. The [`Verdict`] is
//! written as text, JSON, JUnit, SARIF, GitHub annotations or Markdown. [`growth`] judges a service
//! that never exits, with a trend test over the surviving blocks of each allocation site.
//!
//! This crate handles neither processes nor symbols. It reads only files that the user names in
//! options.

mod baseline;
mod described;
mod error;
mod evidence;
mod formats;
mod gather;
pub mod growth;
mod growth_of_size;
#[cfg(test)]
mod growth_simulation;
mod heap_sums;
mod judge;
mod judged_programs;
mod judgement;
mod leak_report;
mod limits;
mod mapped;
mod names;
mod outputs;
mod pattern;
mod process_evidence;
mod reached;
mod recorded;
mod suppress;
mod survivors;
mod trend;
mod unfinished;
mod valgrind;
mod verdict;
mod wrappers;

pub use baseline::Baseline;
pub use described::{DescribedBlocks, HeapEvidence, reached_in_heaps};
pub use error::Error;
pub use evidence::{
    AllocationSite, Ending, Evidence, Leak, PossibleLeak, SourceFrame, Subject, Sum,
};
pub use formats::FORMATS;
pub use gather::{Grown, Lost, Reached, evidence, growth_evidence};
pub use judge::{Exceptions, judge, judge_each};
pub use judged_programs::JudgedPrograms;
pub use judgement::{Judgement, NotJudged, SharedLeak, not_judged};
pub use leak_report::FoundLeaks;
pub use limits::{Limits, SiteLimit};
pub use names::{MappedModule, NameSource};
pub use outputs::{OutputOptions, Outputs};
pub use pattern::template_matches;
pub use process_evidence::{bound, is_allocators, traced_blocks};
pub use reached::{Search, reached};
pub use recorded::{RecordedOptions, recorded_evidence, recorded_time, score_evidence};
pub use suppress::Suppressions;
pub use survivors::{MOMENTS, Survivors};
pub use trend::{Trend, corrected};
pub use verdict::{Finding, Group, HeapVerdict, Outcome, Standing, Verdict, Violation, outcome};
pub use wrappers::Wrappers;
