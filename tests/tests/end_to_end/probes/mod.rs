//! Probes at functions, and events for other listeners.

mod calls;
mod emit;
mod neighbours;
mod programs;
