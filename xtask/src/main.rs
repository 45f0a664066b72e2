//! Tasks that would otherwise be shell scripts.

mod arm64;
mod check;
mod debian_roots;
mod debugged;
mod dist;
mod disturbance;
mod fuzz;
mod kinds;
mod kubernetes_check;
mod looks;
mod man;
mod nightly;
mod overcommit;
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
    /// Attach and detach thousands of times, sometimes killing the attacher, and count failures
    Storm(storm::Args),
    /// Run jobs that take too long for CI: storms, all C libraries, fuzzing, experiments,
    /// measurements
    Nightly(nightly::Args),
    /// Fetch the C libraries of other Debian releases, for the tests of scan
    DebianRoots,
    /// Run a command on AArch64, in an emulated machine
    Arm64(Box<arm64::Args>),
    /// Check the manifests for Kubernetes and the Helm chart, without a cluster; needs Go and pip
    KubernetesCheck,
    /// Fuzz the parsers of untrusted input
    Fuzz(fuzz::Args),
    /// Build a release: archives, packages, an image, and their checksums
    Dist(dist::Args),
    /// Write the man pages of memhook-rs into a directory
    Man(man::Args),
}

fn main() -> ExitCode {
    match Cli::parse().task {
        Task::Storm(args) => storm::run(&args),
        Task::Nightly(args) => nightly::run(&args),
        Task::DebianRoots => debian_roots::run(),
        Task::Arm64(args) => arm64::run(&args),
        Task::KubernetesCheck => kubernetes_check::run(),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Dist(args) => dist::run(&args),
        Task::Man(args) => man::run(&args),
    }
}
