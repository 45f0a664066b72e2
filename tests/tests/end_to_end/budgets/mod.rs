//! Samples, and tracing within a budget.

mod adapting;
mod overhead;
mod sampling;
mod several_drains;
