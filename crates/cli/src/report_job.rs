//! What `attach` and `run` do with a trace: reports now and then, and the last one.

use crate::last_look::LastLook;
use crate::model::Reporter;
use crate::options::View;
use crate::{record, signals::NameWait};
use memhook_attach::{End, Job, Trace, Turn};
use memhook_report::ReportModel;
use memhook_report::ReportWriter;
use std::{
    ops::ControlFlow,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

/// How long one look for names takes at the end; then signals are looked for.
const NAMES_PAUSE: Duration = Duration::from_millis(50);

/// Where the reports of all traced processes go.
pub struct Reports {
    output: Mutex<ReportWriter>,
    is_incomplete: AtomicBool,
}

impl Reports {
    /// Into this output.
    pub fn new(output: ReportWriter) -> Arc<Reports> {
        Arc::new(Reports {
            output: Mutex::new(output),
            is_incomplete: AtomicBool::new(false),
        })
    }

    fn output(&self) -> MutexGuard<'_, ReportWriter> {
        self.output.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Waits until everything is written, and tells what could not be. An output that got no report is left as
    /// it was. Returns whether all was written.
    pub fn finish(&self) -> bool {
        let finished = self.output().finish();
        if let Err(error) = &finished {
            eprintln!("memhook-rs: not every report could be written: {error}");
        }
        finished.is_ok()
    }

    /// Whether a recording is not complete.
    pub fn is_incomplete(&self) -> bool {
        self.is_incomplete.load(Relaxed)
    }
}

/// The reports of one process.
pub struct ReportJob {
    pid: i32,
    reports: Arc<Reports>,
    reporter: Reporter,
    interval: Option<Duration>,
    next: Option<Duration>,
    top: usize,
    is_quiet: bool,
    shows_reports: bool,
    title: String,
    /// At the end, search the memory for what nothing reaches.
    finds_leaks: bool,
    finds_possible: bool,
    last_look: Option<LastLook>,
}

impl ReportJob {
    /// A job that has reported nothing yet. `interval`: between two reports; `None`: only the last one.
    pub fn new(
        pid: i32,
        reports: &Arc<Reports>,
        view: &View,
        depth: u32,
        interval: Option<Duration>,
        is_quiet: bool,
    ) -> ReportJob {
        ReportJob {
            pid,
            reports: Arc::clone(reports),
            reporter: Reporter::new(pid, view.clone(), depth),
            interval,
            next: interval,
            top: view.top,
            is_quiet,
            shows_reports: true,
            title: String::new(),
            finds_leaks: false,
            finds_possible: false,
            last_look: None,
        }
    }

    /// With a line above each report that says which process it is about.
    pub fn titled(self, title: String) -> ReportJob {
        ReportJob { title, ..self }
    }

    /// With a search for leaks at the end.
    pub fn finding_leaks(self, finds_leaks: bool, finds_possible: bool) -> ReportJob {
        ReportJob {
            finds_leaks,
            finds_possible,
            ..self
        }
    }

    fn write(&self, report: &ReportModel) {
        self.reports.output().write_titled(&self.title, report);
    }

    /// The last report, with the names that are there when nobody waits any longer.
    fn last_report(&mut self, trace: &Trace) -> Option<ReportModel> {
        let (session, consumer) = (trace.session(), trace.consumer());
        let wait = NameWait::begin();
        self.reporter.begin(session, consumer, true);
        let report = loop {
            if let Some(report) = self.reporter.poll(session, NAMES_PAUSE) {
                break Some(report);
            }
            if wait.is_over() {
                break self.reporter.give_up_names(session);
            }
        };
        let mut report = report?;
        if self.finds_leaks {
            let look = self.last_look.take().unwrap_or_else(LastLook::too_late);
            report.leaks = Some(look.leaks(
                session,
                consumer,
                &mut self.reporter,
                self.top,
                self.finds_possible,
            ));
        }
        Some(report)
    }
}

impl Job for ReportJob {
    fn begin(&mut self, trace: &Trace) {
        // With --quiet and a recording, no reports are printed.
        self.shows_reports = !(self.is_quiet && trace.is_recorded());
    }

    fn turn(&mut self, trace: &Trace, turn: &Turn) -> ControlFlow<()> {
        if turn.is_last {
            // The last report says it all.
            return ControlFlow::Continue(());
        }
        let now = trace.consumer().elapsed();
        if self.shows_reports && self.next.is_some_and(|next| now >= next) {
            self.next = self.interval.map(|interval| now.saturating_add(interval));
            self.reporter
                .begin(trace.session(), trace.consumer(), false);
        }
        // Names may take their time; a dlopen of the target does not wait for them.
        if let Some(report) = self.reporter.poll(trace.session(), Duration::ZERO) {
            self.write(&report);
        }
        // A recording goes on when nobody reads the reports.
        if self.reports.output().is_closed() && !trace.is_recorded() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn before_detach(&mut self, trace: &Trace) {
        self.last_look = self
            .finds_leaks
            .then(|| LastLook::take(self.pid, trace.consumer()));
    }

    fn end(&mut self, trace: &mut Trace, end: &End) {
        if trace.session().region().abandoned() {
            // As after Ctrl-Z: events are missing from then on, so the trace ends there.
            eprintln!(
                "memhook-rs: process {} waited for us too long and went on untraced",
                self.pid
            );
        }
        // Of a program that executes another one, only the recording is kept.
        let report = match end {
            End::Executed => None,
            _ => self.last_report(trace),
        };
        let coverage = report.as_ref().and_then(record::coverage);
        if let Some(recorded) = trace.finish_recording(coverage)
            && !record::tell(&recorded, self.is_quiet)
        {
            self.reports.is_incomplete.store(true, Relaxed);
        }
        if let Some(report) = report.filter(|_| self.shows_reports) {
            self.write(&report);
        }
    }

    fn notice(&mut self, text: &str) {
        eprintln!("memhook-rs: {text}");
    }
}
