//! `rss`: what the resident memory of a process consists of, with no tracing.

use super::allocator::{self, Callable};
use crate::options::Color;
use crate::output::style;
use crate::target::Target;
use anyhow::bail;
use memhook_foreign::units;
use memhook_foreign::{visible_json, visible_lines};
use memhook_heap::{AllocatorStatistics, Limits, Looked, Part, look_at_memory};
use memhook_report::{Progress, ReportStream, RssReport, RssView, document};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Options of `rss`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Show which blocks keep memory from going back
    ///
    /// Blocks are listed by type or size, with the memory that would go back if they were freed and the heap trimmed.
    /// JSON always has it.
    #[arg(long)]
    pins: bool,
    /// Number of rows to show of each list
    #[arg(short = 'T', long, value_name = "N", default_value_t = 20)]
    top: usize,
    /// Write JSON instead of text
    #[arg(short, long)]
    json: bool,
    /// Longest time to hold all threads [default: 50ms]
    ///
    /// Where the heap cannot be copied in that time, it is shown as one part.
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    max_hold: Option<Duration>,
    /// Limit of memory for the copy of the heap [default: all]
    ///
    /// A heap that is larger is shown as one part.
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    max_memory: Option<u64>,
    /// Do not ask jemalloc or tcmalloc what they hold
    ///
    /// Their heaps are split by their own statistics: one thread calls the allocator's function for them at a safe
    /// point. With this option, such a heap is shown as one part.
    #[arg(long)]
    no_calls: bool,
}

/// What an allocator other than glibc's says of itself, if it is one that can.
fn said_by_allocator(pid: i32) -> anyhow::Result<Option<AllocatorStatistics>> {
    let found = allocator::find(pid)?;
    let Some((allocator, images)) = found.filter(|(found, _)| found.has_statistics()) else {
        return Ok(None);
    };
    Ok(Some(Callable::new(pid, allocator, images)?.ask()?))
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let pid = args.target.pid()?;
    if let Some(why) = memhook_process::first_failure(&memhook_process::preflight(pid)) {
        bail!("{why}");
    }
    let limits = Limits {
        hold: args.max_hold.or(Limits::default().hold),
        memory: args.max_memory,
    };
    let pins = args.pins || args.json;
    let work = || look_at_memory(pid, limits, pins);
    let Looked { mut account, meta } = Progress::during("looking at the memory", work)?;
    if account.parts.contains_key(&Part::ForeignHeap) && !args.no_calls {
        let ask = || said_by_allocator(pid);
        match Progress::during("asking the allocator", ask) {
            Ok(Some(said)) => account.split_by(said),
            Ok(None) => {}
            Err(why) => account
                .notes
                .push(format!("the allocator was not asked: {why:#}")),
        }
    }
    let view = RssView {
        top: args.top,
        pins: args.pins,
    };
    let report = RssReport::new(pid, &account, meta.as_ref(), view);
    let style = style(None, ReportStream::Out, Color::Never, false);
    let text = document(&report, args.json, style)?;
    let shown = if args.json {
        visible_json(&text)
    } else {
        visible_lines(&text)
    };
    // A reader that went away is no error of ours.
    let _ = std::io::stdout().lock().write_all(shown.as_bytes());
    Ok(ExitCode::SUCCESS)
}
