//! `mark`: names a moment of a running trace.

use crate::output::say;
use crate::target::Choice;
use anyhow::bail;
use memhook_foreign::visible;
use memhook_process::{first_failure, preflight};
use std::process::ExitCode;

/// Maximum bytes of a name.
const LONGEST: usize = memhook_abi::MARK_BYTES;

/// Options of `mark`.
#[derive(clap::Args)]
pub struct Args {
    /// The process that is being traced, by its id or its name
    #[arg(value_name = "PID")]
    process: String,
    /// Name of the moment
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    choice: Choice,
}

/// Sets the mark.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let name = args.name.as_str();
    if name.trim().is_empty() || name.contains(char::is_control) {
        bail!("the name of a mark must be one line of visible characters");
    }
    if name.len() > LONGEST {
        let length = name.len();
        bail!("the name of a mark may have at most {LONGEST} bytes, and this one has {length}");
    }
    let pid = args.choice.pid(Some(&args.process))?;
    // The process must not be memhook-rs itself, which maps the regions of the processes that it
    // traces.
    if let Some(why) = first_failure(&preflight(pid)) {
        bail!("{why}");
    }
    let at = memhook_attach::set_mark(pid, name)?;
    let at = memhook_report::milliseconds(at.as_millis() as u64);
    say!("Mark {:?} is set, {at} after the attach", visible(name));
    Ok(ExitCode::SUCCESS)
}
