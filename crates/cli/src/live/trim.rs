//! `trim`: makes a process's allocator return free memory.

use super::copy_limits::CopyLimits;
use crate::output::Json;
use crate::target::Target;
use anyhow::{Context, bail};
use memhook_attach::{Reach, SafePoints, claim};
use memhook_checkup::{Callable, callable_allocator};
use memhook_heap::{KnownAllocator, Trimmer, check_call, time_to_give_back};
use memhook_process::{ModuleImage, filter_may_kill, first_failure, memory_use, preflight};
use memhook_report::{Progress, TrimReport};
use std::process::ExitCode;
use std::time::Duration;

/// Time limit for finding a thread at a safe point.
const SAFE_POINT_LIMIT: Duration = Duration::from_secs(2);

/// Options of `trim`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Only report what would go back
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    limits: CopyLimits,
    #[command(flatten)]
    json: Json,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.json
        .print(&trim(args.target.pid()?, args.limits, args.dry_run)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Makes the allocator of a process return memory, or only reports the expected effect.
pub fn trim(pid: i32, limits: CopyLimits, dry_run: bool) -> anyhow::Result<TrimReport> {
    if let Some(why) = first_failure(&preflight(pid)) {
        bail!("{why}");
    }
    let limits = limits.usual();
    let most = limits.hold.unwrap_or(Duration::MAX);
    if let Some((allocator, images)) = callable_allocator(pid)? {
        return of_allocator(pid, allocator, images, most, dry_run);
    }
    let look = || Progress::during("looking at the memory", || Trimmer::new(pid, limits));
    if dry_run {
        return Ok(TrimReport::dry(&look()?));
    }
    if filter_may_kill(pid) {
        bail!(
            "nothing is trimmed: a seccomp filter may kill process {pid} for a system call that malloc_trim() makes"
        );
    }
    let _claim = claim(pid)?;
    let trimmer = look().context("nothing is trimmed")?;
    trimmer.check(most).context("nothing is trimmed")?;
    let safe_points = SafePoints::of_process(pid, trimmer.images().to_vec())?;
    let mut hold = || safe_points.hold(&mut Reach::Running, pid, SAFE_POINT_LIMIT);
    let done = trimmer.trim(&mut hold, most)?;
    Ok(TrimReport::dry(&trimmer).with(done.rss, done.held, done.call))
}

/// Like `trim`, for a heap that is not glibc's.
fn of_allocator(
    pid: i32,
    allocator: KnownAllocator,
    images: Vec<ModuleImage>,
    most: Duration,
    dry_run: bool,
) -> anyhow::Result<TrimReport> {
    let nothing = "nothing is trimmed";
    let rss = memory_use(pid)?.rss;
    let callable = Callable::new(pid, allocator, images).context(nothing)?;
    let allocator = &callable.allocator;
    let said = allocator.has_statistics().then(|| callable.ask());
    let said = said.transpose().context(nothing)?;
    // Without statistics, all of the memory could be free.
    let free = said.as_ref().map_or(rss, |said| said.releasable_bytes);
    let estimate = time_to_give_back(free);
    let report = TrimReport::dry_of(pid, allocator, said.as_ref(), estimate, rss);
    if dry_run {
        return Ok(report);
    }
    check_call(pid, allocator.release_name(), estimate, most).context(nothing)?;
    let done = callable.release()?;
    Ok(report.with(done.rss, done.held, done.call))
}
