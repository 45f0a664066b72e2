//! `advise`: leak, fragmentation or retention, and what to do about it.

mod what_if;

use super::copy_limits::CopyLimits;
use super::{attach, rss};
use crate::options::HoldLimit;
use crate::output::Json;
use crate::report::{open, sources};
use crate::target::Target;
use anyhow::{Context, bail};
use memhook_advice::{Facts, advise};
use memhook_foreign::units;
use memhook_gate::{NameSource, RecordedOptions, recorded_evidence, recorded_time};
use memhook_heap::{Looked, Part};
use memhook_recording::Recording;
use memhook_report::recorded::{Contents, Window, account, profile};
use memhook_report::{Progress, RssPart, RssReport, RssView};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// How sure the trend test is of a site that it says grows.
const CONFIDENCE: f64 = 0.99;

/// Options of `advise`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Look at it for this time
    #[arg(short, long, value_name = "TIME", value_parser = units::duration, default_value = "60s")]
    duration: Duration,
    /// Share of the process's time that tracing may take
    ///
    /// Where recording everything would take more, allocations are sampled, and growth is not tested.
    #[arg(long, value_name = "PERCENT", value_parser = units::budget, default_value = "2%")]
    overhead: f64,
    #[command(flatten)]
    hold: HoldLimit,
    #[command(flatten)]
    sources: sources::Args,
    #[command(flatten)]
    what_if: what_if::WhatIfArgs,
    #[command(flatten)]
    json: Json,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.what_if.is_wanted() {
        return what_if::run(&args.what_if, args.target.recording(), args.json);
    }
    if let Some(file) = args.target.recording() {
        of_recording(args, file, None)?;
        return Ok(ExitCode::SUCCESS);
    }
    let pid = args.target.pid()?;
    let work = || attach::recorded(pid, args.duration, args.overhead, args.hold);
    let (scratch, code) = Progress::during("looking at the process", work)?;
    of_recording(args, &scratch.path, Some(pid))?;
    Ok(ExitCode::from(code))
}

/// `running`: the process that was recorded, if it may still be there.
fn of_recording(args: &Args, file: &Path, running: Option<i32>) -> anyhow::Result<()> {
    let recording = open(file)?;
    if recording.is_summary() {
        bail!("the recording holds sums of intervals: advice needs events (--record events)");
    }
    let name = || file.display().to_string();
    let mut symbols = sources::symbolizer(&recording, &args.sources)?;
    let contents = Contents::default();
    let profile = profile(&recording, &mut symbols, Window::default(), contents);
    let profile = profile.with_context(name)?;
    let account = match running.and_then(|pid| split_by_allocator(pid, args.hold, &recording)) {
        Some(account) => Some(Box::new(account)),
        None => account(&recording),
    };
    // Growth of an estimate may be chance.
    let is_whole = recording.sample_bytes().is_none();
    let options = RecordedOptions {
        stretch: (Duration::ZERO, recorded_time(&recording)),
        growth_confidence: Some(CONFIDENCE),
        are_sites_findings: false,
        needs_all_sites: false,
        scores: None,
    };
    let growth = is_whole.then(|| {
        let source = NameSource::of_recording(&recording, symbols);
        recorded_evidence(&recording, source, &options)
    });
    let growth = growth.transpose().with_context(name)?;
    args.json.print(&advise(&Facts {
        profile: &profile,
        account: account.as_deref(),
        growth: growth.as_ref(),
        is_running: running.is_some(),
    }))
}

/// What is resident now, if another allocator than glibc's has the heap and says what is in it: a trace does not ask.
fn split_by_allocator(pid: i32, hold: HoldLimit, recording: &Recording) -> Option<RssReport> {
    let recorded = account(recording)?;
    let is_foreign = |part: &&RssPart| part.name == Part::ForeignHeap.name() && part.bytes > 0;
    recorded.parts.iter().find(is_foreign)?;
    let limits = CopyLimits {
        hold,
        max_memory: None,
    };
    let Looked { account, meta } = rss::looked_at(pid, limits, false, true).ok()?;
    account.allocator.as_ref()?;
    let view = RssView {
        top: usize::MAX,
        pins: false,
    };
    Some(RssReport::new(pid, &account, meta.as_ref(), view))
}
