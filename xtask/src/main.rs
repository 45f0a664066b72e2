//! Tasks that a shell script would do.

mod check;
mod debian_roots;
mod storm;
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
    /// Fetch the C libraries of other Debian releases, for the tests of scan
    DebianRoots,
}

fn main() -> ExitCode {
    match Cli::parse().task {
        Task::Storm(args) => storm::run(&args),
        Task::DebianRoots => debian_roots::run(),
    }
}
