//! x86-64.

pub mod calls;
pub(crate) mod relocations;
