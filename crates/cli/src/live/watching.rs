//! Options of `watch`, and the state that it keeps both with and without tracing.

pub mod evidence;
pub mod watched;

use super::read_only::ReadOnly;
use crate::options::View;
use crate::target::Target;
use crate::tracing::Tracing;
use memhook_foreign::units;
use memhook_process::MemoryPressure;
use memhook_triggers::{Condition, ConditionError};
use std::path::PathBuf;
use std::time::Duration;

/// Options of `watch`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(super) target: Target,
    /// Write a report when this becomes true: 'limit >= 90%'
    ///
    /// limit is the memory in use, as 90% or 512M of the limit of its memory cgroup or, if that has no limit, of the
    /// machine's memory. Another report follows when half of the rest is used. rss, as in 'rss > 2G', is the resident
    /// memory of one process. psi, as in 'psi >= 15%', is the share of the last second in which processes waited for
    /// memory; the kernel's syntax is possible too: 'some 150000 1000000'. May be given several times. Unless a
    /// condition compares limit, there is also a report at 'limit >= 90%'.
    #[arg(long, value_name = "CONDITION", value_parser = condition)]
    pub(super) when: Vec<Condition>,
    /// Write the reports into this directory
    #[arg(short, long, value_name = "DIRECTORY", required = true)]
    pub(super) output: PathBuf,
    /// How many reports to keep, beside the last ones
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(super) keep: usize,
    /// Run this shell command after each report
    ///
    /// MEMHOOK_REPORT is the file, MEMHOOK_REASON is limit, growth, rss, pressure or end, and MEMHOOK_PID is
    /// the process.
    #[arg(long, value_name = "COMMAND")]
    pub(super) exec: Option<String>,
    /// End the watch after this time (500ms, 30s, 10m)
    #[arg(short, long, value_name = "TIME", value_parser = units::duration)]
    pub(super) duration: Option<Duration>,
    #[command(flatten)]
    pub(super) read_only: ReadOnly,
    /// Trace every allocation rather than a sample
    #[arg(long, conflicts_with_all = ["sample", "read_only"])]
    pub(super) exact: bool,
    #[command(flatten)]
    pub(super) view: View,
    #[command(flatten)]
    pub(super) tracing: Tracing,
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

/// Refuses conditions about pressure if the kernel does not count it.
pub(super) fn check_pressure<'a>(
    mut all: impl Iterator<Item = &'a Condition>,
) -> anyhow::Result<()> {
    if all.any(Condition::needs_pressure) {
        MemoryPressure::of(None)?;
    }
    Ok(())
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
}
