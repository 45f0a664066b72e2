//! `agent`: traces what the rules of a file choose, all the time.

use crate::exit_code;
use crate::output::say;
use memhook_agent::Outcome;
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `agent`.
#[derive(clap::Args)]
pub struct Args {
    /// The configuration, a TOML file
    ///
    /// It is read again at SIGHUP. docs/fleet.md describes its keys, and so does the end of this page.
    #[arg(short, long, value_name = "FILE", required = true)]
    config: PathBuf,
    /// Check the configuration, and do nothing else
    #[arg(long)]
    check: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.check {
        let rules = memhook_agent::check(&args.config)?;
        let plural = if rules == 1 { "" } else { "s" };
        say!("{}: right, {rules} rule{plural}", args.config.display());
        return Ok(ExitCode::SUCCESS);
    }
    Ok(match memhook_agent::run(&args.config)? {
        Outcome::Done => ExitCode::SUCCESS,
        Outcome::NotRestored => ExitCode::from(exit_code::NOT_RESTORED),
    })
}
