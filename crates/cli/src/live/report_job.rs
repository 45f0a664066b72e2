//! Job of `attach` and `run`: reports during a trace, and the last report.

mod args;
mod heap_balance;
mod reports;

use super::last_look::last_look;
use super::looks::Looks;
use super::model::Reporter;
use super::signals::NameWait;
use super::stale::StaleSection;
use super::triggered::Triggered;
use super::{ending, record, scored_trace};
use crate::exit_code;
use crate::options::HoldLimit;
use memhook_attach::{End, Ending, HeapBalance, Job, Session, Trace, Turn, gap_said};
use memhook_checkup::{LastLook, PinnedMemory, Searched};
use memhook_heap::Limits;
use memhook_ledger::Observer;
use memhook_process::{command_line, process_age, resident_counters};
use memhook_recording::{CALL_TIMES_NOTE, ScoreOptions};
use memhook_report::{
    Ended, Formula, Progress, ReportModel, RssReport, RssView, UnreachableSite, call_times_note,
    milliseconds,
};
use memhook_symbols::Symbolizer;
use std::{
    ops::ControlFlow,
    path::Path,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::Duration,
};

pub use args::Args;
pub use reports::Reports;

/// The memory of a process at its end. The thread that stopped the process passes it to the job.
pub type Handover = Arc<Mutex<Option<LastLook>>>;

/// Maximum share of the process's time that may be spent on looks at blocks.
const LOOK_BUDGET: f64 = 0.02;
/// Length of each wait for names at the end. Signals are checked after each wait.
const NAMES_PAUSE: Duration = Duration::from_millis(50);

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
    /// Command line of one process among several, as last read.
    title: Option<String>,
    /// Time for which a child ran before it was found. Set only after the attach, and only for a
    /// child that was found after its start.
    unseen: Option<Duration>,
    /// Message about the attach, printed when the process is traced.
    announce: Option<fn(&Session)>,
    /// True if the end of the trace reports how backtraces were found.
    tells_backtraces: bool,
    finds_possible: bool,
    /// Time for which the process may be held for the last look.
    hold: HoldLimit,
    /// Scoring of sites, if scores were requested.
    scores: Option<ScoreOptions>,
    /// Formulas of the user's own scores.
    formulas: Vec<Formula>,
    /// True if the trace is recorded only for its scores.
    is_scratch: bool,
    /// Receiver of the copy of the memory, if it is searched for unreachable blocks.
    last_look: Option<Handover>,
    /// Section about untouched memory, if requested.
    stale: Option<StaleSection>,
    /// Active looks at single blocks.
    looks: Option<Looks>,
    /// Unreachable blocks at the end, for the recording.
    unreachable: Option<Vec<UnreachableSite>>,
    /// Results of the looks, for the recording.
    seen: Option<(&'static str, String)>,
    /// Budget of the looks.
    look_budget: f64,
    /// True if reports have the account of resident memory.
    has_account: bool,
    /// True if the last report lists the blocks that pin memory.
    has_pins: bool,
    /// Actions that are performed when numbers reach a limit.
    triggered: Triggered,
    /// True if some blocks are not traced, so that the size of the remaining memory would be
    /// meaningless.
    is_selective: bool,
    /// Resident bytes, and the time at which they were read.
    resident: Option<(Duration, u64)>,
    /// True if a requested report is not finished yet.
    is_report_asked: bool,
    /// Memory that malloc had handed out at the beginning; set once it is known.
    beginning: Option<Option<HeapBalance>>,
    /// Memory that malloc had handed out at the last reading.
    balance: Option<HeapBalance>,
    /// Account of resident memory before the detach.
    last_account: Option<RssReport>,
    /// Copy of the memory before the detach.
    pinned: Option<PinnedMemory>,
}

impl ReportJob {
    /// Creates a job that has reported nothing yet. `interval` is the time between two reports;
    /// with `None`, only the final report is written.
    pub fn new(
        pid: i32,
        reports: &Arc<Reports>,
        args: &Args,
        depth: u32,
        interval: Option<Duration>,
        last_look: Option<Handover>,
    ) -> ReportJob {
        ReportJob {
            pid,
            reports: Arc::clone(reports),
            reporter: Reporter::new(pid, args.view.clone(), depth),
            interval,
            next: interval,
            top: args.view.top,
            is_quiet: args.quiet,
            shows_reports: true,
            title: None,
            unseen: None,
            announce: None,
            tells_backtraces: false,
            finds_possible: args.show_possible,
            hold: args.hold,
            scores: args.scores.options(),
            formulas: args.scores.as_typed(),
            is_scratch: false,
            last_look,
            stale: None,
            looks: None,
            unreachable: None,
            seen: None,
            look_budget: args.tracing.access.budget.unwrap_or(LOOK_BUDGET),
            has_account: args.rss.is_some(),
            has_pins: args.rss == Some(args::Resident::Pins),
            triggered: args.triggers.of(pid),
            is_selective: args.tracing.is_selective() || !args.tracing.functions().is_empty(),
            resident: None,
            is_report_asked: false,
            beginning: None,
            balance: None,
            last_account: None,
            pinned: None,
        }
    }

    /// Adds a section about untouched memory.
    pub fn with_stale(self, stale: Option<StaleSection>) -> ReportJob {
        ReportJob { stale, ..self }
    }

    /// Adds a line above each report that names its process.
    pub fn titled(self) -> ReportJob {
        let title = Some(String::new());
        ReportJob { title, ..self }
    }

    /// Turns off the reports.
    pub fn without_reports(self) -> ReportJob {
        ReportJob {
            is_quiet: true,
            ..self
        }
    }

    /// Creates a recording that is used only for the scores and is removed afterwards.
    pub fn recorded_for_scores(self, is_scratch: bool) -> ReportJob {
        ReportJob { is_scratch, ..self }
    }

    /// Marks the process as a child of a traced process. Its reports state that nothing was seen
    /// before the child was found.
    pub fn of_child(self) -> ReportJob {
        ReportJob {
            unseen: Some(Duration::ZERO),
            ..self
        }
    }

    /// Adds a message that is printed when the process is traced.
    pub fn announced(self, announce: Option<fn(&Session)>) -> ReportJob {
        ReportJob { announce, ..self }
    }

    /// Adds a line at the end about the backtraces.
    pub fn telling_backtraces(self, tells_backtraces: bool) -> ReportJob {
        ReportJob {
            tells_backtraces,
            ..self
        }
    }

    fn write(&self, report: &ReportModel) {
        let command = self.title.as_ref();
        let unseen = self.unseen.map_or(String::new(), |before| {
            let before = milliseconds(before.as_millis() as u64);
            format!(" (seen from {before} after it began: what it allocated before is not counted)")
        });
        let title = command.map(|command| format!("Process {}: {command}{unseen}\n", self.pid));
        let mut output = self.reports.output();
        output.write_titled(&title.unwrap_or_default(), report);
    }

    /// Reads the resident memory once a second, because a process that has ended no longer has any.
    fn look_at_resident(&mut self, now: Duration) {
        const PAUSE: Duration = Duration::from_secs(1);
        let is_due = |(last, _)| now.saturating_sub(last) >= PAUSE;
        if self.shows_reports && !self.is_selective && self.resident.is_none_or(is_due) {
            let found = resident_counters(self.pid).map(|counters| counters.resident());
            self.resident = found.map(|bytes| (now, bytes)).or(self.resident);
        }
    }

    /// Reads the command line, in which many programs describe their work, especially after a fork.
    /// It can no longer be read when the process has ended.
    fn look_at_command_line(&mut self) {
        if let Some(title) = &mut self.title {
            let now = command_line(self.pid);
            if !now.is_empty() {
                *title = now;
            }
        }
    }

    /// Reports errors of the trace.
    fn judge<O: Observer + Send>(&self, trace: &Trace<O>, end: &End) -> u8 {
        let mut code = ending::of_trace(end, self.pid);
        let region = trace.session().region();
        if self.tells_backtraces {
            let losses = region.losses();
            eprintln!(
                "{} backtraces unwound, {} remembered ones checked, {} of those wrong",
                losses.unwound, losses.memo_checked, losses.memo_wrong
            );
            if losses.memo_wrong > 0 {
                code = exit_code::WRONG;
            }
        }
        if !trace.consumer().gaps(trace.consumer().elapsed()).is_empty() {
            code = code.max(exit_code::HAS_GAPS);
        }
        code
    }

    /// Adds the scores, computed from the recording, to the last report.
    fn score(&self, session: &Session, recording: &Path, report: &mut ReportModel) {
        let Some(options) = &self.scores else {
            return;
        };
        let mut symbols = Symbolizer::new(session.root().search_order());
        symbols.set_modules(session.module_files());
        match scored_trace::of_file(recording, symbols, options) {
            Ok(mut found) => {
                if let Err(error) = found.add_formulas(&self.formulas) {
                    self.lacks_scores(&error);
                }
                scored_trace::add(report, found);
            }
            Err(error) => self.lacks_scores(error.as_ref()),
        }
    }

    fn lacks_scores(&self, error: &(dyn std::error::Error + 'static)) {
        let why = crate::remedies::in_words(error);
        eprintln!("memhook-rs: the scores are not known: {why}");
        self.reports.is_incomplete.store(true, Relaxed);
    }

    /// Reports how an attached process has ended. If there are several processes, such as a
    /// server's workers, only failures are reported.
    fn tell_ending<O: Observer + Send>(&self, trace: &Trace<O>) {
        let is_usual = |ending: &Ending| matches!(ending, Ending::Exited(0) | Ending::Unknown);
        let is_told = |ending: &Ending| self.title.is_none() || !is_usual(ending);
        if let Some(ending) = trace.ending().filter(is_told) {
            eprintln!("memhook-rs: process {} {ending}", self.pid);
        }
    }

    /// Removes all watchpoints.
    fn end_looks(&mut self) {
        if let Some(looks) = self.looks.take() {
            let (seen, told) = looks.end();
            self.seen = Some(seen);
            for text in told.iter().filter(|_| !self.is_quiet) {
                eprintln!("memhook-rs: {text}");
            }
        }
    }

    fn account_view(&self) -> RssView {
        RssView {
            top: self.top,
            pins: self.has_pins,
        }
    }

    /// Returns the last report with all names that arrive during the wait for them.
    fn named(&mut self, session: &Session, wait: &NameWait) -> Option<ReportModel> {
        loop {
            if let Some(report) = self.reporter.poll(session, NAMES_PAUSE) {
                return Some(report);
            }
            if wait.is_over() {
                return self.reporter.give_up_names(session);
            }
        }
    }

    fn name_wait(&self) -> NameWait {
        if self.title.is_some() {
            NameWait::begin_beside_others()
        } else {
            NameWait::begin()
        }
    }

    /// Writes a report that was requested just before the end, because it may contain data that the
    /// last report lacks.
    fn finish_asked(&mut self, session: &Session) {
        if std::mem::take(&mut self.is_report_asked) {
            let wait = self.name_wait();
            if let Some(mut report) = self.named(session, &wait) {
                report.rss_bytes = self.resident.map(|(_, bytes)| bytes);
                self.write(&report);
            }
        }
    }

    fn last_report<O: Observer + Send>(&mut self, trace: &Trace<O>) -> Option<ReportModel> {
        let (session, consumer) = (trace.session(), trace.consumer());
        let _progress = Progress::start("looking up names");
        let wait = self.name_wait();
        let handover = self.last_look.as_ref();
        let look = handover.map(|handover| {
            let taken = handover.lock().unwrap_or_else(|e| e.into_inner()).take();
            taken.unwrap_or_else(LastLook::too_late)
        });
        let stale = self
            .stale
            .as_mut()
            .and_then(|section| section.report(trace, look.as_ref().and_then(LastLook::snapshot)));
        let searched = look.map(|look| look.search_in(consumer, self.finds_possible));
        let unreachable = searched.as_ref().and_then(Searched::unreachable);
        self.unreachable = unreachable.map(<[_]>::to_vec);
        if let Some(sites) = &self.unreachable {
            self.reporter.set_unreachable(sites.clone());
        }
        self.reporter.begin(session, consumer, true);
        let mut report = self.named(session, &wait)?;
        let view = self.account_view();
        let pinned = self.pinned.take();
        let pinned = pinned.map(|pinned| {
            pinned
                .report(session, consumer, &mut self.reporter, view)
                .report
        });
        report.rss_bytes = self.resident.map(|(_, bytes)| bytes);
        report.heap_comparison = self.heap_comparison();
        report.rss = pinned.or(self.last_account.take()).map(Box::new);
        report.stale = stale;
        report.leaks =
            searched.map(|searched| searched.report(session, &mut self.reporter, self.top));
        Some(report)
    }
}

impl<O: Observer + Send + 'static> Job<O> for ReportJob {
    fn begin(&mut self, trace: &Trace<O>) {
        // With --quiet and a recording, no reports are printed.
        self.shows_reports = !(self.is_quiet && trace.is_recorded() && !self.is_scratch);
        self.look_at_command_line();
        // If a process is traced from its creation, all of its blocks were seen, from the first one
        // on.
        let is_seen = trace.session().found().is_some();
        self.unseen = match self.unseen {
            Some(_) if !is_seen => process_age(self.pid),
            _ => None,
        };
        self.looks = Looks::begin(trace, self.look_budget).unwrap_or_else(|error| {
            eprintln!(
                "memhook-rs: accesses are not sampled: {}",
                crate::remedies::in_words(error.as_ref())
            );
            self.reports.is_incomplete.store(true, Relaxed);
            None
        });
    }

    fn turn(&mut self, trace: &Trace<O>, turn: &Turn) -> ControlFlow<()> {
        // malloc's sums are read before the trace is announced, so that the reading comes soon
        // after the start of the trace.
        if self.beginning.is_none() && !turn.gone {
            self.look_at_heap(trace);
        }
        if let Some(announce) = self.announce.take() {
            announce(trace.session());
        }
        if turn.is_last {
            if !turn.gone {
                self.look_at_heap(trace);
            }
            // The last report has everything.
            return ControlFlow::Continue(());
        }
        self.look_at_command_line();
        if let Some(failure) = self.stale.as_mut().and_then(|section| section.turn(trace)) {
            eprintln!("memhook-rs: {failure}");
            self.reports.is_incomplete.store(true, Relaxed);
        }
        let now = trace.consumer().elapsed();
        self.look_at_resident(now);
        if self.shows_reports && self.next.is_some_and(|next| now >= next) {
            self.next = self.interval.map(|interval| now.saturating_add(interval));
            self.reporter
                .begin(trace.session(), trace.consumer(), false);
        }
        let asked = self.triggered.turn(trace);
        if asked.report && self.shows_reports {
            self.is_report_asked = true;
            self.reporter
                .begin(trace.session(), trace.consumer(), false);
        } else if asked.report {
            eprintln!("memhook-rs: no report is written beside this output");
        }
        // The lookup of names may take a long time, and a dlopen of the target does not wait for
        // it.
        if let Some(mut report) = self.reporter.poll(trace.session(), Duration::ZERO) {
            self.is_report_asked = false;
            self.look_at_heap(trace);
            report.heap_comparison = self.heap_comparison();
            if self.has_account {
                report.rss = self.account(trace).map(Box::new);
            }
            report.rss_bytes = self.resident.map(|(_, bytes)| bytes);
            self.write(&report);
        }
        if asked.detach {
            return ControlFlow::Break(());
        }
        // A recording continues even if nobody reads the reports.
        if self.reports.output().is_closed() && (!trace.is_recorded() || self.is_scratch) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn before_detach(&mut self, trace: &Trace<O>) {
        self.end_looks();
        self.look_at_resident(Duration::MAX);
        // The watch for stale blocks is ended first, because the copy of the memory watches pages
        // too.
        if let Some(section) = &mut self.stale {
            section.before_detach(trace);
        }
        if self.has_account {
            self.last_account = self.account(trace);
        }
        if self.has_pins {
            self.pinned = Some(PinnedMemory::take(
                self.pid,
                trace.consumer(),
                Limits {
                    hold: self.hold.max_hold.or(Limits::default().hold),
                    ..Limits::default()
                },
            ));
        }
        if trace.session().traces_mappings() {
            self.reporter
                .look_at_mappings(trace.session(), trace.consumer());
        }
        if let Some(handover) = &self.last_look {
            let look = last_look(self.pid, trace.consumer(), self.hold);
            *handover.lock().unwrap_or_else(|e| e.into_inner()) = Some(look);
        }
    }

    fn end(&mut self, trace: &mut Trace<O>, end: &End) {
        self.end_looks();
        self.tell_ending(trace);
        let gaps = trace.consumer().gaps(trace.consumer().elapsed());
        if let Some(gap) = gaps.last() {
            self.reports.has_gaps.store(true, Relaxed);
            if trace.session().region().abandoned_at_ns().is_some() {
                // This gap was still open when the trace ended. All other gaps were reported when
                // they ended.
                eprintln!("memhook-rs: {}", gap_said(self.pid, *gap));
            }
        }
        // If the program executes another program, only the recording is kept.
        let mut report = match end {
            End::Executed => None,
            _ => {
                self.finish_asked(trace.session());
                self.last_report(trace)
            }
        };
        let mut notes = report.as_ref().map_or(Vec::new(), |report| {
            memhook_checkup::notes(report, self.unreachable.as_deref())
        });
        let times = trace.consumer().call_times();
        let times = times.and_then(|times| call_times_note(&times));
        notes.extend(times.map(|text| (CALL_TIMES_NOTE, text)));
        notes.extend(self.seen.take());
        let mut recordings = trace.finish_recordings(&notes).into_iter();
        let of_heap = recordings.next();
        for of_mappings in recordings {
            if !record::tell(&of_mappings, self.is_quiet) {
                self.reports.is_incomplete.store(true, Relaxed);
            }
        }
        if let Some(recorded) = of_heap {
            let is_complete = record::tell(&recorded, self.is_quiet || self.is_scratch);
            if !is_complete {
                self.reports.is_incomplete.store(true, Relaxed);
            }
            if let Some(report) = &mut report
                && is_complete
            {
                self.score(trace.session(), &recorded.path, report);
            }
        }
        if let Some(mut report) = report.filter(|_| self.shows_reports) {
            report.ended = trace.ending().map(ended);
            self.write(&report);
        }
        self.reports.code.fetch_max(self.judge(trace, end), Relaxed);
    }

    fn notice(&mut self, text: &str) {
        eprintln!("memhook-rs: {text}");
    }
}

fn ended(ending: Ending) -> Ended {
    let none = Ended::default();
    match ending {
        Ending::Exited(status) => Ended {
            status: Some(status),
            ..none
        },
        Ending::Killed(signal) => Ended {
            signal: Some(signal),
            ..none
        },
        Ending::Executed => Ended {
            executes: true,
            ..none
        },
        Ending::Unknown => none,
    }
}
