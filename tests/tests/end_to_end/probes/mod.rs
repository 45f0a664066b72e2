//! Probes at functions, and events for other listeners.

mod after_attach;
mod calls;
mod emit;
pub(crate) mod neighbours;
mod programs;
