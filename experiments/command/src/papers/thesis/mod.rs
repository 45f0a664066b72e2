//! Högstedt and Johansson, "Memory Allocation Tracing for C++ Applications in Live Systems".

pub mod event_cost;
pub mod latency;
pub mod realistic;
pub mod start;
pub mod unwinding;
