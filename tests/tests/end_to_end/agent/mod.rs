//! The agent.

mod budgets;
mod faults;
mod memory;
mod otlp;
mod rules;
