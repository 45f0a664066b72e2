//! `diff`: what changed from one run to another.

use crate::options::Color;
use crate::output;
use crate::report::{self, Window, sources};
use anyhow::Context;
use memhook_report::{Measure, Profile};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Options of `diff`.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// The recording to compare with
    old: PathBuf,
    /// The recording that is compared
    new: PathBuf,
    /// What is compared: live, peak, allocated, released, temporary
    #[arg(long, value_parser = measure, default_value = "live")]
    measure: Measure,
    /// Sites to show
    #[arg(short = 'T', long, default_value_t = 10)]
    top: usize,
    /// Write JSON
    #[arg(short, long)]
    json: bool,
    /// Write into this file
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Overwrite the output file
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    sources: sources::Args,
    /// When to use colours
    #[arg(long, value_enum, default_value = "auto")]
    color: Color,
    /// Leave nothing out
    #[arg(short, long)]
    verbose: bool,
}

fn measure(word: &str) -> Result<Measure, String> {
    word.parse()
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let progress = report::Progress::start("reading the recordings");
    let (old, new) = (load(args, &args.old)?, load(args, &args.new)?);
    progress.end();
    let diff = memhook_report::diff(&old, &new, args.measure, args.top);
    let text = match args.json {
        true => serde_json::to_string(&diff)? + "\n",
        false => {
            let style = output::style(args.output.as_deref(), args.color, args.verbose);
            diff.text(style)
        }
    };
    report::write(args.output.as_deref(), args.force, text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn load(args: &Args, path: &Path) -> anyhow::Result<Profile> {
    let recording = report::open(path)?;
    if recording.is_summary() && args.measure == Measure::Temporary {
        anyhow::bail!(
            "{} holds sums of intervals, which do not tell temporary allocations",
            path.display()
        );
    }
    let mut symbols = sources::symbolizer(&recording, &args.sources)?;
    let profile = report::profile(&recording, &mut symbols, Window::default());
    let profile = profile.with_context(|| path.display().to_string())?;
    sources::tell_refused(&symbols);
    report::tell_end(&recording, path);
    Ok(profile)
}
