//! `stale`: memory that a running process holds and no longer touches.

mod departures;
mod job;
mod naming;
mod read_only;
mod section;
mod watching;

use super::read_only::ReadOnly;
use super::{ending, signals};
use crate::options::{ColorArgs, HoldLimit};
use crate::output::Json;
use crate::target::Target;
use crate::{exit_code, output};
use departures::Departures;
use job::StaleJob;
use memhook_access::{Settings, usual_duration};
use memhook_attach::{DEPTH_OF_REPORTS, Trace, TraceConfig, gap_said};
use memhook_foreign::units;
use memhook_report::ReportStream;
pub use section::StaleSection;
use std::{process::ExitCode, time::Duration};

/// Options of `stale`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Time without a touch after which a block is stale
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "30s")]
    older: Duration,
    /// Share of the process's time that watching may take
    ///
    /// At most 50%. This does not include the tracing of allocations.
    #[arg(long, value_name = "PERCENT", value_parser = units::budget, default_value = "1%", conflicts_with = "read_only")]
    budget: f64,
    /// How long to watch [default: twice --older and 5 s]
    #[arg(short, long, value_name = "TIME", value_parser = units::duration, conflicts_with = "read_only")]
    duration: Option<Duration>,
    /// Also report at this interval
    #[arg(short, long, value_name = "TIME", value_parser = units::duration, conflicts_with = "read_only")]
    interval: Option<Duration>,
    /// Number of sites to show
    #[arg(
        short = 'T',
        long,
        value_name = "N",
        default_value_t = 20,
        allow_negative_numbers = true
    )]
    top: usize,
    /// At the end, also report what nothing reaches
    ///
    /// memhook-rs copies the memory of the process and searches it for pointers. Each site then says how much of it is
    /// unreachable, reachable and stale, or in use.
    #[arg(long, conflicts_with = "read_only")]
    leaks: bool,
    #[command(flatten)]
    hold: HoldLimit,
    #[command(flatten)]
    read_only: ReadOnly,
    #[command(flatten)]
    json: Json,
    /// Print no status lines
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    color: ColorArgs,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let pid = args.target.pid()?;
    if args.read_only.read_only {
        return read_only::run(args, pid);
    }
    let config = TraceConfig {
        depth: DEPTH_OF_REPORTS,
        ..TraceConfig::default()
    };
    signals::catch_stops();
    let mut trace = Trace::observed(pid, config, Departures::default())?;
    let settings = Settings {
        older_ms: args.older.as_millis().min(u128::from(u32::MAX / 4)) as u32,
        budget: args.budget,
    };
    let mut job = StaleJob::new(
        pid,
        settings,
        job::Output {
            duration: args.duration.unwrap_or(usual_duration(args.older)),
            interval: args.interval,
            top: args.top,
            leaks: args.leaks,
            search: args.hold.to_search(),
            is_json: args.json.json,
            is_quiet: args.quiet,
            style: output::style(None, ReportStream::Out, args.color.color),
        },
    );
    let end = trace.run(None, &mut job);
    let mut code = ending::of_trace(&end, pid);
    if let Some(failure) = job.failure {
        return Err(failure);
    }
    let gaps = trace.consumer().gaps(trace.consumer().elapsed());
    if let Some(gap) = gaps.last() {
        eprintln!("memhook-rs: {}", gap_said(pid, *gap));
        code = code.max(exit_code::HAS_GAPS);
    }
    Ok(ExitCode::from(code))
}
