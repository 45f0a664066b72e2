//! Whether a program passes: what leaked of what it allocated, and how much of that is allowed.
//!
//! The caller gathers [`Evidence`] (from a scan joined with a trace, or from a recording); [`judge`]
//! weighs it against [`Limits`], [`Suppressions`] and a [`Baseline`]. The [`Verdict`] is written as
//! text, JSON, JUnit, SARIF, GitHub annotations or Markdown. [`growth`] judges a service that does not
//! end: a trend test over the survivors of each allocation site.
//!
//! Not here: processes, files, symbols.

mod baseline;
mod error;
mod evidence;
mod formats;
pub mod growth;
mod judge;
mod limits;
mod pattern;
mod suppress;
mod trend;
mod valgrind;
mod verdict;

pub use baseline::Baseline;
pub use error::Error;
pub use evidence::{Ending, Evidence, Frame, Leak, Site, Subject, Sum};
pub use formats::{github, json, junit, markdown, sarif, suppressions, text};
pub use judge::{judge, judge_each};
pub use limits::{Limits, SiteLimit};
pub use suppress::Suppressions;
pub use trend::{Trend, corrected, mann_kendall};
pub use verdict::{Finding, Outcome, Standing, Verdict, Violation, outcome};
