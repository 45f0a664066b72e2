//! `gate`: does a program pass, as to its memory? For scripts: the exit code is the answer.

mod attached;
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
    match args.running.pid {
        Some(pid) => attached::run(args, pid),
        None => launched::run(args),
    }
}
