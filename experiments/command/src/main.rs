//! `cargo experiment`: long-running comparisons that produce the figures in the documents.

mod bench_report;
mod fleet_demo;
mod fleet_size;
mod gate_projects;
mod line_chart;
mod papers;
mod peers_gate;
mod predictions;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "cargo experiment",
    about = "Long-running comparisons whose figures are in the documents"
)]
struct Cli {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Subcommand)]
enum Experiment {
    /// Repeat the experiments of the papers that memhook-rs builds on, and write the results to target/papers (some
    /// need root)
    Papers(papers::Args),
    /// Compare the predictions of `advise --what-if` with the memory of programs that run with these settings
    Predictions(predictions::Args),
    /// Compare the gate with LeakSanitizer and memcheck on the tests of Debian packages
    GateProjects(gate_projects::Args),
    /// Measure the cost of a leak check with the gate, LeakSanitizer and memcheck
    PeersGate(peers_gate::Args),
    /// Run two hosts with services, agents and stores on this machine, and compare the data in the stores (needs root
    /// and Go)
    FleetDemo(fleet_demo::Args),
    /// Compute the load of a store with many hosts, by replaying a recording of `fleet-demo`
    FleetSize(fleet_size::Args),
    /// Write one Markdown page from the benchmarks' results
    BenchReport(bench_report::Args),
}

/// Returns the directory of the product's workspace, which contains `target`.
fn root() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", ".."].iter().collect()
}

fn main() -> ExitCode {
    match Cli::parse().experiment {
        Experiment::Papers(args) => papers::run(&args),
        Experiment::Predictions(args) => predictions::run(&args),
        Experiment::GateProjects(args) => gate_projects::run(&args),
        Experiment::PeersGate(args) => peers_gate::run(&args),
        Experiment::FleetDemo(args) => fleet_demo::run(&args),
        Experiment::FleetSize(args) => fleet_size::run(&args),
        Experiment::BenchReport(args) => bench_report::run(&args),
    }
}
