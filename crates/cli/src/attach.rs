//! `attach`: trace a running process, report, leave.

use crate::options::duration;
use crate::output::say;
use crate::report_job::{self, ReportJob, Reports};
use crate::{exit_code, signals};
use memhook_attach::{Recording, Session, Trace, TraceConfig, hook_plan, process_name, refuse};
use memhook_report::ReportStream;
use std::{process::ExitCode, time::Duration};

/// Options of `attach`.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// The process to trace
    #[arg(required_unless_present = "pid_option", value_parser = crate::options::pid)]
    pid: Option<i32>,
    /// The process to trace, as an option
    #[arg(short = 'p', long = "pid", id = "pid_option", value_name = "PID", conflicts_with = "pid",
          value_parser = crate::options::pid)]
    pid_option: Option<i32>,
    /// Detach after this time (500ms, 30s, 10m)
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Show what would be hooked, and leave the process alone
    #[arg(long)]
    dry_run: bool,
    /// Print details about the attach and the tracing
    #[arg(short, long, conflicts_with = "quiet")]
    verbose: bool,
    /// Time between reports
    #[arg(short, long, value_name = "TIME", value_parser = duration, default_value = "5s",
          help_heading = "Reports")]
    interval: Duration,
    #[command(flatten)]
    reports: report_job::Args,
}

impl Args {
    /// The options of a plain `attach PID --duration`.
    pub fn plain(pid: i32, duration: Duration, top: usize) -> Args {
        use clap::Parser;
        #[derive(clap::Parser)]
        struct Only {
            #[command(flatten)]
            args: Args,
        }
        let mut args = Only::parse_from(["attach", &pid.to_string()]).args;
        args.duration = Some(duration);
        args.interval = Duration::MAX;
        args.reports.view.top = top;
        args
    }
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let pid = args.pid.or(args.pid_option).unwrap_or(0);
    let reports = &args.reports;
    let (recorded, path) = reports.recording.split(reports.output.as_deref(), pid)?;
    let recorded = match recorded {
        Some(path) => Some((
            path,
            reports.recording.resolve(reports.force, &reports.tracing)?,
        )),
        None => None,
    };
    let config = reports.tracing.resolve();
    refuse(pid, &config)?;
    if args.dry_run {
        return dry_run(pid, &config);
    }
    // Before the target is touched: an output that cannot be written costs nothing then.
    let output = reports.open(ReportStream::Out, path.as_deref(), args.verbose)?;
    let recording = match &recorded {
        Some((path, options)) => Some(Recording::create(path, options, pid, &config)?),
        None => None,
    };
    signals::catch_stops();
    let mut trace = match Trace::start(pid, config) {
        Ok(trace) => trace,
        Err(error) => {
            output.abandon();
            if let Some(recording) = recording {
                recording.abandon();
            }
            return Err(error.into());
        }
    };
    if !reports.quiet {
        announce(trace.session());
    }
    if let Some(recording) = recording {
        trace.record(recording);
    }
    let (interval, last_look) = (Some(args.interval), reports.handover());
    let written = Reports::new(output);
    let mut job = ReportJob::new(pid, &written, reports, interval, last_look);
    let end = trace.run(args.duration, &mut job);
    let mut code = exit_code::of_trace(end, pid);
    let region = trace.session().region();
    if reports.tracing.check_memo || args.verbose {
        let losses = region.losses();
        eprintln!(
            "{} backtraces unwound, {} remembered ones checked, {} of those wrong",
            losses.unwound, losses.memo_checked, losses.memo_wrong
        );
        if losses.memo_wrong > 0 {
            code = exit_code::WRONG;
        }
    }
    if region.abandoned() {
        code = code.max(exit_code::CUT_SHORT);
    }
    if !written.finish() || written.is_incomplete() {
        code = code.max(exit_code::BAD_INPUT);
    }
    Ok(ExitCode::from(code))
}

/// Says what was attached to.
fn announce(session: &Session) {
    let (slots, modules) = session.patched();
    eprintln!(
        "Attached to {} ({}) in {:.1} ms (one thread held {:.1} ms): {slots} slots in {modules} modules. Ctrl-C to detach",
        session.pid(),
        memhook_foreign::visible(&process_name(session.pid())),
        session.attach_time.as_secs_f64() * 1e3,
        session.held_time.as_secs_f64() * 1e3,
    );
}

/// Prints what an attach would patch.
fn dry_run(pid: i32, config: &TraceConfig) -> anyhow::Result<ExitCode> {
    let plan = hook_plan(pid, config)?;
    let slots: usize = plan.iter().map(|module| module.slots.len()).sum();
    say!("{slots} slots would be patched:");
    for module in plan {
        if !module.slots.is_empty() {
            say!("  {}: {}", module.image.path, module.slots.join(" "));
        }
        for (symbol, reason) in &module.unhookable {
            say!("  {}: not {symbol}: {reason}", module.image.path);
        }
    }
    Ok(ExitCode::SUCCESS)
}
