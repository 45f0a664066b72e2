//! `run`: start a program, trace it from before its first constructor, report at its end.

use crate::exit_code::end_as;
use crate::model::Reporter;
use crate::options::{Color, View, duration};
use crate::output;
use crate::record;
use crate::tracing::{StartOptions, Tracing};
use memhook_attach::{
    Consumer, End, Error, Facts, Job, Observer, Program, Recording, Session, TraceConfig,
    command_line, process_name,
};
use memhook_inject::StartPoint;
use memhook_report::{ReportStream, ReportWriter};
use std::{
    collections::HashMap,
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

/// Options of `run`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    tracing: Tracing,
    #[command(flatten)]
    start: StartOptions,
    /// Report every so often, not only at the end
    #[arg(short, long, value_parser = duration)]
    interval: Option<Duration>,
    #[command(flatten)]
    view: View,
    /// Reports as JSON
    #[arg(short, long)]
    json: bool,
    /// Write the reports into this file, not to standard error, or record into it if its name ends in .mhk; %p:
    /// process id, %h: host. A further process is recorded into NAME.PID.mhk
    #[arg(short, long)]
    output: Option<PathBuf>,
    #[command(flatten)]
    recording: record::Args,
    /// Overwrite the output file
    #[arg(long)]
    force: bool,
    /// When to use colours
    #[arg(long, value_enum, default_value = "auto")]
    color: Color,
    /// No status lines; while recording, no reports either
    #[arg(short, long)]
    quiet: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command; the exit code is the program's.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = args.tracing.resolve();
    let program = Program::start(&args.command, args.start.follow_fork, &config)?;
    let pid = program.pid();
    let mut observer = match Reports::open(args, config, pid) {
        Ok(observer) => observer,
        Err(error) => {
            program.kill();
            return Err(error);
        }
    };
    let shared = Arc::clone(&observer.shared);
    let status = match program.run(&mut observer) {
        Ok(status) => status,
        Err(error) => {
            observer.abandon();
            return Err(error.into());
        }
    };
    let output = Arc::into_inner(std::mem::take(&mut observer.output));
    if let Some(output) = output {
        let mut output = output.into_inner().unwrap_or_else(|e| e.into_inner());
        if shared.has_reported.load(Relaxed) {
            if let Some(Err(error)) = output.as_mut().map(ReportWriter::finish) {
                eprintln!("memhook-rs: not every report could be written: {error}");
            }
        } else if let Some(output) = output {
            output.abandon();
        }
    }
    Ok(match status {
        0 if shared.is_incomplete.load(Relaxed) => ExitCode::from(2),
        _ => end_as(status),
    })
}

/// What the threads of several processes share.
#[derive(Default)]
struct Shared {
    has_reported: AtomicBool,
    /// A recording is not complete.
    is_incomplete: AtomicBool,
}

type SharedOutput = Arc<Mutex<Option<ReportWriter>>>;

fn lock(output: &SharedOutput) -> MutexGuard<'_, Option<ReportWriter>> {
    output.lock().unwrap_or_else(|e| e.into_inner())
}

/// Reports and recordings of the processes.
struct Reports<'a> {
    args: &'a Args,
    config: TraceConfig,
    /// How a process is recorded.
    options: memhook_recording::Options,
    first: i32,
    output: SharedOutput,
    /// Where the first process is recorded.
    recorded: Option<PathBuf>,
    /// Its file, from before it is touched.
    first_recording: Option<Recording>,
    /// Programs executed, by process.
    programs: HashMap<i32, u32>,
    shared: Arc<Shared>,
}

impl<'a> Reports<'a> {
    fn open(args: &'a Args, config: TraceConfig, pid: i32) -> anyhow::Result<Reports<'a>> {
        let options = args.recording.resolve(args.force, &args.tracing)?;
        let path = args.output.as_deref().map(|path| output::expand(path, pid));
        let path = path.transpose()?;
        let (recorded, path) = match args.recording.is_asked_for(path.as_deref()) {
            true => (path, None),
            false => (None, path),
        };
        let style = output::style(path.as_deref(), args.color, false);
        let output = ReportWriter::open_or(
            ReportStream::Err,
            path.as_deref(),
            args.force,
            args.json,
            style,
        )?;
        let mut reports = Reports {
            args,
            config,
            options,
            first: pid,
            output: Arc::new(Mutex::new(Some(output))),
            recorded,
            first_recording: None,
            programs: HashMap::new(),
            shared: Arc::default(),
        };
        let first_recording = reports.recording(pid, 1);
        reports.first_recording = match first_recording {
            Ok(recording) => recording,
            Err(error) => {
                reports.abandon();
                return Err(error.into());
            }
        };
        Ok(reports)
    }

    /// Takes empty files away again.
    fn abandon(&mut self) {
        if let Some(output) = lock(&self.output).take() {
            output.abandon();
        }
        if let Some(recording) = self.first_recording.take() {
            recording.abandon();
        }
    }

    /// The recording of the `program`th program that a process executes.
    fn recording(&self, pid: i32, program: u32) -> Result<Option<Recording>, Error> {
        let Some(path) = &self.recorded else {
            return Ok(None);
        };
        let path = match pid == self.first {
            true => path.clone(),
            false => inserted(path, &pid.to_string()),
        };
        let path = match program {
            1 => path,
            n => inserted(&path, &format!("exec{}", n - 1)),
        };
        Recording::create(&path, &self.options, pid, &self.config).map(Some)
    }
}

/// `run.mhk` and `17`: `run.17.mhk`.
fn inserted(path: &Path, word: &str) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = match path.extension() {
        Some(extension) => format!("{stem}.{word}.{}", extension.to_string_lossy()),
        None => format!("{stem}.{word}"),
    };
    path.with_file_name(name)
}

impl Observer for Reports<'_> {
    fn begins(&mut self, session: &Session, point: StartPoint) -> Result<Box<dyn Job>, Error> {
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
        let title = match args.start.follow_fork {
            true => format!("Process {pid}: {}\n", command_line(pid)),
            false => String::new(),
        };
        Ok(Box::new(ReportJob {
            pid,
            title,
            reporter: Reporter::new(pid, args.view.clone(), args.tracing.depth),
            interval: args.interval,
            next: args.interval,
            is_quiet: args.quiet,
            output: Arc::clone(&self.output),
            shared: Arc::clone(&self.shared),
            recording,
            facts: None,
        }))
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

/// The reports of one process.
struct ReportJob {
    pid: i32,
    /// Which process it is, where there may be several.
    title: String,
    reporter: Reporter,
    interval: Option<Duration>,
    next: Option<Duration>,
    is_quiet: bool,
    output: SharedOutput,
    shared: Arc<Shared>,
    recording: Option<Recording>,
    facts: Option<Facts>,
}

impl ReportJob {
    /// With --quiet and a recording, no reports are printed.
    fn shows_reports(&self) -> bool {
        self.facts.is_none() || !self.is_quiet
    }

    fn write(&self, report: &memhook_report::ReportModel) {
        self.shared.has_reported.store(true, Relaxed);
        if let Some(output) = lock(&self.output).as_mut() {
            output.write_titled(&self.title, report);
        }
    }
}

impl Job for ReportJob {
    fn begin(&mut self, session: &Session, consumer: &Consumer<'_>) {
        let recording = self.recording.take();
        self.facts = recording.map(|recording| recording.begin(session, consumer));
    }

    fn turn(&mut self, session: &Session, consumer: &Consumer<'_>, modules_changed: bool) {
        if let Some(facts) = &mut self.facts
            && let Some(notice) = facts.follow(session, consumer, modules_changed)
        {
            eprintln!("memhook-rs: {notice}");
        }
        if let Some(at) = self.next.filter(|&at| consumer.elapsed() >= at)
            && self.shows_reports()
        {
            self.next = self.interval.map(|pause| at.saturating_add(pause));
            self.reporter.begin(session, consumer, false);
        }
        if let Some(report) = self.reporter.poll(session, Duration::ZERO) {
            self.write(&report);
        }
    }

    fn end(mut self: Box<Self>, session: &Session, consumer: &Consumer<'_>, end: End) {
        if session.region().abandoned() {
            eprintln!(
                "memhook-rs: process {} waited for us too long and went on untraced",
                self.pid
            );
        }
        // Of a program that executes another one only the recording is kept.
        let mut report = None;
        if end != End::Executed {
            self.reporter.begin(session, consumer, true);
            while report.is_none() {
                report = self.reporter.poll(session, Duration::from_millis(50));
            }
        }
        let shown = self.shows_reports();
        let coverage = report.as_ref().and_then(record::coverage);
        if let Some(facts) = &mut self.facts
            && let Some(recorded) = facts.finish(session, consumer, coverage)
            && !record::tell(&recorded, self.is_quiet)
        {
            self.shared.is_incomplete.store(true, Relaxed);
        }
        if let Some(report) = report.filter(|_| shown) {
            self.write(&report);
        }
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
