//! Probes at functions, and events for other listeners.

mod after_attach;
mod calls;
mod emit;
mod neighbours;
mod programs;
