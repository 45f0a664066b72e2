//! The agent.

mod budgets;
mod faults;
mod otlp;
mod rules;
