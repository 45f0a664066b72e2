//! `attach --follow-fork` and `attach --all`: several processes, each with its own reports and
//! recording.

use super::Args;
use crate::live::report_job::Reports;
use crate::live::signals;
use crate::{exit_code, remedies};
use anyhow::bail;
use memhook_attach::{Assigner, Error, Followed, Recording, TraceConfig, Work, follow, refuse};
use memhook_report::{ReportStream, output_name};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let reports = &args.reports;
    reports.check_format("attach to several processes")?;
    let (recorded_name, _) = reports.recording.split(reports.output.as_deref(), 0)?;
    super::super::record::refuse_stream(recorded_name.as_deref(), "each process has a recording")?;
    let config = args.config(recorded_name.is_some());
    let (followed, head) = if args.all {
        (Followed::Matching(args.target.selector()?), 0)
    } else {
        let pid = args.target.pid()?;
        refuse(pid, &config)?;
        (Followed::Family(pid), pid)
    };
    let (recorded, path) = reports.recording.split(reports.output.as_deref(), head)?;
    let is_of_one = |name: &PathBuf| output_name(name, 1).ok() != output_name(name, 2).ok();
    if path.is_some() && reports.output.as_ref().is_some_and(is_of_one) {
        bail!("the reports of all processes go into one file: leave %p out of its name");
    }
    let recording = match recorded {
        Some(_) => Some(reports.recording.resolve(reports.force, &reports.tracing)?),
        None => None,
    };
    if recording.is_none() && reports.scores.are_wanted() {
        bail!("--scores with several processes: add -o FILE.mhk, so that each of them is recorded");
    }
    reports.check_scores(recording.as_ref())?;
    let output = reports.open(ReportStream::Out, path.as_deref())?;
    signals::catch_stops();
    let mut several = Several {
        args,
        head,
        config: &config,
        recording,
        reports: Reports::new(output),
        has_refused: false,
    };
    let count = match follow(followed, &config, args.duration, &mut several) {
        Ok(count) => count,
        Err(error) => {
            several.reports.finish();
            return Err(error.into());
        }
    };
    let mut code = several.reports.exit_code();
    if count.missed > 0 && !reports.quiet {
        eprintln!(
            "memhook-rs: not traced because they ended too soon: {}",
            count.missed
        );
    }
    if count.late > 0 && !reports.quiet {
        eprintln!(
            "memhook-rs: not traced from their birth, because too many processes started at the same time: {}",
            count.late
        );
    }
    if several.has_refused || count.traced == 0 {
        code = code.max(exit_code::BAD_INPUT);
    }
    if count.traced == 0 && !several.has_refused {
        eprintln!("memhook-rs: no process was traced");
    }
    Ok(ExitCode::from(code))
}

/// The jobs of the processes.
struct Several<'a> {
    args: &'a Args,
    /// The named process, if any.
    head: i32,
    config: &'a TraceConfig,
    /// Options of each process's recording.
    recording: Option<memhook_recording::Options>,
    reports: Arc<Reports>,
    has_refused: bool,
}

impl Several<'_> {
    /// Returns the file in which a process is recorded.
    fn file(&self, name: &Path, pid: i32, program: u32) -> PathBuf {
        // The name was checked at the start, so filling in the pid cannot fail.
        let of = |pid| output_name(name, pid).unwrap_or_else(|_| name.to_owned());
        let is_named = pid == self.head || of(pid) != of(0);
        Recording::path_of(&of(pid), (!is_named).then_some(pid), program)
    }
}

impl Assigner for Several<'_> {
    fn work(&mut self, pid: i32, program: u32) -> Result<Work, Error> {
        let recording = match (&self.recording, &self.args.reports.output) {
            (Some(options), Some(name)) => {
                let file = self.file(name, pid, program);
                Some(Recording::create(&file, options, pid, self.config)?)
            }
            _ => None,
        };
        let mut job = self
            .args
            .job(pid, &self.reports, self.config.depth)
            .titled();
        // The start time of an executed program is unknown, but later than the start time of its
        // process.
        if self.head != 0 && pid != self.head && program == 1 {
            job = job.of_child();
        }
        Ok(Work {
            job: Box::new(job),
            recording,
        })
    }

    fn is_over(&mut self) -> bool {
        self.reports.is_closed() && self.recording.is_none()
    }

    fn waits(&mut self) {
        if !self.args.reports.quiet {
            eprintln!("memhook-rs: no such process yet; waiting for one. Ctrl-C to end");
        }
    }

    fn is_not_traced(&mut self, pid: i32, why: &Error) {
        self.has_refused = true;
        let why = remedies::in_words(why);
        eprintln!("memhook-rs: process {pid} is not traced: {why}");
    }
}
