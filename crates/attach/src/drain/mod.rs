//! The drain thread, which periodically empties the rings into a ledger and a recording, within a
//! budget.

pub(crate) mod budget;
pub(crate) mod consumer;
pub(crate) mod crew;
pub(crate) mod described_heap;
mod gap_log;
pub(crate) mod lookout;
mod pacing;
mod recorded_blocks;
pub(crate) mod recorder;
mod several;
pub(crate) mod state;
mod to_ledger;
