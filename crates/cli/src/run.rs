//! `run`: start a program, trace it from before its first constructor, report at its end.

use crate::exit_code::{self, end_as};
use crate::options::{Color, View, duration};
use crate::output;
use crate::record;
use crate::report_job::{ReportJob, Reports};
use crate::tracing::{DEPTH_TO_ROOTS, StartOptions, Tracing};
use memhook_attach::{
    Error, Observer, Program, Recording, Session, TraceConfig, Work, command_line, process_name,
};
use memhook_inject::StartPoint;
use memhook_report::{ReportStream, ReportWriter};
use std::{
    collections::HashMap, ffi::OsString, path::PathBuf, process::ExitCode, sync::Arc,
    time::Duration,
};

/// Options of `run`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    tracing: Tracing,
    #[command(flatten)]
    start: StartOptions,
    /// Report at this interval, and not only at the end
    #[arg(short, long, value_parser = duration)]
    interval: Option<Duration>,
    #[command(flatten)]
    view: View,
    /// Write the reports as JSON
    #[arg(short, long)]
    json: bool,
    /// Write the reports to this file instead of standard error, or a recording if its name ends in
    /// .mhk; in the name, %p is the process id and %h the host name. Further processes are recorded
    /// into NAME.PID.mhk
    #[arg(short, long)]
    output: Option<PathBuf>,
    #[command(flatten)]
    recording: record::Args,
    /// Overwrite the output file if it exists
    #[arg(long)]
    force: bool,
    /// When to use colours
    #[arg(long, value_enum, default_value = "auto")]
    color: Color,
    /// Print no status lines; with a recording, print no reports either
    #[arg(short, long)]
    quiet: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command. The exit code is the program's; of one that succeeded, that of the trace.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = args.tracing.with_depth(DEPTH_TO_ROOTS).resolve();
    let program = Program::start(&args.command, args.start.follow_fork, &config)?;
    let pid = program.pid();
    let mut observer = match Started::open(args, config, pid) {
        Ok(observer) => observer,
        Err(error) => {
            program.kill();
            return Err(error);
        }
    };
    let status = match program.run(&mut observer) {
        Ok(status) => status,
        Err(error) => {
            observer.abandon();
            return Err(error.into());
        }
    };
    observer.reports.finish();
    Ok(match status {
        0 if observer.reports.is_incomplete() => ExitCode::from(exit_code::BAD_INPUT),
        0 if observer.reports.has_gaps() => ExitCode::from(exit_code::HAS_GAPS),
        _ => end_as(status),
    })
}

/// Reports and recordings of the processes.
struct Started<'a> {
    args: &'a Args,
    config: TraceConfig,
    /// How a process is recorded.
    options: memhook_recording::Options,
    first: i32,
    reports: Arc<Reports>,
    /// Where the first process is recorded.
    recorded: Option<PathBuf>,
    /// Its file, from before it is touched.
    first_recording: Option<Recording>,
    /// Programs executed, by process.
    programs: HashMap<i32, u32>,
}

impl<'a> Started<'a> {
    fn open(args: &'a Args, config: TraceConfig, pid: i32) -> anyhow::Result<Started<'a>> {
        let (recorded, path) = args.recording.split(args.output.as_deref(), pid)?;
        let options = if recorded.is_some() {
            args.recording.resolve(args.force, &args.tracing)?
        } else {
            memhook_recording::Options::default()
        };
        let style = output::style(path.as_deref(), args.color, false);
        let output = ReportWriter::open_or(
            ReportStream::Err,
            path.as_deref(),
            args.force,
            args.json,
            style,
        )?;
        let mut started = Started {
            args,
            config,
            options,
            first: pid,
            reports: Reports::new(output),
            recorded,
            first_recording: None,
            programs: HashMap::new(),
        };
        let first_recording = started.recording(pid, 1);
        started.first_recording = match first_recording {
            Ok(recording) => recording,
            Err(error) => {
                started.abandon();
                return Err(error.into());
            }
        };
        Ok(started)
    }

    /// Takes empty files away again.
    fn abandon(&mut self) {
        self.reports.finish();
        if let Some(recording) = self.first_recording.take() {
            recording.abandon();
        }
    }

    /// The recording of the `program`th program that a process executes.
    fn recording(&self, pid: i32, program: u32) -> Result<Option<Recording>, Error> {
        let Some(path) = &self.recorded else {
            return Ok(None);
        };
        let other = (pid != self.first).then_some(pid);
        let path = Recording::path_of(path, other, program);
        Recording::create(&path, &self.options, pid, &self.config).map(Some)
    }
}

impl Observer for Started<'_> {
    fn begins(&mut self, session: &Session, point: StartPoint) -> Result<Work, Error> {
        let (args, pid) = (self.args, session.pid());
        let program = self.programs.entry(pid).or_insert(0);
        *program += 1;
        let recording = match self.first_recording.take() {
            Some(first) => Some(first),
            None => {
                let program = *program;
                self.recording(pid, program)?
            }
        };
        if !args.quiet {
            announce(session, pid, point);
        }
        let title = if args.start.follow_fork {
            format!("Process {pid}: {}\n", command_line(pid))
        } else {
            String::new()
        };
        let depth = self.config.depth;
        let job = ReportJob::new(
            pid,
            &self.reports,
            &args.view,
            depth,
            args.interval,
            args.quiet,
        );
        Ok(Work {
            job: Box::new(job.titled(title)),
            recording,
        })
    }

    fn executes(&mut self, pid: i32) {
        if !self.args.quiet && self.programs.contains_key(&pid) {
            eprintln!("memhook-rs: process {pid} executes another program, which is traced now");
        }
    }

    fn is_not_traced(&mut self, pid: i32, why: &Error) {
        eprintln!(
            "memhook-rs: process {pid} is not traced: {}",
            crate::printing::chain(why)
        );
    }
}

/// Says where the trace begins.
fn announce(session: &Session, pid: i32, point: StartPoint) {
    let (slots, modules) = session.patched();
    let from = match point {
        StartPoint::Entry => "its entry point (its libraries' constructors have run)",
        _ => "before its constructors",
    };
    eprintln!(
        "Tracing {pid} ({}) from {from}, prepared in {:.1} ms: {slots} slots in {modules} modules",
        memhook_foreign::visible(&process_name(pid)),
        session.attach_time.as_secs_f64() * 1e3,
    );
}
