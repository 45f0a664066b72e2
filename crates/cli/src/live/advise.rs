//! `advise`: diagnoses a leak, fragmentation or retention, and names the remedies.

pub use super::advice::Args;
use super::advice::advice;
use super::examined;
use anyhow::bail;
use memhook_checkup::advice_of_look;
use memhook_process::{first_failure, preflight_of_search};
use memhook_report::Progress;
use std::process::ExitCode;

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.output.check(args.target.recording())?;
    if args.what_if.what_if {
        return examined::what_if(args);
    }
    if let Some(file) = args.target.recording() {
        if args.read_only.read_only {
            bail!(
                "--read-only needs a running process, but {} is a recording",
                file.display()
            );
        }
        if args.tries {
            bail!(
                "--try needs a running process, but {} is a recording",
                file.display()
            );
        }
        let advice = advice(args, file, None, Vec::new())?;
        args.output.write(&advice, || advice.page())?;
        return Ok(ExitCode::SUCCESS);
    }
    let pid = args.target.pid()?;
    if args.read_only.read_only {
        return only_look(args, pid);
    }
    let (advice, code) = examined::advise(args, pid)?;
    args.output.write(&advice, || advice.page())?;
    Ok(ExitCode::from(code))
}

/// Gives advice without a trace.
fn only_look(args: &Args, pid: i32) -> anyhow::Result<ExitCode> {
    if let Some(why) = first_failure(&preflight_of_search(pid)) {
        bail!("{why}");
    }
    let limits = args.read_only.of(args.limits().usual());
    let work = || advice_of_look(pid, limits);
    let advice = Progress::during("looking at the memory", work)?;
    args.output.write(&advice, || advice.page())?;
    Ok(ExitCode::SUCCESS)
}
