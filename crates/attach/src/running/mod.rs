//! Upkeep of a traced process, and queries about it.

pub(crate) mod coverage;
pub(crate) mod ending;
pub(crate) mod gaps;
pub(crate) mod heap_balance;
pub(crate) mod mapped_memory;
pub(crate) mod resident;
mod ring_owners;
mod unannounced;
pub(crate) mod upkeep;
