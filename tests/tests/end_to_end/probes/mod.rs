//! Probes on functions, and events for listeners.

mod after_attach;
mod calls;
mod emit;
pub(crate) mod neighbours;
mod programs;
