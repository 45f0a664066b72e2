//! Selects the way in which a program is judged.

use super::options::Args;
use super::recorded;
use crate::live::gate::{attached, launched};
use anyhow::bail;
use std::process::ExitCode;

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.quiet.begin();
    args.check()?;
    let running = &args.running;
    let process = args.process()?;
    if running.hold.max_hold.is_some() && process.is_none() {
        bail!("--max-hold is for -p PID: nothing else is held for a copy");
    }
    match (process, args.recording()) {
        (Some(pid), _) => attached::run(args, pid),
        (None, Some(file)) => recorded::run(args, file),
        (None, None) if running.growth || running.duration.is_some() => {
            bail!(
                "--growth and --duration are for -p PID or a recording: a program is judged at its end"
            )
        }
        (None, None) => launched::run(args),
    }
}
