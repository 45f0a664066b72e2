//! What `attach` and `run` do with a trace: reports now and then, and the last one.

use super::frames::module_files;
use super::last_look::LastLook;
use super::looks::Looks;
use super::model::Reporter;
use super::resident::{self, PinnedMemory};
use super::signals::NameWait;
use super::stale::StaleSection;
use super::triggered::{self, Triggered};
use super::{ending, record, scored_trace};
use crate::exit_code;
use crate::options::{Color, View};
use crate::report::parse;
use crate::tracing::{Access, Tracing};
use memhook_attach::{End, Job, Session, Trace, Turn, command_line, gap_said};
use memhook_process::process_age;
use memhook_recording::{Mode, Options, ScoreOptions};
use memhook_report::{
    FormatChoice, Progress, ReportModel, ReportStream, ReportWriter, RssReport, RssView,
    milliseconds,
};
use memhook_symbols::Symbolizer;
use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, Ordering::Relaxed},
    },
    time::Duration,
};

/// What is reported of a trace, and what is recorded.
#[derive(clap::Args, Clone)]
#[group(skip)]
pub struct Args {
    /// Print no status lines
    ///
    /// With a recording, print no reports either.
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    pub view: View,
    /// Format: text, json, folded, pprof, ...
    ///
    /// text and json are formats of reports. `attach` also writes one of the others at the end, for
    /// other programs: folded, flamegraph, pprof, heaptrack, speedscope, massif, html.
    #[arg(short, long, value_name = "FORMAT", value_parser = parse::<FormatChoice>, default_value = "text")]
    pub format: FormatChoice,
    /// Same as --format json
    #[arg(short, long, conflicts_with = "format")]
    json: bool,
    /// Use colours: auto, always or never
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    color: Color,
    /// Write the reports, or a recording (.mhk), to this file
    ///
    /// A name that ends in .mhk makes it a recording of every event, for `memhook-rs report`. In the
    /// name, %p becomes the process id and %h the host name. Without this option, reports go to
    /// standard output, and those of `run` to standard error. Of several processes, each is recorded
    /// into a file of its own: without %p, others than the first into NAME.PID.mhk.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Overwrite the output file if it exists
    #[arg(long)]
    pub force: bool,
    /// At the end, also report blocks that nothing reaches
    ///
    /// The memory of the process is copied and searched for pointers. Blocks that nothing points to
    /// any more are reported with the call stacks that allocated them.
    #[arg(long)]
    leaks: bool,
    /// With --leaks, also report what is possibly lost
    ///
    /// These are blocks that only pointers into blocks reach, of which memcheck says so.
    #[arg(long, requires = "leaks")]
    show_possible: bool,
    /// Say in each report what is resident
    ///
    /// Every resident byte of the process is in one part: live blocks, what else the allocator holds,
    /// stacks, mappings, files. Nobody is held for it.
    #[arg(long)]
    rss: bool,
    /// With --rss, say at the end which blocks keep memory from going back
    ///
    /// The memory of the process is copied, with all threads held for 50 ms at most, and its glibc heap
    /// is walked. Blocks are listed by the call stack that allocated them, with what would come back if
    /// they were freed and the heap trimmed.
    #[arg(long, requires = "rss")]
    pins: bool,
    #[command(flatten)]
    triggers: triggered::Args,
    #[command(flatten)]
    pub scores: crate::scores::Args,
    #[command(flatten)]
    pub recording: record::Args,
    #[command(flatten)]
    pub tracing: Tracing,
}

impl Args {
    /// Opens what the reports go to.
    pub fn open(
        &self,
        stream: ReportStream,
        path: Option<&Path>,
        verbose: bool,
    ) -> std::io::Result<ReportWriter> {
        let is_json = self.json || matches!(self.format, FormatChoice::Json);
        let style = crate::output::style(path, stream, self.color, verbose);
        ReportWriter::open_or(stream, path, self.force, is_json, style)
    }

    /// Refuses formats that take a recording.
    pub fn check_format(&self, command: &str) -> anyhow::Result<()> {
        if let FormatChoice::Export(format) = self.format {
            anyhow::bail!(
                "{command} writes text or JSON: for {0}, record with -o FILE.mhk, and then: memhook-rs report FILE.mhk -f {0}",
                format.name()
            );
        }
        Ok(())
    }

    /// Refuses conditions without an action, and actions without a condition.
    pub fn check_triggers(&self) -> anyhow::Result<()> {
        self.triggers.check()
    }

    /// Refuses scores that a trace with these options cannot have. `recording`: how it is recorded, if it is.
    pub fn check_scores(&self, recording: Option<&Options>) -> anyhow::Result<()> {
        if self.tracing.access == Access::Sampled && recording.is_none() {
            anyhow::bail!(
                "--access sampled is for scores: add --scores, or record with -o FILE.mhk"
            );
        }
        if !self.scores.scores {
            return Ok(());
        }
        if recording.is_some_and(|options| options.mode != Mode::Events) {
            anyhow::bail!(
                "--scores with --record summary: sums do not tell the lifetime of each block; use --record events"
            );
        }
        if self.tracing.overhead.is_some() {
            anyhow::bail!(
                "--scores with --overhead: scores need every allocation; leave --overhead out"
            );
        }
        if self.tracing.adapts() {
            anyhow::bail!(
                "--scores with --on-full adapt: scores need every allocation; use --on-full wait"
            );
        }
        if self.tracing.sample_bytes().is_some() {
            anyhow::bail!(
                "--scores with --sample: scores need every allocation; leave --sample out"
            );
        }
        if recording.is_some_and(|options| options.max_parts > 1) {
            anyhow::bail!("--scores with --max-files: scores need the whole run in one file");
        }
        Ok(())
    }

    /// If leaks are asked for: where a copy of the memory is handed over.
    pub fn handover(&self) -> Option<Handover> {
        self.leaks.then(Handover::default)
    }
}

/// The share of the process's time that looks at blocks may cost.
const LOOK_BUDGET: f64 = 0.02;
/// How long one look for names takes at the end; then signals are looked for.
const NAMES_PAUSE: Duration = Duration::from_millis(50);

/// Where the reports of all traced processes go.
pub struct Reports {
    output: Mutex<ReportWriter>,
    is_incomplete: AtomicBool,
    /// The highest exit code of a trace that has ended.
    code: AtomicU8,
    has_gaps: AtomicBool,
}

impl Reports {
    /// Into this output.
    pub fn new(output: ReportWriter) -> Arc<Reports> {
        Arc::new(Reports {
            output: Mutex::new(output),
            is_incomplete: AtomicBool::new(false),
            code: AtomicU8::new(exit_code::DONE),
            has_gaps: AtomicBool::new(false),
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

    /// Whether nobody reads them any more.
    pub fn is_closed(&self) -> bool {
        self.output().is_closed()
    }

    /// Ends the output. What became of it and of the traces, as an exit code.
    pub fn exit_code(&self) -> u8 {
        let mut code = self.code.load(Relaxed);
        if !self.finish() || self.is_incomplete() {
            code = code.max(exit_code::BAD_INPUT);
        }
        code
    }

    /// Whether a process went on untraced for a time.
    pub fn has_gaps(&self) -> bool {
        self.has_gaps.load(Relaxed)
    }

    /// Whether a recording is not complete.
    pub fn is_incomplete(&self) -> bool {
        self.is_incomplete.load(Relaxed)
    }
}

/// The memory of a process at its end, handed from the thread that stopped it to its job.
pub type Handover = Arc<Mutex<Option<LastLook>>>;

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
    /// Of one process among several: its command line when it was last looked at.
    title: Option<String>,
    /// It is a child that ran before it was found; for so long once it is traced.
    unseen: Option<Duration>,
    /// Called when the process is traced.
    announce: Option<fn(&Session)>,
    /// At the end, tell how backtraces were found.
    tells_backtraces: bool,
    finds_possible: bool,
    /// How sites are scored, if that is asked for.
    scores: Option<ScoreOptions>,
    /// The trace is recorded for its scores alone.
    is_scratch: bool,
    /// If the memory is to be searched for what nothing reaches: its copy.
    last_look: Option<Handover>,
    /// What nobody touches, if that is asked for.
    stale: Option<StaleSection>,
    /// Looks at single blocks, while they last.
    looks: Option<Looks>,
    /// What they have come to, for the recording.
    seen: Option<(&'static str, String)>,
    /// What they may cost.
    look_budget: f64,
    /// Whether reports say what is resident.
    has_account: bool,
    /// Whether the last one says what pins it.
    has_pins: bool,
    /// What is to be done when numbers reach a limit.
    triggered: Triggered,
    /// What was resident before the detach.
    last_account: Option<RssReport>,
    /// The memory of that moment.
    pinned: Option<PinnedMemory>,
}

impl ReportJob {
    /// A job that has reported nothing yet. `interval`: between two reports; `None`: only the last one.
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
            scores: args.scores.options(),
            is_scratch: false,
            last_look,
            stale: None,
            looks: None,
            seen: None,
            look_budget: args.tracing.access_budget.unwrap_or(LOOK_BUDGET),
            has_account: args.rss,
            has_pins: args.pins,
            triggered: args.triggers.of(pid),
            last_account: None,
            pinned: None,
        }
    }

    /// With a section about what nobody touches.
    pub fn with_stale(self, stale: Option<StaleSection>) -> ReportJob {
        ReportJob { stale, ..self }
    }

    /// With a line above each report that says which process it is about.
    pub fn titled(self) -> ReportJob {
        let title = Some(String::new());
        ReportJob { title, ..self }
    }

    /// With nothing reported.
    pub fn without_reports(self) -> ReportJob {
        ReportJob {
            is_quiet: true,
            ..self
        }
    }

    /// With a recording that is made for the scores alone, and goes away.
    pub fn recorded_for_scores(self, is_scratch: bool) -> ReportJob {
        ReportJob { is_scratch, ..self }
    }

    /// Of a child of a process that is traced. What it did before it was found is not seen, and reports say so.
    pub fn of_child(self) -> ReportJob {
        ReportJob {
            unseen: Some(Duration::ZERO),
            ..self
        }
    }

    /// With something to be said when the process is traced.
    pub fn announced(self, announce: Option<fn(&Session)>) -> ReportJob {
        ReportJob { announce, ..self }
    }

    /// With a line at the end about the backtraces.
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

    /// Many programs write there what they do, after a fork above all; at the end it is not to be had any more.
    fn look_at_command_line(&mut self) {
        if let Some(title) = &mut self.title {
            let now = command_line(self.pid);
            if !now.is_empty() {
                *title = now;
            }
        }
    }

    /// Tells what went wrong with the trace.
    fn judge(&self, trace: &Trace, end: &End) -> u8 {
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

    /// Adds the scores to the last report, by the recording.
    fn score(&self, session: &Session, recording: &Path, report: &mut ReportModel) {
        let Some(options) = &self.scores else {
            return;
        };
        let mut symbols = Symbolizer::new(session.root().search_order());
        symbols.set_modules(module_files(session));
        match scored_trace::of_file(recording, symbols, options) {
            Ok(found) => scored_trace::add(report, found),
            Err(error) => {
                eprintln!("memhook-rs: the scores are not known: {error:#}");
                self.reports.is_incomplete.store(true, Relaxed);
            }
        }
    }

    /// Takes all watchpoints away.
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

    /// The last report, with the names that are there when nobody waits any longer.
    fn last_report(&mut self, trace: &Trace) -> Option<ReportModel> {
        let (session, consumer) = (trace.session(), trace.consumer());
        let _progress = Progress::start("looking up names");
        let wait = if self.title.is_some() {
            NameWait::begin_beside_others()
        } else {
            NameWait::begin()
        };
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
        let view = self.account_view();
        let pinned = self.pinned.take();
        let pinned =
            pinned.map(|pinned| pinned.report(session, consumer, &mut self.reporter, view));
        report.rss = pinned.or(self.last_account.take()).map(Box::new);
        if let Some(handover) = &self.last_look {
            let look = handover.lock().unwrap_or_else(|e| e.into_inner()).take();
            let look = look.unwrap_or_else(LastLook::too_late);
            if let Some(section) = &mut self.stale {
                report.stale = section.report(trace, look.snapshot());
            }
            report.leaks = Some(look.leaks(
                session,
                consumer,
                &mut self.reporter,
                self.top,
                self.finds_possible,
            ));
        } else if let Some(section) = &mut self.stale {
            report.stale = section.report(trace, None);
        }
        Some(report)
    }
}

impl Job for ReportJob {
    fn begin(&mut self, trace: &Trace) {
        // With --quiet and a recording, no reports are printed.
        self.shows_reports = !(self.is_quiet && trace.is_recorded() && !self.is_scratch);
        self.look_at_command_line();
        // One that is traced from its birth has been seen from the first block on.
        let is_seen = trace.session().found().is_some();
        self.unseen = match self.unseen {
            Some(_) if !is_seen => process_age(self.pid),
            _ => None,
        };
        if let Some(announce) = self.announce {
            announce(trace.session());
        }
        self.looks = Looks::begin(trace, self.look_budget).unwrap_or_else(|error| {
            eprintln!("memhook-rs: accesses are not sampled: {error:#}");
            self.reports.is_incomplete.store(true, Relaxed);
            None
        });
    }

    fn turn(&mut self, trace: &Trace, turn: &Turn) -> ControlFlow<()> {
        if turn.is_last {
            // The last report says it all.
            return ControlFlow::Continue(());
        }
        self.look_at_command_line();
        if let Some(failure) = self.stale.as_mut().and_then(|section| section.turn(trace)) {
            eprintln!("memhook-rs: {failure}");
            self.reports.is_incomplete.store(true, Relaxed);
        }
        let now = trace.consumer().elapsed();
        if self.shows_reports && self.next.is_some_and(|next| now >= next) {
            self.next = self.interval.map(|interval| now.saturating_add(interval));
            self.reporter
                .begin(trace.session(), trace.consumer(), false);
        }
        let asked = self.triggered.turn(trace);
        if asked.report && self.shows_reports {
            self.reporter
                .begin(trace.session(), trace.consumer(), false);
        } else if asked.report {
            eprintln!("memhook-rs: no report is written beside this output");
        }
        // Names may take their time; a dlopen of the target does not wait for them.
        if let Some(mut report) = self.reporter.poll(trace.session(), Duration::ZERO) {
            if self.has_account {
                let view = self.account_view();
                let account = resident::of_trace(trace.session(), trace.consumer(), view);
                report.rss = account.map(Box::new);
            }
            self.write(&report);
        }
        if asked.detach {
            return ControlFlow::Break(());
        }
        // A recording goes on when nobody reads the reports.
        if self.reports.output().is_closed() && (!trace.is_recorded() || self.is_scratch) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn before_detach(&mut self, trace: &Trace) {
        self.end_looks();
        // First: the copy of the memory watches pages, too.
        if let Some(section) = &mut self.stale {
            section.before_detach(trace);
        }
        if self.has_account {
            let view = self.account_view();
            self.last_account = resident::of_trace(trace.session(), trace.consumer(), view);
        }
        if self.has_pins {
            self.pinned = Some(PinnedMemory::take(self.pid, trace.consumer()));
        }
        if trace.session().traces_mappings() {
            self.reporter
                .look_at_mappings(trace.session(), trace.consumer());
        }
        if let Some(handover) = &self.last_look {
            let look = LastLook::take(self.pid, trace.consumer());
            *handover.lock().unwrap_or_else(|e| e.into_inner()) = Some(look);
        }
    }

    fn end(&mut self, trace: &mut Trace, end: &End) {
        self.end_looks();
        let gaps = trace.consumer().gaps(trace.consumer().elapsed());
        if let Some(gap) = gaps.last() {
            self.reports.has_gaps.store(true, Relaxed);
            if trace.session().region().abandoned_at_ns().is_some() {
                // It was not over when the trace ended; others were told of when they were.
                eprintln!("memhook-rs: {}", gap_said(self.pid, *gap));
            }
        }
        // Of a program that executes another one, only the recording is kept.
        let mut report = match end {
            End::Executed => None,
            _ => self.last_report(trace),
        };
        let mut notes = report.as_ref().map_or(Vec::new(), record::notes);
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
        if let Some(report) = report.filter(|_| self.shows_reports) {
            self.write(&report);
        }
        self.reports.code.fetch_max(self.judge(trace, end), Relaxed);
    }

    fn notice(&mut self, text: &str) {
        eprintln!("memhook-rs: {text}");
    }
}
