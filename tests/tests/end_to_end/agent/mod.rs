//! The agent.

mod faults;
mod otlp;
mod rules;
