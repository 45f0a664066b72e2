//! `attach`: traces one or several running processes, reports, and detaches.

mod events;
mod exported;
mod several;

use super::report_job::{self, ReportJob, Reports};
use super::signals;
use super::stale::StaleSection;
use crate::live::scored_trace::Scratch;
use crate::log;
use crate::output::say;
use crate::target::Target;
use anyhow::bail;
use exported::Export;
use memhook_attach::{
    DEPTH_OF_REPORTS, DEPTH_TO_ROOTS, Recording, Session, Trace, TraceConfig, hook_plan, refuse,
};
use memhook_foreign::units;
use memhook_ledger::Observer;
use memhook_process::process_name;
use memhook_report::{ReportStream, ReportWriter, counted};
use std::path::{Path, PathBuf};
use std::{process::ExitCode, sync::Arc, time::Duration};

/// Options of `attach`.
#[derive(clap::Args, Clone)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Trace all matching processes, including future ones
    ///
    /// Traces all processes with this name or in this control group, until Ctrl-C or the end of --duration.
    #[arg(long, conflicts_with_all = ["dry_run"])]
    all: bool,
    /// Trace its children and their children, too
    ///
    /// This includes future children. A child is traced from its first call of an allocator, and no fork is stopped for
    /// that. If too many children start at the same time, memhook-rs finds the remaining ones within a few
    /// milliseconds, and does not see their earlier allocations.
    #[arg(long, conflicts_with_all = ["all", "dry_run"])]
    follow_fork: bool,
    /// Detach after this time (500ms, 30s, 10m)
    #[arg(short, long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,
    /// Show what would be hooked, and leave the process alone
    #[arg(long)]
    dry_run: bool,
    /// At the end, also report what nobody has touched for this time [30s]
    ///
    /// Blocks that were allocated since the attach and that nobody has read or written, by call stack, with
    /// 95 % intervals. Watching takes at most 1 % of the process's time. With --leaks, each site says how
    /// much of it is unreachable, reachable and stale, or in use.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "30s",
          value_parser = units::duration, conflicts_with_all = ["all", "follow_fork", "dry_run"])]
    stale: Option<Duration>,
    /// Time between reports
    #[arg(short, long, value_name = "TIME", value_parser = units::duration, default_value = "5s",
          help_heading = "Reports")]
    interval: Duration,
    /// Write each event as a line of JSON to this file
    ///
    /// For your own programs that read allocations and releases. - is standard output, and reports then go to standard
    /// error; FILE may also be a named pipe. Each call stack has a line with its names before it is first used. If the
    /// reader is slow, stopped or gone, the process is not slowed down: the stream counts events that found no space.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["all", "follow_fork", "dry_run"],
          help_heading = "Reports")]
    events: Option<PathBuf>,
    #[command(flatten)]
    reports: report_job::Args,
}

impl Args {
    /// Returns the configuration of a trace. A recording has deeper stacks, because flame graphs
    /// and trees need the roots.
    fn config(&self, is_recorded: bool) -> TraceConfig {
        let depth = match is_recorded {
            true => DEPTH_TO_ROOTS,
            false => DEPTH_OF_REPORTS,
        };
        let tracing = self.reports.tracing.with_depth(depth);
        let needs_all = self.reports.scores.are_wanted()
            || self.reports.recording.is_summary()
            || self.events.is_some();
        if needs_all {
            tracing.resolve_recorded(is_recorded)
        } else {
            tracing.for_running().resolve_recorded(is_recorded)
        }
    }

    /// Returns the job of an attached process.
    fn job(&self, pid: i32, written: &Arc<Reports>, depth: u32) -> ReportJob {
        let (args, interval) = (&self.reports, Some(self.interval));
        ReportJob::new(pid, written, args, depth, interval, args.handover())
            .announced((!args.quiet).then_some(announce))
            .with_stale(
                self.stale
                    .map(|older| StaleSection::new(pid, older, args.view.top)),
            )
            .telling_backtraces(args.tracing.check_memo || log::is_verbose())
    }
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.reports.check_triggers()?;
    if args.all || args.follow_fork {
        return several::run(args);
    }
    let pid = args.target.pid()?;
    let reports = &args.reports;
    events::check(args)?;
    let (recorded, mut path) = reports.recording.split(reports.output.as_deref(), pid)?;
    let export = Export::new(
        reports.format,
        path.as_deref(),
        recorded.is_some(),
        reports.force,
    )?;
    let recorded = match &export {
        Some(export) => {
            // No report is written.
            path = None;
            Some(export.recording.clone())
        }
        None => recorded,
    };
    if export.is_some() && reports.scores.are_wanted() {
        bail!("--scores is for text and JSON: leave it out of -f, or record with -o FILE.mhk");
    }
    if export.is_some() && reports.tracing.mappings {
        bail!(
            "--mappings with -f: such a format holds one kind of memory; record with -o FILE.mhk, and then: \
             memhook-rs report FILE.mappings.mhk -f FORMAT"
        );
    }
    if export.is_some() && reports.tracing.allocators.is_used() {
        bail!(
            "allocators of your own with -f: such a format holds one heap; record with -o FILE.mhk, and then: \
             memhook-rs report FILE.HEAP.mhk -f FORMAT"
        );
    }
    let is_scratch = reports.scores.are_wanted() && recorded.is_none();
    let scratch = is_scratch.then(Scratch::new).transpose()?;
    let recorded = recorded.or_else(|| Some(scratch.as_ref()?.path.clone()));
    let recorded = match recorded {
        Some(path) => Some((
            path,
            reports.recording.resolve(reports.force, &reports.tracing)?,
        )),
        None => None,
    };
    if reports.tracing.allocators.is_used() {
        super::record::refuse_stream(
            recorded.as_ref().map(|(path, _)| path.as_path()),
            "each allocator of your own makes a recording",
        )?;
    }
    if reports.tracing.mappings {
        super::record::refuse_stream(
            recorded.as_ref().map(|(path, _)| path.as_path()),
            "--mappings makes two recordings",
        )?;
    }
    let recorded_path = recorded.as_ref().map(|(path, _)| path.clone());
    reports.check_scores(recorded.as_ref().map(|(_, options)| options))?;
    let config = args.config(recorded.is_some());
    let depth = config.depth;
    refuse(pid, &config)?;
    if args.dry_run {
        return dry_run(pid, &config);
    }
    // The output is opened before the target is touched, so that an error does not affect the target.
    let stream = match &args.events {
        Some(path) if events::is_standard_output(path) => ReportStream::Err,
        _ => ReportStream::Out,
    };
    let output = reports.open(stream, path.as_deref())?;
    let events = args.events.as_deref();
    let events = events.map(|path| events::Output::open(path, reports.force));
    let events = events.transpose()?;
    let recording = match &recorded {
        Some((path, options)) if scratch.is_some() => {
            let of_heap = config.of_heap_alone();
            Some(Recording::create(path, options, pid, &of_heap)?)
        }
        Some((path, options)) => Some(Recording::create(path, options, pid, &config)?),
        None => None,
    };
    signals::catch_stops();
    let is_streamed = recorded_path.as_deref() == Some(Path::new(memhook_recording::STREAM));
    let is_scored = scratch.is_some();
    let job = |written: &Arc<Reports>| {
        let job = args.job(pid, written, depth).recorded_for_scores(is_scored);
        if export.is_some() || is_streamed {
            return job.without_reports();
        }
        job
    };
    if let Some(events) = events {
        let (queue, observer) = events::queue();
        let trace = super::record::start(pid, config.clone(), recording, observer);
        let (mut trace, written) = traced(trace, output)?;
        let mut job = events.job(&config, queue, job(&written), &written);
        trace.run(args.duration, &mut job);
        return Ok(ExitCode::from(written.exit_code()));
    }
    let trace = super::record::start(pid, config, recording, ());
    let (mut trace, written) = traced(trace, output)?;
    trace.run(args.duration, &mut job(&written));
    let code = written.exit_code();
    if let Some(export) = export {
        export.write(trace.session())?;
    }
    Ok(ExitCode::from(code))
}

/// Starts a trace and its reports. If the trace does not start, no output remains.
fn traced<O: Observer>(
    trace: Result<Trace<O>, memhook_attach::Error>,
    output: ReportWriter,
) -> anyhow::Result<(Trace<O>, Arc<Reports>)> {
    match trace {
        Ok(trace) => Ok((trace, Reports::new(output))),
        Err(error) => {
            output.abandon();
            Err(error.into())
        }
    }
}

/// Returns a text such as `61 slots in 7 modules`.
pub fn hooked(session: &Session) -> String {
    let (slots, modules) = session.patched();
    format!(
        "{} in {}",
        counted(slots, "slot"),
        counted(modules, "module")
    )
}

/// Prints a line about the attach.
fn announce(session: &Session) {
    let hooked = hooked(session);
    if session.found().is_some() {
        // If the process has ended, it no longer has a name. A child runs its parent's program.
        let program = session.modules().first().map(|module| module.name());
        eprintln!(
            "Attached to {} ({}) at its birth: {hooked}. Ctrl-C to detach",
            session.pid(),
            memhook_foreign::visible(program.unwrap_or_default()),
        );
        return;
    }
    eprintln!(
        "Attached to {} ({}) in {:.1} ms (one thread held {:.1} ms): {hooked}. Ctrl-C to detach",
        session.pid(),
        memhook_foreign::visible(&process_name(session.pid())),
        session.attach_time().as_secs_f64() * 1e3,
        session.held_time().as_secs_f64() * 1e3,
    );
}

/// Prints what an attach would patch.
fn dry_run(pid: i32, config: &TraceConfig) -> anyhow::Result<ExitCode> {
    let plan = hook_plan(pid, config)?;
    let slots: usize = plan.iter().map(|module| module.slots.len()).sum();
    say!("{} would be patched:", counted(slots as u64, "slot"));
    for module in plan {
        if !module.slots.is_empty() {
            say!("  {}: {}", module.image.path, module.slots.join(" "));
        }
        for (symbol, reason) in &module.unhookable {
            say!("  {}: not {symbol}: {reason}", module.image.path);
        }
        let pads = module.pads.iter().map(|(name, _)| name.as_str());
        let pads: Vec<&str> = pads.collect();
        if !pads.is_empty() {
            say!(
                "  {}: at their entries: {}",
                module.image.path,
                pads.join(" ")
            );
        }
        for (symbol, _, why) in &module.refused_pads {
            say!("  {}: not {symbol}: {why}", module.image.path);
        }
    }
    Ok(ExitCode::SUCCESS)
}
