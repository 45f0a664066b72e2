//! `run`: start a program, trace it from before its first constructor, report at its end.

use crate::attach::{Tracing, View};
use crate::consumer::Consumer;
use crate::model::Reporter;
use crate::options::{Color, duration};
use crate::output::{self, Output, Stream};
use crate::plan;
use crate::program::{Attached, Program, end_as};
use crate::session::Session;
use memhook_inject::{Event, StartPoint};
use std::{ffi::OsString, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

/// Options of `run`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    tracing: Tracing,
    /// Report every so often, not only at the end
    #[arg(short, long, value_parser = duration)]
    interval: Option<Duration>,
    #[command(flatten)]
    view: View,
    /// Reports as JSON
    #[arg(short, long)]
    json: bool,
    /// Write the reports into this file, not to standard error; %p: process id, %h: host
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Overwrite the output file
    #[arg(long)]
    force: bool,
    /// When to use colours
    #[arg(long, value_enum, default_value = "auto")]
    color: Color,
    /// No status lines
    #[arg(short, long)]
    quiet: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command; the exit code is the program's.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = args.tracing.config()?;
    let functions = plan::selected_functions(&args.tracing.functions)?;
    let mut program = Program::start(&args.command)?;
    let pid = program.child.pid();
    let opened = open(args, pid);
    let mut output = match opened {
        Ok(output) => output,
        Err(error) => {
            program.child.kill();
            return Err(error);
        }
    };
    let mut is_first = true;
    loop {
        let (mut session, point) = match program.attach(&config, &functions) {
            Ok(Attached::Traced(session, point)) => (session, point),
            Ok(Attached::Ended(status)) => {
                output.abandon();
                return Ok(end_as(status));
            }
            Err(error) if is_first => {
                program.child.kill();
                output.abandon();
                return Err(error);
            }
            Err(error) => {
                eprintln!("memhook-rs: not traced any more: {error:#}");
                program.child.set_off()?;
                let status = program.finish()?;
                return Ok(end_as(status));
            }
        };
        is_first = false;
        if !args.quiet {
            announce(&session, pid, point);
        }
        let region = Arc::clone(session.shared_region());
        let consumer = Consumer::new(&region, &args.tracing);
        let mut reporter = Reporter::new(pid, args.view.clone(), args.tracing.depth);
        let mut next = args.interval;
        let event = program.run(&mut session, &consumer, &mut |session| {
            if let Some(at) = next.filter(|&at| consumer.elapsed() >= at) {
                next = args.interval.map(|pause| at.saturating_add(pause));
                reporter.begin(session, &consumer, false);
            }
            if let Some(report) = reporter.poll(session, Duration::ZERO) {
                output.write(&report);
            }
        })?;
        if region.abandoned() {
            eprintln!("memhook-rs: process {pid} waited for us too long and went on untraced");
        }
        if event == Event::Executed {
            if !args.quiet {
                eprintln!(
                    "memhook-rs: process {pid} executes another program, which is traced now"
                );
            }
            continue;
        }
        reporter.begin(&session, &consumer, true);
        let status = program.finish()?;
        while let Some(report) = Some(reporter.poll(&session, Duration::from_millis(50))) {
            if let Some(report) = report {
                output.write(&report);
                break;
            }
        }
        if let Err(error) = output.finish() {
            eprintln!("memhook-rs: not every report could be written: {error}");
        }
        return Ok(end_as(status));
    }
}

fn open(args: &Args, pid: i32) -> anyhow::Result<Output> {
    let path = args.output.as_deref().map(|path| output::expand(path, pid));
    let path = path.transpose()?;
    let style = output::style(path.as_deref(), args.color, false);
    Output::open_or(Stream::Err, path.as_deref(), args.force, args.json, style)
}

/// Says where the trace begins.
pub fn announce(session: &Session, pid: i32, point: StartPoint) {
    let (slots, modules) = session.patched();
    let from = match point {
        StartPoint::Entry => "its entry point (its libraries' constructors have run)",
        _ => "before its constructors",
    };
    eprintln!(
        "Tracing {pid} ({}) from {from}, prepared in {:.1} ms: {slots} slots in {modules} modules",
        crate::attach::name_of(pid),
        session.attach_time.as_secs_f64() * 1e3,
    );
}
