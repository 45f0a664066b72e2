//! The attacher's side of the shared region: configuration, slot journal, rings, stack table.
//!
//! The target writes to this memory all the time and may be broken: everything read from it is
//! read by atomics or volatile loads and checked against the bounds of the region before use.

mod drain;
mod region;

pub use drain::{Drain, PassStats, Sink};
pub use region::{Config, Error, Losses, Region, RingView, SlotSpec, SlotView, Stack};
