//! `agent`: continuously traces the processes that the rules of a file choose.

use crate::exit_code;
use crate::log;
use crate::output::{Json, say};
use memhook_agent::{Experiments, Outcome};
use std::path::PathBuf;
use std::process::ExitCode;
use tracing_subscriber::filter::LevelFilter;

/// Options of `agent`.
#[derive(clap::Args)]
pub struct Args {
    /// The configuration, a TOML file
    ///
    /// The agent reads it again at SIGHUP. Its keys are described in docs/fleet.md and at the end of this page.
    #[arg(short, long, value_name = "FILE", required = true)]
    config: PathBuf,
    /// Check the configuration, and do nothing else
    #[arg(long)]
    check: bool,
    /// Show what would be traced now, and attach to nothing
    #[arg(long, conflicts_with = "check")]
    plan: bool,
    /// With --plan: write JSON instead of text
    #[arg(short, long, requires = "plan")]
    json: bool,
    /// Permit `[otlp]`, whose protocol is an alpha
    ///
    /// The profiles are sent to OpenTelemetry collectors. experimental_otlp = true in the configuration does the same.
    /// Collectors and agents must know the same version of the messages.
    #[arg(long)]
    experimental_otlp: bool,
    /// Format of the log: text or json
    ///
    /// The log goes to standard error, with one line for each event. -v adds the steps of each attach.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    log_format: log::Format,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    log::start(args.log_format, LevelFilter::INFO)?;
    let experiments = Experiments {
        otlp: args.experimental_otlp,
    };
    if args.check {
        let checked = memhook_agent::check(&args.config, experiments)?;
        for warning in &checked.warnings {
            eprintln!("memhook-rs: {warning} (warning)");
        }
        let rules = checked.rules;
        let plural = if rules == 1 { "" } else { "s" };
        say!("{}: right, {rules} rule{plural}", args.config.display());
        for note in &checked.notes {
            say!("  {note}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.plan {
        let plan = memhook_agent::plan(&args.config, experiments)?;
        Json { json: args.json }.print(&plan)?;
        return Ok(ExitCode::SUCCESS);
    }
    Ok(match memhook_agent::run(&args.config, experiments)? {
        Outcome::Done => ExitCode::SUCCESS,
        Outcome::NotRestored => ExitCode::from(exit_code::NOT_RESTORED),
    })
}
