//! `attach --events`: events of the process, as lines of JSON for another program.

use super::Args;
use crate::live::report_job::{ReportJob, Reports};
use anyhow::bail;
use memhook_attach::{
    Consumer, End, Job, LateRegion, OwnCode, Session, Trace, TraceConfig, Turn, moves,
};
use memhook_foreign::OutputFile;
use memhook_ledger::Moves;
use memhook_process::process_name;
use memhook_report::{
    Backtrace, EventQueue, EventSource, EventTap, EventsBegin, EventsEnd, EventsWritten,
    FormatChoice, write_events,
};
use memhook_stream::Region;
use memhook_symbols::{ModuleFile, Symbolizer};
use std::fs::File;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Maximum time to wait at the end for a reader that has stopped reading.
const PATIENCE: Duration = Duration::from_secs(3);

/// Observer of a trace whose events are written.
type Told = Moves<EventTap>;
/// Changes of modules since they were last taken from this queue.
type NewModules = Arc<Mutex<Option<(Vec<ModuleFile>, OwnCode)>>>;

/// Returns true if the events go to standard output.
pub fn is_standard_output(path: &Path) -> bool {
    path == Path::new("-")
}

/// Refuses options that exclude each other.
pub fn check(args: &Args) -> anyhow::Result<()> {
    let Some(path) = &args.events else {
        return Ok(());
    };
    let (reports, tracing) = (&args.reports, &args.reports.tracing);
    if let FormatChoice::Export(format) = reports.format {
        bail!(
            "--events with -f {0}: leave -f out, or record with -o FILE.mhk, and then: memhook-rs report FILE.mhk -f {0}",
            format.name()
        );
    }
    if reports.output.as_ref() == Some(path) {
        bail!("--events and -o name the same file: give each one of its own");
    }
    if tracing.overhead.is_some() || tracing.adapts() {
        bail!(
            "--events with --overhead or --on-full adapt: the weight of an event would change all the time; use --sample"
        );
    }
    if tracing.mappings || tracing.allocators.is_used() {
        bail!("--events is for the main heap: leave --mappings and allocators of your own out");
    }
    Ok(())
}

/// Output of the events.
pub struct Output {
    path: PathBuf,
    file: Sink,
}

enum Sink {
    Stream(File),
    File(OutputFile),
}

impl Output {
    /// Opens the output, before the process is touched.
    pub fn open(path: &Path, force: bool) -> anyhow::Result<Output> {
        let file = if is_standard_output(path) {
            Sink::Stream(File::from(std::io::stdout().as_fd().try_clone_to_owned()?))
        } else {
            Sink::File(OutputFile::create(path, force)?)
        };
        let path = path.to_owned();
        Ok(Output { path, file })
    }

    /// Returns the job of a trace that writes events in addition to its reports.
    pub fn job(
        self,
        config: &TraceConfig,
        queue: Queue,
        job: ReportJob,
        reports: &Arc<Reports>,
    ) -> WithEvents {
        WithEvents {
            job,
            reports: Arc::clone(reports),
            output: Some(self.file),
            path: self.path,
            queue: queue.queue,
            region: queue.region,
            modules: NewModules::default(),
            writer: None,
            gaps: 0,
            lost: 0,
            sample_bytes: config.sample_bytes,
            depth: config.depth,
        }
    }
}

/// Queue of events from the trace to the writer.
pub struct Queue {
    queue: Arc<EventQueue>,
    region: LateRegion,
}

/// Creates a queue, and the observer that fills it.
pub fn queue() -> (Queue, Told) {
    let queue = Arc::new(EventQueue::default());
    let (observer, region) = moves(EventTap::new(&queue));
    (Queue { queue, region }, observer)
}

/// Job that writes reports and events.
pub struct WithEvents {
    job: ReportJob,
    reports: Arc<Reports>,
    output: Option<Sink>,
    path: PathBuf,
    queue: Arc<EventQueue>,
    region: LateRegion,
    modules: NewModules,
    writer: Option<JoinHandle<EventsWritten>>,
    /// Number of gaps that have been reported, and of events that the recording has lost.
    gaps: usize,
    lost: u64,
    sample_bytes: Option<u64>,
    depth: u32,
}

impl WithEvents {
    fn tell_modules(&self, session: &Session) {
        let mut modules = self.modules.lock().unwrap_or_else(|e| e.into_inner());
        *modules = Some((session.module_files(), session.own_code()));
    }

    fn start(&mut self, trace: &Trace<Told>) -> std::io::Result<()> {
        let session = trace.session();
        self.tell_modules(session);
        let output = match self.output.take() {
            Some(Sink::Stream(file)) => file,
            Some(Sink::File(file)) => file.keep()?,
            None => return Ok(()),
        };
        let pid = session.pid();
        let begin = EventsBegin::new(pid, process_name(pid), self.sample_bytes, self.depth);
        let source = Box::new(Source {
            pid,
            region: Arc::clone(session.shared_region()),
            consumer: trace.shared_consumer(),
            own_code: session.own_code(),
            modules: Arc::clone(&self.modules),
        });
        let (queue, root) = (Arc::clone(&self.queue), session.root().clone());
        let write = move || {
            let symbols = Symbolizer::new(root.search_order());
            write_events(&queue, &begin, source, symbols, output)
        };
        let writer = std::thread::Builder::new().name("events".into());
        self.writer = Some(writer.spawn(write)?);
        Ok(())
    }

    fn tell_missing(&mut self, trace: &Trace<Told>) {
        let gaps = trace.consumer().gaps(trace.consumer().elapsed());
        for gap in gaps.iter().skip(self.gaps) {
            self.queue.gap(gap.from_ns, gap.to_ns);
        }
        self.gaps = gaps.len();
        let losses = trace.session().region().losses();
        let lost = losses.events();
        if lost > self.lost {
            self.queue.lost_in_recording(lost - self.lost);
            self.lost = lost;
        }
    }

    /// Ends the stream with the sums of the trace.
    fn finish(&mut self, trace: &Trace<Told>, end: &End) {
        self.tell_missing(trace);
        let time = trace.consumer().elapsed();
        let mut state = trace.consumer().lock();
        let totals = state.ledger.totals();
        let told = state.ledger.observer_mut();
        told.finish();
        told.blocks_mut().finish(EventsEnd {
            is_detached: matches!(end, End::Detached(_)),
            time_ns: time.as_nanos() as u64,
            allocations: totals.allocations,
            allocated_bytes: totals.allocated_bytes,
            frees: totals.releases,
            freed_bytes: totals.released_bytes,
            live_blocks: totals.live_blocks,
            live_bytes: totals.live_bytes,
            lost_records: 0,
        });
    }

    /// Waits for the reader, which may have stopped reading.
    fn wait(&mut self) {
        let Some(writer) = self.writer.take() else {
            return;
        };
        let is_done = || writer.is_finished();
        let why = if !self.queue.wait_while_it_moves(PATIENCE, is_done) {
            "its reader is gone, so its end is missing".to_owned()
        } else {
            match writer.join().map(|written| written.error) {
                Ok(None) => return,
                Ok(Some(error)) => error.to_string(),
                Err(_) => "the thread that writes it failed".to_owned(),
            }
        };
        self.report_failure(&why);
    }

    fn report_failure(&self, why: &str) {
        eprintln!("memhook-rs: --events {}: {why}", self.path.display());
        self.reports.note_incomplete();
    }
}

impl Job<Told> for WithEvents {
    fn begin(&mut self, trace: &Trace<Told>) {
        self.region.set(trace.session());
        if let Err(error) = self.start(trace) {
            self.report_failure(&error.to_string());
        }
        self.job.begin(trace);
    }

    fn turn(&mut self, trace: &Trace<Told>, turn: &Turn) -> ControlFlow<()> {
        if turn.modules_changed {
            self.tell_modules(trace.session());
        }
        self.tell_missing(trace);
        self.job.turn(trace, turn)
    }

    fn before_detach(&mut self, trace: &Trace<Told>) {
        self.job.before_detach(trace);
    }

    fn end(&mut self, trace: &mut Trace<Told>, end: &End) {
        self.finish(trace, end);
        // The report does not wait for the reader of the events.
        self.job.end(trace, end);
        self.wait();
    }

    fn notice(&mut self, text: &str) {
        Job::<Told>::notice(&mut self.job, text);
    }
}

/// Source of names for the writer, on the writer's thread.
struct Source {
    pid: i32,
    region: Arc<Region>,
    consumer: Arc<Consumer<Told>>,
    own_code: OwnCode,
    modules: NewModules,
}

impl EventSource for Source {
    fn backtrace(&mut self, id: u32) -> Option<Backtrace> {
        let mut stack = self.region.stack(id)?;
        let own = &self.own_code;
        let is_own = |pc: &u64| own.hook.contains(pc) || own.gadgets.contains(pc);
        stack.frames.retain(|pc| !is_own(pc));
        Some(Backtrace {
            function: stack.function,
            addresses: stack.frames,
            truncated: stack.truncated,
        })
    }

    fn thread(&mut self, index: u16) -> (u32, String) {
        let tid = self.consumer.lock().ledger.tid_of(index);
        let name = memhook_process::thread_name(self.pid, tid as i32);
        (tid, name.unwrap_or_default())
    }

    fn new_modules(&mut self) -> Option<Vec<ModuleFile>> {
        let mut modules = self.modules.lock().unwrap_or_else(|e| e.into_inner());
        let (modules, own_code) = modules.take()?;
        self.own_code = own_code;
        Some(modules)
    }
}
