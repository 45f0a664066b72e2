//! The agent.

mod advice;
mod asked;
mod black_box;
mod budgets;
mod certificates;
mod collectors;
mod configuration;
mod crowds;
mod dead_files;
mod endings;
mod faults;
mod foreign_names;
mod log;
mod manifests;
mod memory;
mod names_elsewhere;
mod numbers;
mod otlp;
mod pods;
mod reclaims;
mod rules;
mod searches;
mod served;
mod starved;
mod stores;
