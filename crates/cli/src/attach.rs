//! `attach`: trace a running process, report, leave.

use crate::options::{Color, Format, View, duration};
use crate::output::{self, say};
use crate::report_job::{ReportJob, Reports};
use crate::tracing::Tracing;
use crate::{exit_code, record, signals};
use memhook_attach::{Recording, Session, Trace, TraceConfig, hook_plan, process_name, refuse};
use memhook_report::ReportWriter;
use std::{path::PathBuf, process::ExitCode, time::Duration};

/// Options of `attach`.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// Process id
    #[arg(required_unless_present = "pid_option")]
    pid: Option<i32>,
    /// Process id
    #[arg(short = 'p', long = "pid", id = "pid_option", conflicts_with = "pid")]
    pid_option: Option<i32>,
    #[command(flatten)]
    pub tracing: Tracing,
    /// Detach after this time (500ms, 30s, 10m)
    #[arg(short, long, value_parser = duration)]
    pub duration: Option<Duration>,
    /// Time between two reports
    #[arg(short, long, value_parser = duration, default_value = "5s")]
    pub interval: Duration,
    #[command(flatten)]
    pub view: View,
    /// Format of the reports
    #[arg(short, long, value_enum, default_value = "text")]
    format: Format,
    /// Same as --format json
    #[arg(short, long)]
    json: bool,
    /// Write the reports to this file, or a recording if its name ends in .mhk; in the name, %p is
    /// the process id and %h the host name
    #[arg(short, long)]
    output: Option<PathBuf>,
    #[command(flatten)]
    pub recording: record::Args,
    /// Overwrite the output file if it exists
    #[arg(long)]
    pub force: bool,
    /// At the end, copy the memory of the process and also report the blocks that nothing in it
    /// reaches, with call stacks
    #[arg(long)]
    pub leaks: bool,
    /// Show what would be hooked, without touching the process
    #[arg(long)]
    dry_run: bool,
    /// When to use colours
    #[arg(long, value_enum, default_value = "auto")]
    color: Color,
    /// Print no status lines; with a recording, print no reports either
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print more about how the attach and the tracing went
    #[arg(short, long)]
    pub verbose: bool,
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
        args.view.top = top;
        args
    }
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let pid = args.pid.or(args.pid_option).unwrap_or(0);
    let (recorded, path) = args.recording.split(args.output.as_deref(), pid)?;
    let recorded = match recorded {
        Some(path) => Some((path, args.recording.resolve(args.force, &args.tracing)?)),
        None => None,
    };
    let config = if recorded.is_none() && !args.leaks {
        args.tracing.resolve_live()
    } else {
        args.tracing.resolve()
    };
    refuse(pid, &config)?;
    if args.dry_run {
        return dry_run(pid, &config);
    }
    // Before the target is touched: an output that cannot be written costs nothing then.
    let json = args.json || args.format == Format::Json;
    let style = output::style(path.as_deref(), args.color, args.verbose);
    let output = ReportWriter::open(path.as_deref(), args.force, json, style)?;
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
    if !args.quiet {
        announce(trace.session());
    }
    if let Some(recording) = recording {
        trace.record(recording);
    }
    let reports = Reports::new(output);
    let depth = args.tracing.depth;
    let interval = Some(args.interval);
    let mut job = ReportJob::new(pid, &reports, &args.view, depth, interval, args.quiet)
        .finding_leaks(args.leaks);
    let end = trace.run(args.duration, &mut job);
    let mut code = exit_code::of_trace(end, pid);
    let region = trace.session().region();
    if args.tracing.check_memo || args.verbose {
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
    if !reports.finish() || reports.is_incomplete() {
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
