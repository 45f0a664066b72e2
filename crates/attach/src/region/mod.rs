//! The shared region as the target has it: one that cannot be opened, one that is still in use, and the threads that
//! own its rings.

pub(crate) mod closed;
pub(crate) mod rest;
pub(crate) mod ring_owners;
