//! Sampling, and tracing within a budget.

mod adapting;
mod call_times;
mod overhead;
mod sampling;
mod several_drains;
mod skipped_calls;
