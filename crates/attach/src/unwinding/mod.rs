//! Unwind tables: compiled from the target's modules, published in the region, and stored on disk for the next run.

mod cache;
pub(crate) mod keeper;
pub(crate) mod tables;
