//! `run`: starts a program, traces it from before its first constructor, and reports at its end.

use super::attach::hooked;
use super::ending::end_as;
use super::report_job::{self, Handover, ReportJob, Reports};
use super::scored_trace::Scratch;
use crate::exit_code;
use crate::tracing::StartOptions;
use anyhow::bail;
use memhook_attach::{
    DEPTH_TO_ROOTS, Error, Observer, Outcome, Program, Recording, Session, TraceConfig, Work,
    leaving,
};
use memhook_checkup::LastLook;
use memhook_foreign::units;
use memhook_heap::capture_ending;
use memhook_inject::{Child, StartPoint};
use memhook_process::{ModuleImage, process_name};
use memhook_report::ReportStream;
use std::{
    collections::HashMap,
    ffi::OsString,
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, OnceLock},
    time::Duration,
};

/// Options of `run`.
#[derive(clap::Args)]
pub struct Args {
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    #[command(flatten)]
    start: StartOptions,
    /// Trace for this long, then leave the program running
    ///
    /// The report is made then. `run` still waits for the program and ends with its status.
    #[arg(short, long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,
    /// Also report at this interval, not only at the end
    #[arg(short, long, value_name = "TIME", value_parser = units::duration, help_heading = "Reports")]
    interval: Option<Duration>,
    #[command(flatten)]
    reports: report_job::Args,
}

/// Runs the command. The exit code is the program's, or that of the trace if the program succeeded.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.reports.check_format("run")?;
    args.reports.check_triggers()?;
    let tracing = args.reports.tracing.with_depth(DEPTH_TO_ROOTS);
    let reports = &args.reports;
    let recorded = reports.recording.split(reports.output.as_deref(), 0)?.0;
    if reports.tracing.allocators.is_used() {
        super::record::refuse_stream(
            recorded.as_deref(),
            "each allocator of your own makes a recording",
        )?;
    }
    let config = tracing.resolve_recorded(recorded.is_some() || reports.scores.are_wanted());
    // This is set as soon as an output exists.
    let reports = OnceLock::<Arc<Reports>>::new();
    let status = leaving(|| launch(args, config, &reports));
    let reports = reports.get();
    if let Some(reports) = reports {
        reports.finish();
    }
    let status = status?;
    Ok(match (status, reports) {
        (0, Some(reports)) if reports.is_incomplete() => ExitCode::from(exit_code::BAD_INPUT),
        (0, Some(reports)) if reports.has_gaps() => ExitCode::from(exit_code::HAS_GAPS),
        _ => end_as(status),
    })
}

/// Starts the program and traces it to its end or for the given time.
fn launch(
    args: &Args,
    config: TraceConfig,
    reports: &OnceLock<Arc<Reports>>,
) -> anyhow::Result<Outcome> {
    let program = Program::start(&args.command, args.start.follow_fork, &config)?;
    let mut observer = match Started::open(args, config, program.pid()) {
        Ok(observer) => observer,
        Err(error) => {
            program.kill();
            return Err(error);
        }
    };
    let _ = reports.set(Arc::clone(&observer.reports));
    let outcome = program.run_for(args.duration, &mut observer);
    if outcome.is_err() {
        observer.abandon();
    }
    Ok(outcome?)
}

/// Reports and recordings of the processes.
struct Started<'a> {
    args: &'a Args,
    config: TraceConfig,
    /// Options of a process's recording.
    options: memhook_recording::Options,
    first: i32,
    reports: Arc<Reports>,
    /// File in which the first process is recorded.
    recorded: Option<PathBuf>,
    /// True if recordings are made only for the scores.
    is_scratch: bool,
    /// File of the latest such recording.
    scratch: Option<Scratch>,
    /// Recording of the first process, opened before the process is touched.
    first_recording: Option<Recording>,
    /// Number of executed programs for each process.
    programs: HashMap<i32, u32>,
    /// Receivers of the memory of processes that have stopped at their end.
    last_looks: HashMap<i32, Handover>,
}

impl<'a> Started<'a> {
    fn open(args: &'a Args, config: TraceConfig, pid: i32) -> anyhow::Result<Started<'a>> {
        let reports = &args.reports;
        let (recorded, path) = reports.recording.split(reports.output.as_deref(), pid)?;
        super::record::refuse_stream(recorded.as_deref(), "run: standard output is the program's")?;
        if args.start.follow_fork && recorded.is_none() && reports.scores.are_wanted() {
            bail!("--scores with --follow-fork: add -o FILE.mhk, so that each process is recorded");
        }
        let is_scratch = reports.scores.are_wanted() && recorded.is_none();
        let options = if is_scratch || recorded.is_some() {
            reports.recording.resolve(reports.force, &reports.tracing)?
        } else {
            memhook_recording::Options::default()
        };
        let is_recorded = is_scratch || recorded.is_some();
        reports.check_scores(is_recorded.then_some(&options))?;
        let output = reports.open(ReportStream::Err, path.as_deref())?;
        let mut started = Started {
            args,
            config,
            options,
            first: pid,
            reports: Reports::new(output),
            recorded,
            is_scratch,
            scratch: None,
            first_recording: None,
            programs: HashMap::new(),
            last_looks: HashMap::new(),
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

    /// Removes empty files.
    fn abandon(&mut self) {
        self.reports.finish();
        if let Some(recording) = self.first_recording.take() {
            recording.abandon();
        }
    }

    /// Returns the recording of the `program`th program that a process executes.
    fn recording(&mut self, pid: i32, program: u32) -> Result<Option<Recording>, Error> {
        if self.is_scratch {
            // The recording of the previous program has been read.
            let scratch = Scratch::new()
                .map_err(|error| Error::Refused(format!("the scores need room: {error}")))?;
            let path = &self.scratch.insert(scratch).path;
            let of_heap = self.config.of_heap_alone();
            return Recording::create(path, &self.options, pid, &of_heap).map(Some);
        }
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
        if !args.reports.quiet {
            announce(session, pid, point);
        }
        let last_look = args.reports.handover();
        self.last_looks
            .extend(last_look.clone().map(|look| (pid, look)));
        let (depth, interval) = (self.config.depth, args.interval);
        let job = ReportJob::new(
            pid,
            &self.reports,
            &args.reports,
            depth,
            interval,
            last_look,
        );
        let job = job.recorded_for_scores(self.is_scratch);
        let job = if args.start.follow_fork {
            job.titled()
        } else {
            job
        };
        Ok(Work {
            job: Box::new(job),
            recording,
        })
    }

    fn at_end(&mut self, child: &Child, pid: i32, modules: Option<Vec<ModuleImage>>) {
        if let (Some(handover), Some(modules)) = (self.last_looks.get(&pid), modules) {
            let look = LastLook::at_end(capture_ending(child, pid, modules));
            *handover.lock().unwrap_or_else(|e| e.into_inner()) = Some(look);
        }
    }

    fn executes(&mut self, pid: i32) {
        if !self.args.reports.quiet && self.programs.contains_key(&pid) {
            eprintln!("memhook-rs: process {pid} executes another program, which is traced now");
        }
    }

    fn is_not_traced(&mut self, pid: i32, why: &Error) {
        eprintln!(
            "memhook-rs: process {pid} is not traced: {}",
            crate::remedies::in_words(why)
        );
    }
}

/// Prints the point at which the trace begins.
fn announce(session: &Session, pid: i32, point: StartPoint) {
    let hooked = hooked(session);
    let from = match point {
        StartPoint::Entry => "its entry point (its libraries' constructors have run)",
        _ => "before its constructors",
    };
    eprintln!(
        "Tracing {pid} ({}) from {from}, prepared in {:.1} ms: {hooked}",
        memhook_foreign::visible(&process_name(pid)),
        session.attach_time().as_secs_f64() * 1e3,
    );
}
