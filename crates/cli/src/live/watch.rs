//! `watch`: traces a process at little cost, and keeps what explains it when memory runs out.

mod evidence;
mod job;
mod read_only;
mod several;
mod watched;

use super::read_only::ReadOnly;
use super::{signals, triggered};
use crate::options::View;
use crate::target::Target;
use crate::tracing::{DEPTH_TO_ROOTS, Tracing};
use job::Watch;
use memhook_attach::{Condition, ConditionError, Trace, TraceConfig, refuse};
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
    /// Write a report when this much memory is used
    ///
    /// A share of the limit of its memory cgroup or, if that has none, of the machine's memory. Another report follows
    /// when half of the rest is used. Short for attach --when 'limit >= 90%'.
    #[arg(long, value_name = "SHARE|SIZE", value_parser = at, default_value = "90%")]
    at: Condition,
    /// Write a report when it has more than this in memory
    #[arg(long, value_name = "SIZE", value_parser = rss_above)]
    rss_above: Option<Condition>,
    /// Write a report when processes wait for memory
    ///
    /// In the kernel's syntax: 'some 150000 1000000' is 150 ms of waiting within a second, like attach --when 'psi >=
    /// 15%'.
    #[arg(long, value_name = "TRIGGER", value_parser = Condition::of_pressure)]
    psi: Option<Condition>,
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

fn at(number: &str) -> Result<Condition, String> {
    compared("limit >=", number)
}

fn rss_above(number: &str) -> Result<Condition, String> {
    compared("rss >", number)
}

/// Returns the condition that compares a quantity with one number.
fn compared(beginning: &str, number: &str) -> Result<Condition, String> {
    let is_one = !number.contains(['<', '>']);
    let text = format!("{beginning} {}", if is_one { number } else { "" });
    text.parse()
        .map_err(|error: ConditionError| format!("expected {}", error.expected))
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.tracing.refuse_sampled_accesses("watch")?;
    triggered::check_pressure(args.psi.iter())?;
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
    // Before the process is touched: what cannot be written costs it nothing then.
    let watched = Watched::new(args, 0)?;
    let depth = config.depth;
    let mut job = Watch::new(pid, &watched, &args.view, depth);
    signals::catch_stops();
    let mut trace = Trace::start(pid, config)?;
    trace.run(args.duration, &mut job);
    Ok(ExitCode::from(watched.finish()))
}

impl Args {
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
