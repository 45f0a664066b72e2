//! `rss`: breakdown of a process's resident memory, without tracing.

use super::copy_limits::CopyLimits;
use super::read_only::ReadOnly;
use crate::output::Json;
use crate::remedies::in_words;
use crate::target::Target;
use anyhow::bail;
use memhook_checkup::said_by_allocator;
use memhook_heap::{ALLOCATOR_NOT_ASKED, Looked, look_at_memory};
use memhook_report::{Progress, RssReport, RssView};
use std::process::ExitCode;

/// Options of `rss`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Show which blocks keep memory from going back
    ///
    /// Blocks are listed by type or size, with the memory that would be returned if they were freed and the heap
    /// trimmed. JSON always has this list.
    #[arg(long)]
    pins: bool,
    /// Number of rows to show of each list
    #[arg(
        short = 'T',
        long,
        value_name = "N",
        default_value_t = 20,
        allow_negative_numbers = true
    )]
    top: usize,
    #[command(flatten)]
    json: Json,
    #[command(flatten)]
    limits: CopyLimits,
    #[command(flatten)]
    read_only: ReadOnly,
    /// Do not ask jemalloc or tcmalloc what they hold
    ///
    /// Heaps of these allocators are split by their own statistics: one thread calls the allocator's function for them
    /// at a safe point. With this option, such a heap is shown as one part.
    #[arg(long)]
    no_calls: bool,
}

/// Returns the resident memory of a process, with the heap split by the allocator's own statistics if it has them.
fn looked_at(pid: i32, args: &Args, with_pins: bool) -> anyhow::Result<Looked> {
    let limits = args.read_only.of(args.limits.usual());
    let work = || look_at_memory(pid, limits, with_pins);
    let mut looked = Progress::during("looking at the memory", work)?;
    let account = &mut looked.account;
    if account.has_other_allocator && args.read_only.read_only {
        account.notes.push(ALLOCATOR_NOT_ASKED.into());
    } else if account.has_other_allocator && !args.no_calls {
        // This question needs one held thread.
        let ask = || said_by_allocator(pid);
        match Progress::during("asking the allocator", ask) {
            Ok(Some(said)) => account.split_by(said),
            Ok(None) => {}
            Err(why) => account
                .notes
                .push(format!("the allocator was not asked: {}", in_words(&why))),
        }
    }
    Ok(looked)
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let pid = args.target.pid()?;
    if let Some(why) = memhook_process::first_failure(&memhook_process::preflight_of_search(pid)) {
        bail!("{why}");
    }
    let pins = args.pins || args.json.json;
    let Looked { account, meta } = looked_at(pid, args, pins)?;
    let view = RssView {
        top: args.top,
        pins: args.pins,
    };
    let report = RssReport::new(pid, &account, meta.as_ref(), view);
    args.json.print(&report)?;
    Ok(ExitCode::SUCCESS)
}
