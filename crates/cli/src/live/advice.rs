//! Options and output of `advise`, and advice from a recording.

use super::copy_limits::CopyLimits;
use super::read_only::ReadOnly;
use crate::options::HoldLimit;
use crate::output::Json;
use crate::report::{self, open, sources};
use crate::target::Target;
use anyhow::{Context, bail};
use memhook_advice::Advice;
use memhook_checkup::{advice_of, resident_now};
use memhook_foreign::{check_output, units};
use memhook_report::{Document, recorded};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of `advise`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(super) target: Target,
    /// Examine it for this time
    #[arg(short, long, value_name = "TIME", value_parser = units::duration, default_value = "60s", conflicts_with = "read_only")]
    pub(super) duration: Duration,
    /// If the answer is unsure, examine it again, up to this total time
    #[arg(long, value_name = "TIME", value_parser = units::duration, conflicts_with = "read_only")]
    pub(super) until_sure: Option<Duration>,
    /// Share of the process's time that tracing may take
    ///
    /// If recording everything would take more, memhook-rs samples allocations, and estimates the memory of sites.
    #[arg(long, value_name = "PERCENT", value_parser = units::budget, default_value = "2%", conflicts_with = "read_only")]
    pub(super) overhead: f64,
    /// Try the remedy of the first finding, and report what it gave back
    ///
    /// Only a remedy that asks the allocator for its free memory is tried, as trim does.
    #[arg(long = "try", conflicts_with = "read_only")]
    pub(super) tries: bool,
    #[command(flatten)]
    pub(super) hold: HoldLimit,
    #[command(flatten)]
    pub(super) read_only: ReadOnly,
    #[command(flatten)]
    pub(super) sources: sources::Args,
    #[command(flatten)]
    pub(super) what_if: WhatIfArgs,
    #[command(flatten)]
    pub(super) output: PageOutput,
}

impl Args {
    pub(super) fn limits(&self) -> CopyLimits {
        CopyLimits {
            hold: self.hold,
            max_memory: None,
        }
    }
}

/// Options of a replay.
#[derive(clap::Args)]
#[command(next_help_heading = "Other allocators")]
pub(super) struct WhatIfArgs {
    /// Replay a recording under other allocators and settings
    ///
    /// A separate process repeats every recorded call, with one thread for each recorded thread.
    #[arg(long, conflicts_with = "read_only")]
    pub(super) what_if: bool,
    /// Also replay with the allocator of this library
    #[arg(long, value_name = "FILE.so", requires = "what_if")]
    pub(super) allocator: Vec<PathBuf>,
    /// End a replay that takes longer than this
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "2min", requires = "what_if")]
    pub(super) at_most: Duration,
    /// Memory limit of a replay
    ///
    /// Never more than 80% of what is available, which is the default.
    #[arg(long, value_name = "SIZE", value_parser = units::size, requires = "what_if")]
    pub(super) max_memory: Option<u64>,
}

/// Output of the answer.
#[derive(clap::Args)]
pub(super) struct PageOutput {
    #[command(flatten)]
    json: Json,
    /// Also write the answer as a page to this file (HTML)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite the output file if it exists
    #[arg(long, requires = "output")]
    force: bool,
}

impl PageOutput {
    /// Checks the options before the work starts.
    pub(super) fn check(&self, recording: Option<&Path>) -> anyhow::Result<()> {
        let output = self.output.as_deref();
        Ok(check_output(output, self.force, recording)?)
    }

    pub(super) fn write(
        &self,
        document: &impl Document,
        page: impl FnOnce() -> String,
    ) -> anyhow::Result<()> {
        if let Some(path) = &self.output {
            report::write(Some(path), self.force, page().as_bytes())?;
        }
        self.json.print(document)
    }
}

/// Gives advice from a recording. `running` is the recorded process, if it may still exist. `roots`
/// are the file systems that have its files, if they are known.
pub(super) fn advice(
    args: &Args,
    file: &Path,
    running: Option<i32>,
    roots: Vec<PathBuf>,
) -> anyhow::Result<Advice> {
    let recording = open(file)?;
    if recording.is_summary() {
        bail!("the recording holds sums of intervals: advice needs events (--record events)");
    }
    let mut names = sources::name_sources(&args.sources)?;
    if names.sysroots.is_empty() {
        names.sysroots = roots;
    }
    let symbols = recorded::symbolizer(&recording, names);
    let limits = args.limits().usual();
    let resident = running.and_then(|pid| resident_now(pid, limits, &recording));
    let advice = advice_of(&recording, symbols, resident, running.is_some());
    advice.with_context(|| file.display().to_string())
}
