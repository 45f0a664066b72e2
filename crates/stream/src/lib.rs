//! The consumer's side of the shared region: configuration, the slot journal, interned stacks, and the event rings.
//!
//! [`Region`] maps the memfd that the hook inside the target also maps. The target can write to it at any time and is
//! not trusted, so every access here is an atomic load or store at a checked offset, and values from the region are
//! checked before they are used as an index or a length.
//!
//! [`Drain`] empties the rings in passes and passes the events to a [`Sink`]. It guarantees only this: events of one
//! ring arrive in the order in which they were published. Events of different rings arrive in any order, but every
//! event that happened before an event of pass *k* has arrived by the end of pass *k + 1*. The ledger restores the
//! overall order.
//!
//! This crate does not deal with symbols or live blocks, and does not use ptrace.

mod accesses;
mod birth;
mod budget;
mod clocks;
mod control;
mod described;
mod drain;
mod error;
mod gap;
mod grants;
mod looks;
mod marks;
mod memory;
mod modules;
mod part;
mod python;
mod recorded_blocks;
mod recorders;
mod region;
mod rings;
mod selection;
mod slots;
mod stacks;

pub use birth::Birth;
pub use budget::TimedCalls;
pub use clocks::monotonic_ns;
#[cfg(target_arch = "x86_64")]
pub use clocks::time_stamp_counter;
pub use control::Config;
pub use drain::{Drain, PassStats, Sink, TickTime};
pub use error::Error;
pub use gap::Gap;
pub use grants::Plan;
pub use looks::NewBlock;
pub use marks::NamedMoment;
pub use memory::{Guide, SEALS, sealed_file};
pub use modules::ModuleSpec;
pub use part::Part;
pub use python::{PythonConfig, PythonLocation, is_python};
pub use recorded_blocks::MarkRenewal;
pub use recorders::{Admission, REGISTER_GLOBAL_EXPEDITED, ThreadNumbers, barrier};
pub use region::Region;
pub use rings::{Losses, Mark, RingView};
pub use slots::{SlotSpec, SlotView};
pub use stacks::Stack;
