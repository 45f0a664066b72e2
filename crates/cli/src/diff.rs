//! `diff`: what changed from one run to another.

use crate::exit_code;
use crate::report::{self, OutputArgs, sources};
use anyhow::Context;
use memhook_foreign::check_output;
use memhook_report::recorded::Window;
use memhook_report::{FailOn, Measure, Profile};
use std::{
    io::Read,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Options of `diff`.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// The older run: a recording, or a JSON report of all sites
    old: PathBuf,
    /// The newer run
    new: PathBuf,
    /// What to compare: live, peak, allocated, ...
    ///
    /// It is one of live, peak, allocated, released and temporary.
    #[arg(long, value_name = "WHAT", value_parser = report::parse::<Measure>, default_value = "live")]
    measure: Measure,
    /// Number of sites to show
    #[arg(short = 'T', long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// End with code 1 if more has grown: 'growth > 5%'
    ///
    /// Or 'allocated > 10M', 'site growth > 1M', 'count > 100'. Of estimates, only what is above by two
    /// standard errors counts.
    #[arg(long, value_name = "EXPRESSION", value_parser = report::parse::<FailOn>)]
    fail_on: Option<FailOn>,
    /// Write JSON instead of text
    #[arg(short, long)]
    json: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    sources: sources::Args,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    check_output(&args.output.output, [&args.old, &args.new])?;
    let other = args.fail_on.as_ref().and_then(FailOn::measure);
    if let Some(other) = other.filter(|other| *other != args.measure) {
        anyhow::bail!(
            "--fail-on is about what is {0}, the comparison about what is {1}: add --measure {0}",
            other.name(),
            args.measure.name()
        );
    }
    let (old, new) = (load(args, &args.old)?, load(args, &args.new)?);
    let diff = memhook_report::diff(&old, &new, args.measure, args.top);
    args.output.write_document(&diff, args.json)?;
    let Some(fail_on) = &args.fail_on else {
        return Ok(ExitCode::SUCCESS);
    };
    if let Some(violation) =
        fail_on.violation(&memhook_report::diff(&old, &new, args.measure, usize::MAX))
    {
        eprintln!("memhook-rs: {violation}");
        return Ok(ExitCode::from(exit_code::LIMIT_EXCEEDED));
    }
    if [&old, &new].iter().any(|run| !run.gaps.is_empty()) {
        eprintln!("memhook-rs: no verdict: at times nothing was seen of a run");
        return Ok(ExitCode::from(exit_code::NO_VERDICT));
    }
    Ok(ExitCode::SUCCESS)
}

fn load(args: &Args, path: &Path) -> anyhow::Result<Profile> {
    if is_json(path) {
        let text =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let profile = memhook_report::read_back(&text, args.measure);
        return profile.with_context(|| path.display().to_string());
    }
    let recording = report::open(path)?;
    if recording.is_summary() && args.measure == Measure::Temporary {
        anyhow::bail!(
            "{} holds sums of intervals, which do not tell temporary allocations",
            path.display()
        );
    }
    let (profile, _) = report::read(&recording, path, &args.sources, Window::default(), None)?;
    Ok(profile)
}

/// Whether a file begins as JSON reports do; a recording begins with a byte that no text has.
fn is_json(path: &Path) -> bool {
    let is_regular = std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    let mut first = [0];
    is_regular
        && std::fs::File::open(path).is_ok_and(|mut file| file.read_exact(&mut first).is_ok())
        && first == *b"{"
}
