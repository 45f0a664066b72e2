//! `trim`: has a process give back what malloc_trim(3) would.

use crate::options::Color;
use crate::output::style;
use crate::target::Target;
use anyhow::{Context, bail};
use memhook_attach::{Reach, SafePoints, claim};
use memhook_foreign::{visible_json, visible_lines};
use memhook_heap::{Limits, Trimmer};
use memhook_process::{filter_may_kill, first_failure, preflight, preflight_to_read};
use memhook_report::{Progress, ReportStream, TrimReport, document};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// How long to wait for a thread at a safe point.
const SAFE_POINT_LIMIT: Duration = Duration::from_secs(2);

/// Options of `trim`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Only say what would come back
    #[arg(long)]
    dry_run: bool,
    /// Longest time to keep a thread from its work [default: 50ms]
    ///
    /// One thread makes the call, and others wait where they need the part of the heap that is
    /// being trimmed. A trim that would take longer is refused, because it cannot be ended half-way.
    #[arg(long, value_name = "TIME", value_parser = crate::options::duration)]
    max_hold: Option<Duration>,
    /// Limit of memory for the copy of the heap [default: all]
    #[arg(long, value_name = "SIZE", value_parser = crate::options::size)]
    max_memory: Option<u64>,
    /// Write JSON instead of text
    #[arg(short, long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let pid = args.target.pid()?;
    let checks = if args.dry_run {
        preflight_to_read(pid)
    } else {
        preflight(pid)
    };
    if let Some(why) = first_failure(&checks) {
        bail!("{why}");
    }
    let limits = Limits {
        hold: args.max_hold.or(Limits::default().hold),
        memory: args.max_memory,
    };
    let look = || Progress::during("looking at the memory", || Trimmer::new(pid, limits));
    if args.dry_run {
        return print(args, &TrimReport::dry(&look()?));
    }
    if filter_may_kill(pid) {
        bail!(
            "nothing is trimmed: a seccomp filter may end process {pid} for what malloc_trim() needs"
        );
    }
    let _claim = claim(pid)?;
    let trimmer = look().context("nothing is trimmed")?;
    let most = limits.hold.unwrap_or(Duration::MAX);
    if let Some(why) = trimmer.refusal(most) {
        bail!("nothing is trimmed: {why}");
    }
    let safe_points = SafePoints::of_process(pid, trimmer.images().to_vec())?;
    let mut hold = || safe_points.hold(&mut Reach::Running, pid, SAFE_POINT_LIMIT);
    let done = trimmer.trim(&mut hold, most)?;
    print(args, &TrimReport::done(&trimmer, &done))
}

fn print(args: &Args, report: &TrimReport) -> anyhow::Result<ExitCode> {
    let style = style(None, ReportStream::Out, Color::Never, false);
    let text = document(report, args.json, style)?;
    let shown = if args.json {
        visible_json(&text)
    } else {
        visible_lines(&text)
    };
    // A reader that went away is no error of ours.
    let _ = std::io::stdout().lock().write_all(shown.as_bytes());
    Ok(ExitCode::SUCCESS)
}
