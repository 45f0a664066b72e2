//! `watch`: traces a process at little cost, and keeps evidence for the case that memory runs out.

mod evidence;
mod job;
mod read_only;
mod several;
mod watched;

use super::read_only::ReadOnly;
use super::{signals, triggered};
use crate::options::View;
use crate::target::Target;
use crate::tracing::Tracing;
use job::Watch;
use memhook_attach::{Condition, ConditionError, DEPTH_TO_ROOTS, Trace, TraceConfig, refuse};
use memhook_foreign::units;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use watched::Watched;

/// Mean bytes between samples. A heap of 16 MiB has about a thousand samples.
const SAMPLE_BYTES: u64 = 16 << 10;
/// Options of `watch`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Write a report when this becomes true: 'limit >= 90%'
    ///
    /// limit is the memory in use, as 90% or 512M of the limit of its memory cgroup or, if that has no limit, of the
    /// machine's memory. Another report follows when half of the rest is used. rss, as in 'rss > 2G', is the resident
    /// memory of one process. psi, as in 'psi >= 15%', is the share of the last second in which processes waited for
    /// memory; the kernel's syntax is possible too: 'some 150000 1000000'. May be given several times. Unless a
    /// condition compares limit, there is also a report at 'limit >= 90%'.
    #[arg(long, value_name = "CONDITION", value_parser = condition)]
    when: Vec<Condition>,
    /// Write the reports into this directory
    #[arg(short, long, value_name = "DIRECTORY", required = true)]
    output: PathBuf,
    /// How many reports to keep, beside the last ones
    #[arg(long, value_name = "N", default_value_t = 10)]
    keep: usize,
    /// Run this shell command after each report
    ///
    /// MEMHOOK_REPORT is the file, MEMHOOK_REASON is limit, growth, rss, pressure or end, and MEMHOOK_PID is
    /// the process.
    #[arg(long, value_name = "COMMAND")]
    exec: Option<String>,
    /// End the watch after this time (500ms, 30s, 10m)
    #[arg(short, long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,
    #[command(flatten)]
    read_only: ReadOnly,
    /// Trace every allocation rather than a sample
    #[arg(long, conflicts_with_all = ["sample", "read_only"])]
    exact: bool,
    #[command(flatten)]
    view: View,
    #[command(flatten)]
    tracing: Tracing,
}

fn condition(text: &str) -> Result<Condition, String> {
    if text.starts_with("some ") || text.starts_with("full ") {
        return Condition::of_pressure(text);
    }
    let condition: Condition = text
        .parse()
        .map_err(|error: ConditionError| error.to_string())?;
    if condition.needs_trace() {
        return Err("watch compares limit, rss or psi; attach --when compares what is live".into());
    }
    Ok(condition)
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.tracing.refuse_sampled_accesses("watch")?;
    triggered::check_pressure(args.when.iter())?;
    if args.read_only.read_only {
        if args.target.whole_group()?.is_some() {
            anyhow::bail!("--read-only watches one process: give its PID or its name");
        }
        return read_only::run(args, args.target.pid()?);
    }
    if let Some(selector) = args.target.whole_group()? {
        return several::run(args, selector);
    }
    let pid = args.target.pid()?;
    let config = args.config();
    refuse(pid, &config)?;
    // The directory is created before the process is touched, so that an error costs the process
    // nothing.
    let watched = Watched::new(args, 0)?;
    let depth = config.depth;
    let mut job = Watch::new(pid, &watched, &args.view, depth);
    signals::catch_stops();
    let mut trace = Trace::start(pid, config)?;
    trace.run(args.duration, &mut job);
    Ok(ExitCode::from(watched.finish()))
}

impl Args {
    /// Returns the conditions on one process, and those on its control group or the machine.
    fn conditions(&self) -> anyhow::Result<(Vec<Condition>, Vec<Condition>)> {
        let (of_process, mut others): (Vec<_>, Vec<_>) = self
            .when
            .iter()
            .cloned()
            .partition(Condition::needs_process);
        if !self.when.iter().any(Condition::compares_limit) {
            others.push("limit >= 90%".parse()?);
        }
        Ok((of_process, others))
    }

    fn config(&self) -> TraceConfig {
        let mut tracing = self.tracing.with_depth(DEPTH_TO_ROOTS);
        if self.exact {
            tracing = tracing.for_running();
        } else {
            tracing.sample = tracing.sample.or(Some(SAMPLE_BYTES));
        }
        tracing.resolve()
    }
}
