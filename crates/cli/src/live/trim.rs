//! `trim`: has a process's allocator give free memory back.

use super::allocator::{self, Callable};
use crate::options::Color;
use crate::output::style;
use crate::target::Target;
use anyhow::{Context, bail};
use memhook_attach::{Reach, SafePoints, claim};
use memhook_foreign::units;
use memhook_foreign::{visible_json, visible_lines};
use memhook_heap::{KnownAllocator, Limits, Trimmer, refusal_to_trim, time_to_give_back};
use memhook_process::{ModuleImage, filter_may_kill, first_failure, memory_use, preflight};
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
    /// Only report what would go back
    #[arg(long)]
    dry_run: bool,
    /// Longest time to keep a thread from its work [default: 50ms]
    ///
    /// One thread makes the call, and others wait where they need the part of the heap that is
    /// being trimmed. A trim that would take longer is refused, because it cannot be ended half-way.
    /// On a busy machine it may take longer than estimated.
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    max_hold: Option<Duration>,
    /// Limit of memory for the copy of the heap [default: all]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    max_memory: Option<u64>,
    /// Write JSON instead of text
    #[arg(short, long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let pid = args.target.pid()?;
    if let Some(why) = first_failure(&preflight(pid)) {
        bail!("{why}");
    }
    if let Some((allocator, images)) = allocator::find(pid)? {
        return of_allocator(args, pid, allocator, images);
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

/// Like that, for a heap that is not glibc's.
fn of_allocator(
    args: &Args,
    pid: i32,
    allocator: KnownAllocator,
    images: Vec<ModuleImage>,
) -> anyhow::Result<ExitCode> {
    let nothing = "nothing is trimmed";
    let rss = memory_use(pid)?.rss;
    let callable = Callable::new(pid, allocator, images).context(nothing)?;
    let allocator = &callable.allocator;
    let said = allocator.has_statistics().then(|| callable.ask());
    let said = said.transpose().context(nothing)?;
    // Without statistics, all of it could be free.
    let free = said.as_ref().map_or(rss, |said| said.releasable_bytes);
    let estimate = time_to_give_back(free);
    let report = TrimReport::dry_of(pid, allocator, said.as_ref(), estimate, rss);
    if args.dry_run {
        return print(args, &report);
    }
    let most = args.max_hold.or(Limits::default().hold);
    let most = most.unwrap_or(Duration::MAX);
    if let Some(why) = refusal_to_trim(pid, allocator.release_name(), estimate, most) {
        bail!("{nothing}: {why}");
    }
    print(args, &report.with(&callable.release()?))
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
