//! Code shared by the benchmarks.
//!
//! The cost of tracing is measured *in the target*. Programs under `targets/` time their own work
//! in rounds. Programs of distributions are timed by their responses. [`alternate`] alternates
//! rounds with and without each [`Tool`] in one process, so that both figures of a comparison come
//! from the same seconds and the same heap.

mod alternation;
mod attacher;
mod cpu_time;
mod guard;
mod processors;
pub mod programs;
mod round;
mod run;
mod statistics;
mod targets;
mod tools;
pub mod uprobe;

pub use alternation::{Alternated, Traced, alternate};
pub use attacher::{Attacher, Report, cpu_ns};
pub use cpu_time::{process_cpu_time, timed};
pub use guard::guard;
pub use processors::{Placement, bind_to, placement};
pub use round::{Figure, Round, Standing, Subject};
pub use run::{is_test, output_folder};
pub use statistics::{Spread, differences, duration, ratios, times};
pub use targets::{Measured, build, build_library};
pub use tools::{AfterDetach, Memhook, Outcome, Running, Tool};
