//! Probes at the entries of functions of a running process: jump pads that count calls.
//!
//! [`plan_probes`] finds the functions and plans a probe for each, and only reads the process. [`Probes::place`] maps
//! the pads and, with all threads held, replaces the first bytes of the functions. Before that, it writes a journal of
//! these changes into the process, so that [`crate::recover`] can restore every byte after we were killed, and in a
//! forked process.

mod code_of_module;
pub(crate) mod error;
mod events;
mod gaps;
mod mapped;
mod placed;
mod planned;
mod preview;
mod removal;
mod threads;

pub use events::EventOptions;
pub(crate) use gaps::map_near;
pub use placed::{FunctionCount, Probes, ThreadCount};
pub(crate) use planned::{FunctionCode, find_function, plan_functions};
pub use planned::{PlannedFunction, ProbeOptions, ProbePlan, RefusedFunction, plan_probes};
pub use preview::{PadPreview, ProbePreview, preview_probes};
pub(crate) use removal::remove;

#[cfg(test)]
mod library_tests;
