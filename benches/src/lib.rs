//! What the benchmarks are made of.
//!
//! The cost of tracing is measured *in the target*: programs under `targets/` time their own work in
//! rounds, distribution programs are timed by what they answer. [`alternate`] runs rounds with and
//! without each [`Tool`] in turn, in one process, so that a figure is always compared with one of the
//! same seconds and the same heap. [`Figures`] hands all rounds to criterion, whose files
//! `cargo xtask bench-report` reads, together with what criterion has no place for
//! ([`Conditions`]): events lost, the attacher's share of a processor, growth of the target.
//!
//! The consumer is measured without a target: [`Feeder`] fills a region with a [`Stream`],
//! or with what was [`Recorded`].

mod alternation;
mod attacher;
mod band_plot;
mod callbacks;
mod conditions;
mod cpu_time;
mod feeder;
#[cfg(feature = "criterion")]
mod figures;
mod function_probes;
mod gdbserver;
mod goals;
mod guard;
mod machine;
mod peers;
mod phase;
mod processors;
pub mod programs;
mod recorded;
mod round;
mod run;
mod statistics;
mod streams;
mod targets;
mod tools;
pub mod uprobe;

pub use alternation::{Alternated, Traced, alternate};
pub use attacher::{Attacher, Report};
pub use band_plot::{Band, band_plot};
pub use callbacks::CALLBACKS;
pub use conditions::{Condition, Conditions};
pub use cpu_time::{process_cpu_time, timed};
pub use feeder::{Feeder, ToLedger};
#[cfg(feature = "criterion")]
pub use figures::{Figures, Nanoseconds, criterion};
pub use function_probes::{FunctionProbe, Placed, place_many};
pub use gdbserver::{FastTracepoint, in_process_agent};
pub use goals::{GOALS, times_goal};
pub use guard::guard;
pub use machine::Machine;
pub use peers::{Peer, Way, peers};
pub use phase::Phase;
pub use processors::{Placement, bind_to, placement};
pub use recorded::{Pass, Recorded};
pub use round::{Figure, Round, Standing, Subject};
pub use run::{is_test, output_folder};
pub use statistics::{Spread, differences, duration, ratios, times};
pub use streams::{Churn, Pairs, Stream};
pub use targets::{Measured, build, build_library};
pub use tools::{AfterDetach, Memhook, Outcome, Running, Tool};
