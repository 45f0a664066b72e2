//! `top`: shows the live heap of a running process in the terminal.

mod edit_key;
mod editor;
mod recorded;
mod saved;
mod several;

use super::ending;
use super::signals::{self, stop_requested};
use super::stale::StaleSection;
use crate::options::Color;
use crate::target::Target;
use crate::tracing::Tracing;
use anyhow::{Context, bail};
use crossbeam_channel::Select;
use edit_key::{EditKey, Told};
use editor::Editor;
use memhook_attach::{CallScans, Consumer, End, HeapBalance, Job, Trace, Turn};
use memhook_checkup::SessionStacks;
use memhook_checkup::Traced;
use memhook_checkup::kept_overhead;
use memhook_foreign::units;
use memhook_ledger::{SampledAllocations, SiteTotals, SiteWalk, Totals};
use memhook_process::{TargetRoot, process_name, resident_counters};
use memhook_report::top::{Board, Names, Reaction, Resident, Sample, Screen};
use memhook_report::{
    Measured, ReportModel, ReportTotals, TracedRun, bytes, counted, milliseconds,
};
use memhook_symbols::Symbolizer;
use saved::ReportKey;
use std::path::PathBuf;
use std::{io::IsTerminal, ops::ControlFlow, process::ExitCode, time::Duration};

/// Options of `top`.
#[derive(clap::Args, Clone)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Time between updates of the screen
    #[arg(short, long, value_name = "TIME", value_parser = units::duration, default_value = "1s")]
    interval: Duration,
    /// Trace its children and their children, too
    ///
    /// The screen shows one process at a time, and Tab shows the next. A child is traced from its first call of an
    /// allocator. If that is not possible, memhook-rs finds it within a few milliseconds, and the screen shows since
    /// when it has been traced.
    #[arg(long)]
    follow_fork: bool,
    /// Add a column: bytes that nobody has touched for this time [30s]
    ///
    /// An estimate, for blocks that were allocated since the attach. Watching takes at most 1 % of the process's time.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "30s",
          value_parser = units::duration, conflicts_with_all = ["follow_fork", "mappings"])]
    stale: Option<Duration>,
    /// Show a recording that is still being written (attach -o FILE.mhk)
    ///
    /// - reads it from a pipe, from another machine for example. The process itself is left alone.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["process", "pid", "cgroup", "follow_fork", "stale"])]
    from: Option<PathBuf>,
    /// Editor for source lines (v) [default: $VISUAL, $EDITOR]
    ///
    /// vscode, vscodium, zed or idea, or a command like vim or 'emacsclient -nw'. Most editors get +LINE FILE; known
    /// exceptions get the line in their own way, and a command may contain {file} and {line}. If top runs as root
    /// through sudo, the editor runs as the user who called sudo.
    #[arg(long, value_name = "EDITOR")]
    editor: Option<Editor>,
    #[command(flatten)]
    tracing: Tracing,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.from {
        return recorded::run(file, args.interval, args.editor.clone());
    }
    let pid = args.target.pid()?;
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        bail!("top needs a terminal; in scripts, use memhook-rs attach {pid} --json");
    }
    if args.tracing.sample_bytes().is_some() {
        bail!("top counts every allocation: leave --sample out, or use --overhead");
    }
    args.tracing.refuse_sampled_accesses("top")?;
    if args.follow_fork && args.tracing.allocators.is_used() {
        bail!(
            "--follow-fork shows the heap of malloc of each process: leave it out, or the allocators of your own"
        );
    }
    signals::catch_stops();
    if args.follow_fork {
        return several::run(args, pid);
    }
    let config = args.tracing.for_running().resolve();
    let depth = config.depth;
    let mut trace = Trace::start(pid, config)?;
    let root = TargetRoot::of(pid);
    let name = name_of(pid, args.tracing.mappings);
    let described = trace.session().heaps();
    let of_heaps = described
        .iter()
        .map(|heap| format!("{name}, {}", heap.name));
    let of_heaps: Vec<String> = std::iter::once(name.clone()).chain(of_heaps).collect();
    let heaps = of_heaps.len();
    let views = of_heaps.into_iter().enumerate().map(|(number, name)| {
        let mut board = Board::new(name, pid);
        board.has_color = has_color();
        board.heap = (heaps > 1).then_some((number + 1, heaps));
        HeapView {
            board,
            names: Names::new(Symbolizer::new(root.search_order()), depth),
        }
    });
    let mut job = TopJob {
        interval: args.interval,
        views: views.collect(),
        shown: 0,
        screen: None,
        next_sample: Duration::ZERO,
        stale: args.stale.map(|older| StaleSection::new(pid, older, 0)),
        is_stale: true,
        has_ended: false,
        call_scans: CallScans::default(),
        resident_bytes: None,
        earlier: Earlier::default(),
        edit: EditKey::new(args.editor.clone()),
        report: ReportKey::new(pid, depth),
        reports: Vec::new(),
        notices: Vec::new(),
        failure: None,
    };
    let code = ending::of_trace(&trace.run(None, &mut job), pid);
    if job.has_ended && job.failure.is_none() {
        job.failure = job.show_end(&trace).err();
    }
    let has_gaps = !trace.consumer().gaps(trace.consumer().elapsed()).is_empty();
    let end = end_text(&job.views[0].board, trace.consumer(), code, has_gaps);
    let hints = job.hints(&trace, depth);
    // An editor may stay open for hours, and other attachers may trace the process in the meantime.
    drop(trace);
    job.edit.finish();
    for notice in &job.notices {
        eprintln!("memhook-rs: {notice}");
    }
    if let Some(failure) = job.failure {
        return Err(failure);
    }
    println!("{end}");
    for hint in hints {
        println!("{hint}");
    }
    for report in &job.reports {
        println!("{report}");
    }
    Ok(ExitCode::from(code))
}

/// Returns the description of the screen's contents.
fn name_of(pid: i32, of_mappings: bool) -> String {
    let process = process_name(pid);
    let name = memhook_foreign::visible(&process);
    if of_mappings {
        format!("{name}, mappings")
    } else {
        name.into_owned()
    }
}

/// Returns the sums of the memory that is shown.
fn totals_of(consumer: &Consumer) -> Totals {
    let state = consumer.lock();
    match &state.mappings {
        Some(mappings) => mappings.totals(),
        None => state.ledger.totals(),
    }
}

/// Returns true if the numbers are estimates. The numbers of mappings never are.
fn is_sampled(consumer: &Consumer) -> bool {
    let state = consumer.lock();
    state.mappings.is_none() && state.ledger.is_sampled()
}

fn has_color() -> bool {
    crate::output::is_colored(Color::Auto, true)
}

fn open() -> anyhow::Result<Screen> {
    Screen::open().context("the terminal cannot be used")
}

/// Returns the last line, which stays on the terminal.
fn end_text(board: &Board, consumer: &Consumer, code: u8, has_gaps: bool) -> String {
    let mut totals = totals_of(consumer);
    let mut about = "";
    if is_sampled(consumer) {
        // The sums of the samples themselves mean little, but the board has estimates.
        (totals, about) = (*board.totals(), "about ");
    }
    let how = match (has_gaps, code) {
        (true, _) => "At times it waited too long for memhook-rs and went on untraced. Detached",
        (false, 0) => "Detached",
        _ => "Not fully detached",
    };
    format!(
        "{how} from {} ({}) after {}: {about}{} live in {}{}",
        board.pid,
        board.name,
        milliseconds(board.elapsed().as_millis() as u64),
        bytes(totals.live_bytes),
        counted(totals.live_blocks, "block"),
        match totals.peak_live_bytes {
            0 => String::new(),
            peak => format!(" (peak {})", bytes(peak)),
        },
    )
}

/// State of the screen for one heap.
struct HeapView {
    board: Board,
    names: Names,
}

/// Live memory from before the attach, by the allocator's own structures.
#[derive(Default)]
struct Earlier {
    bytes: Option<u64>,
    next: Duration,
}

impl Earlier {
    /// Time between two readings. The value changes slowly, and a reading follows all lists of free
    /// memory.
    const PAUSE: Duration = Duration::from_secs(10);

    fn bytes(&mut self, trace: &Trace) -> Option<u64> {
        let (session, consumer) = (trace.session(), trace.consumer());
        let is_exact = !is_sampled(consumer) && !session.is_from_start();
        if consumer.elapsed() >= self.next && is_exact {
            self.next = consumer.elapsed() + Self::PAUSE;
            let balance = HeapBalance::take(session, consumer);
            self.bytes = balance.map(|balance| balance.earlier_bytes());
        }
        self.bytes.filter(|_| is_exact)
    }
}

/// Job that counts, updates the screen and waits for keys until the end.
struct TopJob {
    interval: Duration,
    /// Screens of malloc's heap and of the described heaps.
    views: Vec<HeapView>,
    /// Index of the screen that is shown.
    shown: usize,
    screen: Option<Screen>,
    next_sample: Duration,
    /// Watch of untouched memory, if the screen has a column for it.
    stale: Option<StaleSection>,
    /// True if the screen does not show the latest numbers.
    is_stale: bool,
    /// True if the process is gone. Its last live memory stays on the screen.
    has_ended: bool,
    /// Coverage of each module, for the hints at the end.
    call_scans: CallScans,
    /// Resident memory at the last look.
    resident_bytes: Option<u64>,
    /// Live memory from before the attach.
    earlier: Earlier,
    /// Key that opens an editor.
    edit: EditKey,
    /// Key that writes a report.
    report: ReportKey,
    /// Names of the written reports, which are printed at the end.
    reports: Vec<String>,
    /// Messages for the time after the terminal is restored.
    notices: Vec<String>,
    failure: Option<anyhow::Error>,
}

impl TopJob {
    fn watch(&mut self, trace: &Trace) -> anyhow::Result<ControlFlow<()>> {
        let screen = match &mut self.screen {
            Some(screen) => screen,
            none => none.insert(open()?),
        };
        while let Ok(event) = screen.events().try_recv() {
            let event = event.context("the terminal was closed; detached")?;
            let board = &mut self.views[self.shown].board;
            let reaction = screen.react(board, &event);
            match reaction {
                Some(Reaction::Quit) => return Ok(ControlFlow::Break(())),
                Some(Reaction::Process(by)) => {
                    let place = self.shown as i64 + i64::from(by);
                    self.shown = place.rem_euclid(self.views.len() as i64) as usize;
                }
                Some(Reaction::Report) => self.report.press(trace),
                Some(Reaction::Edit) => board.message = self.edit.press(board.source_line()),
                Some(Reaction::Redraw | Reaction::Mouse) | None => {}
            }
            self.is_stale |= reaction.is_some();
        }
        let edited = self.edit.turn(screen);
        if let Told::Redraw(message) = edited.context("the terminal cannot be used")? {
            self.views[self.shown].board.message = message;
            self.is_stale = true;
        }
        if let Some(saved) = self.report.turn(trace) {
            let (message, at_the_end) = saved::told(saved);
            self.views[self.shown].board.message = Some(message);
            self.reports.extend(at_the_end);
            self.is_stale = true;
        }
        let (session, now) = (trace.session(), trace.consumer().elapsed());
        if now >= self.next_sample {
            self.next_sample = if self.has_ended {
                Duration::MAX
            } else {
                now + self.interval
            };
            let stale = self.stale.as_ref();
            let stale = stale.and_then(|section| section.stale_bytes(trace));
            let (of_malloc, of_heaps) = self.views.split_at_mut(1);
            let sample = sample(trace, self.earlier.bytes(trace));
            let resident = sample.resident.as_ref();
            let resident = resident.map(|resident| resident.rss_bytes);
            self.resident_bytes = resident.or(self.resident_bytes);
            of_malloc[0].board.sample(Sample { stale, ..sample });
            for (number, view) in of_heaps.iter_mut().enumerate() {
                view.board.sample(sample_of_heap(trace, number));
            }
            self.is_stale = true;
        }
        let HeapView { board, names } = &mut self.views[self.shown];
        self.is_stale |= names.follow(&SessionStacks(session), board);
        if std::mem::take(&mut self.is_stale) {
            let drawn = screen.draw(board);
            drawn.context("the terminal cannot be written")?;
            // Names of newly visible rows are looked up next.
            let modules = || session.module_files();
            let stacks = SessionStacks(session);
            self.is_stale = names.ask(&stacks, modules, board);
        }
        Ok(ControlFlow::Continue(()))
    }
}

impl TopJob {
    /// Returns hints about commands that answer further questions.
    fn hints(&mut self, trace: &Trace, depth: u32) -> Vec<String> {
        if self.views.len() > 1 || trace.session().traces_mappings() {
            return Vec::new();
        }
        // Hints that take longer are not worth a wait.
        const PATIENCE: Duration = Duration::from_millis(500);
        let is_known = self.call_scans.is_ready(PATIENCE);
        let session = trace.session();
        let run = Traced {
            session,
            call_scans: &mut self.call_scans,
            depth,
        };
        let exact =
            || ReportTotals::exact(&totals_of(trace.consumer()), &session.region().losses());
        // Sums of samples cannot be compared with resident memory.
        let is_exact = !is_sampled(trace.consumer());
        memhook_report::hints_in_words(&ReportModel {
            is_final: true,
            target: run.target(),
            totals: is_exact.then(exact).unwrap_or_default(),
            coverage: match is_known {
                true => run.coverage(&Symbolizer::new(Vec::new())),
                false => Vec::new(),
            },
            rss_bytes: self.resident_bytes.filter(|_| is_exact),
            measured: Measured {
                measure: "live",
                ..Measured::default()
            },
            ..ReportModel::default()
        })
    }

    /// Shows the memory that was live when the process ended, until the user leaves.
    fn show_end(&mut self, trace: &Trace) -> anyhow::Result<()> {
        for view in &mut self.views {
            view.board.has_ended = true;
        }
        self.next_sample = Duration::ZERO;
        while !stop_requested() && self.watch(trace)?.is_continue() {
            let Some(screen) = &self.screen else { break };
            let mut select = Select::new();
            select.recv(screen.events());
            // Neither a signal nor the arrival of names wakes this thread, so it waits with a timeout.
            let _ = select.ready_timeout(Duration::from_millis(100));
        }
        self.screen = None;
        Ok(())
    }
}

impl Job for TopJob {
    fn begin(&mut self, trace: &Trace) {
        self.call_scans.request(trace.session().modules());
    }

    fn listen<'a>(&'a self, select: &mut Select<'a>) {
        if let Some(screen) = &self.screen {
            select.recv(screen.events());
        }
    }

    fn turn(&mut self, trace: &Trace, turn: &Turn) -> ControlFlow<()> {
        // Before the first draw, there is nothing to keep.
        self.has_ended = turn.gone && self.screen.is_some();
        if turn.gone || stop_requested() {
            return ControlFlow::Break(());
        }
        if let Some(failure) = self.stale.as_mut().and_then(|section| section.turn(trace)) {
            self.notices.push(failure);
        }
        // If the terminal cannot be used, or disappears, the trace ends as if the user had pressed `q`.
        self.watch(trace).unwrap_or_else(|failure| {
            self.failure = Some(failure);
            ControlFlow::Break(())
        })
    }

    fn before_detach(&mut self, _trace: &Trace) {
        if !self.has_ended {
            self.screen = None;
        }
        // No watch may remain in a process from which we detach.
        self.stale = None;
    }

    fn end(&mut self, _trace: &mut Trace, _end: &End) {
        if !self.has_ended {
            self.screen = None;
        }
    }

    fn notice(&mut self, text: &str) {
        self.notices.push(text.to_owned());
    }
}

/// Reads the resident memory from counters that cost the process nothing. Reading its pages once a second could delay
/// the process's mapping calls.
fn resident(trace: &Trace, live_bytes: u64, earlier: Option<u64>) -> Option<Resident> {
    let found = resident_counters(trace.session().pid())?;
    // Blocks that were never written are not in memory.
    let live = live_bytes.min(found.anonymous);
    let earlier = earlier.unwrap_or(0).min(found.anonymous - live);
    let parts = [
        ("live heap", live),
        ("live before the attach", earlier),
        ("other anonymous memory", found.anonymous - live - earlier),
        ("file pages", found.file),
        ("shared memory", found.shared),
    ];
    Some(Resident {
        rss_bytes: found.anonymous + found.file + found.shared,
        parts: parts.map(|(name, bytes)| (name.to_owned(), bytes)).into(),
    })
}

/// Returns a sample of the main heap. `earlier` is the live memory from before the attach, if
/// known.
fn sample(trace: &Trace, earlier: Option<u64>) -> Sample {
    let consumer = trace.consumer();
    let mut of_mappings = SiteWalk::new(None);
    let mut traces_mappings = false;
    consumer.in_slices(|state| match &state.mappings {
        Some(mappings) => {
            traces_mappings = true;
            mappings.ledger().walk_sites(&mut of_mappings)
        }
        None => false,
    });
    let sites = if traces_mappings {
        of_mappings.into_sites()
    } else {
        trace.sites()
    };
    let mut totals = totals_of(consumer);
    let is_sampled = is_sampled(consumer);
    let state = consumer.lock();
    let bounded = state.ledger.bounded().filter(|_| !traces_mappings);
    let counts = state.counts;
    let of_heap = state.ledger.totals().live_bytes;
    drop(state);
    if is_sampled {
        estimate(&mut totals, &counts, &sites);
    }
    let heap_bytes = if traces_mappings {
        of_heap
    } else {
        totals.live_bytes
    };
    let losses = trace.session().region().losses();
    Sample {
        time: consumer.elapsed(),
        sites,
        totals,
        lost_events: losses.events(),
        unwatched_libraries: losses.unwatched_libraries,
        bounded,
        overhead: consumer.budget_kept().map(kept_overhead),
        stale: None,
        is_sampled,
        resident: resident(trace, heap_bytes, earlier),
    }
}

/// Returns a sample of the described heap with this number.
fn sample_of_heap(trace: &Trace, number: usize) -> Sample {
    let consumer = trace.consumer();
    let counts = consumer.lock().heaps[number].counts;
    let mut walk = SiteWalk::estimating(&counts);
    consumer.in_slices(|state| state.heaps[number].ledger.walk_sites(&mut walk));
    let sites = walk.into_sites();
    let state = consumer.lock();
    let ledger = &state.heaps[number].ledger;
    let (mut totals, bounded, is_sampled) =
        (ledger.totals(), ledger.bounded(), ledger.is_sampled());
    drop(state);
    if is_sampled {
        estimate(&mut totals, &counts, &sites);
    }
    let losses = trace.session().region().losses();
    Sample {
        time: consumer.elapsed(),
        sites,
        totals,
        lost_events: losses.events(),
        unwatched_libraries: losses.unwatched_libraries,
        bounded,
        overhead: None,
        stale: None,
        is_sampled,
        resident: None,
    }
}

/// Scales sums of samples to estimates for all allocations.
fn estimate(totals: &mut Totals, counts: &SampledAllocations, sites: &[SiteTotals]) {
    let all = counts.all(totals.allocations, totals.allocated_bytes);
    totals.allocations = all.blocks.round() as u64;
    totals.allocated_bytes = all.bytes.round() as u64;
    totals.live_bytes = sites.iter().map(|site| site.bytes).sum();
    totals.live_blocks = sites.iter().map(|site| site.blocks).sum();
    totals.peak_live_bytes = 0;
}
