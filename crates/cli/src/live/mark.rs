//! `mark`: names a moment of a trace that is under way.

use crate::output::say;
use crate::target::Choice;
use anyhow::bail;
use memhook_foreign::visible;
use std::io::Write;
use std::process::ExitCode;

/// For programs that set marks themselves.
const HEADER: &str = include_str!("mark/memhook_mark.h");
/// Bytes of a name.
const LONGEST: usize = memhook_abi::MARK_BYTES;

/// Options of `mark`.
#[derive(clap::Args)]
pub struct Args {
    /// The process that is being traced, by its id or its name
    #[arg(value_name = "PID", required_unless_present = "header")]
    process: Option<String>,
    /// What the moment is called
    #[arg(value_name = "NAME", required_unless_present = "header")]
    name: Option<String>,
    /// Print memhook_mark.h, by which a C or C++ program sets marks itself
    ///
    /// A program that includes it calls memhook_mark("phase 2"). While nobody traces the program,
    /// that costs a load and a branch.
    #[arg(long, conflicts_with_all = ["process", "name"])]
    header: bool,
    #[command(flatten)]
    choice: Choice,
}

/// Sets the mark.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.header {
        // A reader that went away is no error of ours.
        let _ = std::io::stdout().write_all(HEADER.as_bytes());
        return Ok(ExitCode::SUCCESS);
    }
    let name = args.name.as_deref().unwrap_or_default();
    if name.trim().is_empty() || name.contains(char::is_control) {
        bail!("a mark needs a name of visible characters on one line");
    }
    if name.len() > LONGEST {
        let length = name.len();
        bail!("the name of a mark takes {LONGEST} bytes at most, and this one has {length}");
    }
    let pid = args.choice.pid(args.process.as_deref())?;
    let at = memhook_attach::set_mark(pid, name)?;
    let at = memhook_report::milliseconds(at.as_millis() as u64);
    say!("Mark {:?} is set, {at} after the attach", visible(name));
    Ok(ExitCode::SUCCESS)
}
