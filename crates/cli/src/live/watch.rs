//! `watch`: traces a process at little cost, and keeps evidence in case memory runs out.

mod read_only;

use super::traced_watch;
pub use super::watching::Args;
use super::watching::check_pressure;
use std::process::ExitCode;

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.tracing.refuse_sampled_accesses("watch")?;
    check_pressure(args.when.iter())?;
    if args.read_only.read_only {
        if args.target.whole_group()?.is_some() {
            anyhow::bail!("--read-only watches one process: give its PID or its name");
        }
        return read_only::run(args, args.target.pid()?);
    }
    traced_watch::run(args)
}
