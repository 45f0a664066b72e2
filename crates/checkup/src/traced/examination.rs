//! Examines a running process: records it for some time, and copies its memory at the end.

use super::StackNames;
use super::first_look::FirstLook;
use super::last_look::LastLook;
use super::mapped_sites::MappedSites;
use super::notes::{kept_overhead, notes};
use super::resident::PinnedMemory;
use super::traced_run::Traced;
use crossbeam_channel::{Receiver, Select};
use memhook_attach::{
    Accesses, CallScans, DEPTH_TO_ROOTS, End, Job, OnFull, Recording, Session, SharedFiles, Trace,
    TraceConfig, Turn,
};
use memhook_foreign::{own_name, unnamed_file_in};
use memhook_heap::{Error as HeapError, Limits, Request};
use memhook_ledger::Observer;
use memhook_process::{TargetRoot, is_static};
use memhook_recording::{Options, TWO_LOOKS_NOTE};
use memhook_report::{
    LiveReporter, LiveView, ReportModel, RowsBy, RssView, SortBy, StackFrame, UnreachableSite,
};
use memhook_stream::Gap;
use memhook_symbols::{ModuleFile, SearchPath, Symbolizer};
use std::fs::File;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

/// Duration of one wait for names, after which the attendant is queried again.
const NAMES_PAUSE: Duration = Duration::from_millis(50);

/// Fraction (1/n) of the examination after which it is too late for a first look.
const LATEST_FIRST_LOOK: u32 = 4;

/// Settings of an examination.
pub struct Examination<'a> {
    /// Length of the trace.
    pub duration: Duration,
    /// Settings of the trace.
    pub config: TraceConfig,
    /// Files shared by many processes.
    pub files: Option<&'a SharedFiles>,
    /// Looks at the process's memory at the start and at the end; `None` disables them.
    pub looks: Option<MemoryLooks>,
    /// Settings of the recording.
    pub recording: Options,
    /// Directory for the recording. The examination leaves no named file there.
    pub directory: PathBuf,
    /// Where to search for names, in addition to the process's files; `None` disables names.
    pub names: Option<SearchPath>,
}

/// Returns the settings of a trace that takes at most this share of the process's time, or that records every call.
pub fn usual_tracing(overhead: Option<f64>) -> TraceConfig {
    let on_full = match overhead {
        Some(_) => OnFull::Wait,
        None => OnFull::Adapt,
    };
    TraceConfig {
        depth: DEPTH_TO_ROOTS,
        on_full,
        ring_bytes: on_full.usual_ring_bytes(),
        overhead,
        accesses: Accesses::IfTold,
        ..TraceConfig::default()
    }
}

/// Copies of the memory: one at the start of an examination, and two at its end.
pub struct MemoryLooks {
    /// Request for the copy that is searched for unreachable blocks.
    pub search: Request,
    /// Limits of each copy in which the heap is walked.
    pub walk: Limits,
    /// Function that describes a failed copy in words.
    pub words: fn(&HeapError) -> String,
}

/// The caller's part during an examination.
pub trait Attendant {
    /// Returns true if a signal that ends this program also ends the examination.
    fn ends_by_signal(&self) -> bool {
        true
    }

    /// Returns the longest time between two turns.
    fn pace(&self) -> Duration {
        Duration::from_millis(10)
    }

    /// Returns a channel whose messages end the wait for the next turn. `is_called_off` receives them.
    fn calls(&self) -> Option<&Receiver<()>> {
        None
    }

    /// Called once the process is traced.
    fn attached(&mut self, _session: &Session) {}

    /// Called each turn, with the id of the thread that takes the events. Returns true to end the examination without
    /// the final looks.
    fn is_called_off(&mut self, _drainer: Option<i32>) -> bool {
        false
    }

    /// Called repeatedly before the memory is copied, until it returns true. The copy is then
    /// permitted.
    fn may_look(&mut self) -> bool {
        true
    }

    /// Called after the first copy.
    fn has_looked(&mut self) {}

    /// Returns true to stop waiting for names.
    fn gives_up_names(&self) -> bool;

    /// Shows a notice to the user, in one line.
    fn notice(&mut self, _text: &str) {}
}

/// Result of an examination.
pub struct Examined {
    /// Path of the recording, valid while this value exists.
    pub path: PathBuf,
    /// Modules of the process.
    pub modules: Vec<ModuleFile>,
    /// End of the trace.
    pub end: End,
    /// Times in which the process ran untraced.
    pub gaps: Vec<Gap>,
    /// True if the last of these gaps was still open when the trace ended.
    pub is_abandoned: bool,
    /// True if everything was recorded.
    pub is_complete: bool,
    /// True if the examination was ended early, without the final looks.
    pub is_called_off: bool,
    _file: File,
}

/// Reason why a process cannot be examined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExaminationError {
    /// No temporary file can be created.
    #[error(transparent)]
    File(#[from] std::io::Error),
    /// The process cannot be traced.
    #[error(transparent)]
    Attach(#[from] memhook_attach::Error),
}

/// Traces a process for a time, then detaches.
///
/// # Errors
/// Fails if the process cannot be attached to, or if no file can be created. The process is then
/// untouched.
pub fn examine(
    pid: i32,
    examination: Examination<'_>,
    attendant: &mut dyn Attendant,
) -> Result<Examined, ExaminationError> {
    let file = unnamed_file_in(&examination.directory)?;
    let path = own_name(&file);
    let config = TraceConfig {
        // If mappings grow, the advice names their callers. In a static program, calls of mmap do not go through slots.
        mappings: examination.looks.is_some() && !is_static(pid),
        ..examination.config.clone()
    };
    let of_heap = config.of_heap_alone();
    let recording = Recording::create(&path, &examination.recording, pid, &of_heap)?;
    let trace = match examination.files {
        Some(files) => Trace::observed_sharing(pid, config, (), files),
        None => Trace::observed(pid, config, ()),
    };
    let mut trace = match trace {
        Ok(trace) => trace,
        Err(error) => {
            recording.abandon();
            return Err(error.into());
        }
    };
    trace.record(recording);
    let mut job = ExaminationJob::new(pid, examination, attendant);
    let end = trace.run(None, &mut job);
    let consumer = trace.consumer();
    Ok(Examined {
        path,
        modules: trace.session().module_files(),
        gaps: consumer.gaps(consumer.elapsed()),
        is_abandoned: trace.session().region().abandoned_at_ns().is_some(),
        is_complete: job.is_complete,
        is_called_off: job.is_called_off,
        end,
        _file: file,
    })
}

struct ExaminationJob<'a> {
    pid: i32,
    examination: Examination<'a>,
    attendant: &'a mut dyn Attendant,
    names: Names,
    first_look: Option<FirstLook>,
    /// True if the first look was taken, has failed, or would now come too late.
    has_first_look: bool,
    looks: Option<Looks>,
    is_complete: bool,
    is_called_off: bool,
    /// Source of the names. It remains usable after the process has ended.
    _root: TargetRoot,
}

/// Results from before the detach.
struct Looks {
    leaks: LastLook,
    pins: PinnedMemory,
    mapped: MappedSites,
}

/// Includes all parts, because the advice selects from them itself.
const VIEW: RssView = RssView {
    top: usize::MAX,
    pins: true,
};

impl<'a> ExaminationJob<'a> {
    fn new(
        pid: i32,
        mut examination: Examination<'a>,
        attendant: &'a mut dyn Attendant,
    ) -> ExaminationJob<'a> {
        let root = TargetRoot::of(pid);
        let symbols = examination.names.take().map(|path| {
            let roots = [root.search_order(), path.roots].concat();
            Symbolizer::new(SearchPath { roots, ..path })
        });
        let view = LiveView {
            by: RowsBy::Site,
            sort: SortBy::Bytes,
            top: 0,
            older: None,
        };
        let symbols = symbols.unwrap_or_else(Symbolizer::without_files);
        ExaminationJob {
            pid,
            names: Names {
                reports: LiveReporter::new(view, symbols),
                call_scans: CallScans::default(),
                depth: examination.config.depth,
            },
            examination,
            attendant,
            first_look: None,
            has_first_look: false,
            looks: None,
            is_complete: true,
            is_called_off: false,
            _root: root,
        }
    }

    /// Returns the recording's notes about the end of the run.
    fn notes<O: Observer + Send>(&mut self, trace: &Trace<O>) -> Vec<(&'static str, String)> {
        let (session, consumer) = (trace.session(), trace.consumer());
        let looks = self.looks.take();
        let (leaks, at_end) = looks
            .map(|looks| (looks.leaks, (looks.pins, looks.mapped)))
            .unzip();
        let leaks = leaks.unwrap_or_else(LastLook::too_late);
        let (pins, mapped) = at_end.unzip();
        let searched = leaks.search_in(consumer, false);
        let unreachable: Option<Vec<UnreachableSite>> =
            searched.unreachable().map(<[UnreachableSite]>::to_vec);
        let Some(mut report) = self.report(trace) else {
            return Vec::new();
        };
        let names = &mut Attended {
            names: &mut self.names,
            attendant: &*self.attendant,
        };
        let looked = pins.map(|pins| pins.report(session, consumer, names, VIEW));
        let first = self.first_look.take().zip(looked.as_ref());
        let mapped = mapped.map_or(Vec::new(), |mapped| mapped.named(session, names));
        let two_looks = first.and_then(|(first, last)| first.compared(last, mapped));
        report.rss = looked.map(|looked| Box::new(looked.report));
        report.leaks = Some(searched.report(session, names, usize::MAX));
        let two_looks = two_looks.and_then(|looks| serde_json::to_string(&looks).ok());
        let mut notes = notes(&report, unreachable.as_deref());
        notes.extend(two_looks.map(|text| (TWO_LOOKS_NOTE, text)));
        notes
    }

    /// Copies the memory as soon as that is permitted.
    fn look_first<O: Observer + Send>(&mut self, trace: &Trace<O>) {
        let looks = self.examination.looks.as_ref();
        let Some(looks) = looks.filter(|_| !self.has_first_look) else {
            return;
        };
        let is_late = trace.consumer().elapsed() > self.examination.duration / LATEST_FIRST_LOOK;
        if is_late || self.attendant.may_look() {
            self.has_first_look = true;
            let take = || FirstLook::take(self.pid, trace.consumer(), looks.walk);
            self.first_look = (!is_late).then(take).flatten();
            self.attendant.has_looked();
        }
    }

    /// Returns a report of the trace, without rows.
    fn report<O: Observer + Send>(&mut self, trace: &Trace<O>) -> Option<ReportModel> {
        let (session, consumer) = (trace.session(), trace.consumer());
        let Names {
            reports,
            call_scans,
            depth,
            ..
        } = &mut self.names;
        let now = consumer.elapsed();
        let mut numbers = reports.numbers(now, consumer.gaps(now));
        numbers.overhead = consumer.budget_kept().map(kept_overhead);
        consumer.in_slices(|state| numbers.take(&state.ledger, &state.counts));
        let mut run = Traced::new(session, call_scans, *depth);
        reports.begin(&mut run, numbers, true);
        loop {
            if let Some(report) = reports.poll(&mut run, NAMES_PAUSE) {
                return Some(report);
            }
            if self.attendant.gives_up_names() {
                return reports.give_up_names(&mut run);
            }
        }
    }
}

impl<O: Observer + Send> Job<O> for ExaminationJob<'_> {
    fn listen<'b>(&'b self, select: &mut Select<'b>) {
        if let Some(calls) = self.attendant.calls() {
            select.recv(calls);
        }
    }

    fn pace(&self) -> Duration {
        self.attendant.pace()
    }

    fn ends_by_signal(&self) -> bool {
        self.attendant.ends_by_signal()
    }

    fn begin(&mut self, trace: &Trace<O>) {
        self.attendant.attached(trace.session());
    }

    fn turn(&mut self, trace: &Trace<O>, turn: &Turn) -> ControlFlow<()> {
        let drainer = trace.consumer().drain_thread();
        self.is_called_off |= self.attendant.is_called_off(drainer);
        if turn.is_last {
            return ControlFlow::Continue(());
        }
        self.look_first(trace);
        let is_over = trace.consumer().elapsed() >= self.examination.duration;
        if self.is_called_off || (is_over && self.attendant.may_look()) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn before_detach(&mut self, trace: &Trace<O>) {
        if self.is_called_off {
            return;
        }
        let Some(of) = &self.examination.looks else {
            return;
        };
        let consumer = trace.consumer();
        self.looks = Some(Looks {
            pins: PinnedMemory::take(self.pid, consumer, of.walk),
            mapped: MappedSites::take(self.pid, consumer),
            leaks: LastLook::take(self.pid, consumer, of.search, of.words),
        });
    }

    fn end(&mut self, trace: &mut Trace<O>, end: &End) {
        let notes = match end {
            _ if self.is_called_off || self.examination.looks.is_none() => Vec::new(),
            End::Executed => Vec::new(),
            _ => self.notes(trace),
        };
        for recorded in trace.finish_recordings(&notes) {
            self.is_complete &= recorded.is_complete();
            if let Some(notice) = &recorded.notice {
                self.attendant.notice(notice);
            }
        }
    }

    fn notice(&mut self, text: &str) {
        self.attendant.notice(text);
    }
}

/// Names of the files of the process.
struct Names {
    reports: LiveReporter,
    call_scans: CallScans,
    depth: u32,
}

/// Names, and the attendant who waits for them.
struct Attended<'a> {
    names: &'a mut Names,
    attendant: &'a dyn Attendant,
}

impl StackNames for Attended<'_> {
    fn look_up(&mut self, session: &Session, stacks: &mut dyn Iterator<Item = u32>) {
        let names = &mut *self.names;
        let run = Traced::new(session, &mut names.call_scans, names.depth);
        let attendant = self.attendant;
        names
            .reports
            .look_up(&run, stacks, || attendant.gives_up_names());
    }

    fn stack(&mut self, session: &Session, id: u32) -> (String, bool, Vec<StackFrame>) {
        let names = &mut *self.names;
        let run = Traced::new(session, &mut names.call_scans, names.depth);
        names.reports.stack(&run, id)
    }
}
