//! `gate`: does a program pass, as to its memory? For scripts: the exit code is the answer.

mod judged;
mod launched;
mod names;
mod options;
mod outputs;
mod reached;

pub use options::Args;

use std::process::ExitCode;

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    launched::run(args)
}
