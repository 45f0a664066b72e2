//! Tasks that a shell script would do.

mod check;
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
}

fn main() -> ExitCode {
    match Cli::parse().task {
        Task::Storm(args) => storm::run(&args),
    }
}
