//! Tasks that a shell script would do.

mod bench_report;
mod check;
mod debian_roots;
mod debugged;
mod dist;
mod disturbance;
mod fleet_demo;
mod fleet_size;
mod fuzz;
mod gate_projects;
mod kinds;
mod kubernetes_check;
mod line_chart;
mod looks;
mod man;
mod nightly;
mod overcommit;
mod papers;
mod peers;
mod peers_gate;
mod predictions;
mod slots_seen;
mod storm;
mod tally;
mod victims;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks of this repository")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Attach and detach thousands of times, sometimes killed on the way, and count what went wrong
    Storm(storm::Args),
    /// Run what takes longer than CI may: storms, all C libraries, fuzzing, the papers' experiments, measurements
    Nightly(nightly::Args),
    /// Fetch the C libraries of other Debian releases, for the tests of scan
    DebianRoots,
    /// Run two hosts with services, agents and stores on this machine, and compare what arrives; needs root and Go
    FleetDemo(fleet_demo::Args),
    /// Say what a store gets from many hosts, by replaying what `fleet-demo` recorded
    FleetSize(fleet_size::Args),
    /// Check the manifests for Kubernetes and the Helm chart, without a cluster; needs Go and pip
    KubernetesCheck,
    /// Search for inputs that harm what reads foreign bytes
    Fuzz(fuzz::Args),
    /// Build what a release consists of: archives, packages, an image, their checksums
    Dist(dist::Args),
    /// Write the man pages of memhook-rs into a directory
    Man(man::Args),
    /// One Markdown page from what `cargo bench -p memhook-benches` and `cargo xtask peers` measured
    BenchReport(bench_report::Args),
    /// Repeat the experiments of the papers that memhook-rs builds on, into target/papers; some need root
    Papers(papers::Args),
    /// Measure other tools that are installed on the same programs as memhook-rs
    Peers,
    /// Compare the gate with LeakSanitizer and memcheck on the tests of Debian packages; needs a release build
    GateProjects(gate_projects::Args),
    /// Compare what `advise --what-if` predicts with what programs take when they are started with these settings
    Predictions(predictions::Args),
    /// Measure what a leak check costs: the gate, LeakSanitizer, memcheck; needs a release build
    PeersGate(peers_gate::Args),
}

fn main() -> ExitCode {
    match Cli::parse().task {
        Task::Storm(args) => storm::run(&args),
        Task::Nightly(args) => nightly::run(&args),
        Task::DebianRoots => debian_roots::run(),
        Task::FleetDemo(args) => fleet_demo::run(&args),
        Task::FleetSize(args) => fleet_size::run(&args),
        Task::KubernetesCheck => kubernetes_check::run(),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Dist(args) => dist::run(&args),
        Task::Man(args) => man::run(&args),
        Task::BenchReport(args) => bench_report::run(&args),
        Task::Papers(args) => papers::run(&args),
        Task::Peers => peers::run(),
        Task::GateProjects(args) => gate_projects::run(&args),
        Task::PeersGate(args) => peers_gate::run(&args),
        Task::Predictions(args) => predictions::run(&args),
    }
}
