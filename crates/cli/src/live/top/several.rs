//! `top --follow-fork`: shows a process and its children, one at a time.
//!
//! Each process has a thread that traces it, counts, and fills its board. A separate thread owns
//! the terminal, which may stop accepting output (Ctrl-S). A dlopen(3) of a traced process waits
//! for the thread that traces it, so that thread never waits for the terminal. If the board is
//! being drawn, the tracing thread tries again later.

use super::edit_key::{EditKey, Told};
use super::editor::Editor;
use super::saved::{ReportKey, told};
use super::{Args, open, sample};
use crate::live::ending;
use crate::live::signals::stop_requested;
use crate::{exit_code, remedies};
use anyhow::Context;
use memhook_attach::{Assigner, End, Error, Followed, Job, Trace, Turn, Work, follow, refuse};
use memhook_checkup::SessionStacks;
use memhook_process::{TargetRoot, process_age};
use memhook_report::top::{Among, Board, Names, Reaction, Screen};
use memhook_report::{bytes, milliseconds};
use memhook_symbols::Symbolizer;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Maximum time between two checks by the terminal's thread.
const TURN: Duration = Duration::from_millis(50);

/// Runs the command.
pub fn run(args: &Args, pid: i32) -> anyhow::Result<ExitCode> {
    let config = args.tracing.for_running().resolve();
    refuse(pid, &config)?;
    let begin = Instant::now();
    let desk = Arc::new(Desk::default());
    desk.shown.store(pid, Relaxed);
    let terminal = std::thread::spawn({
        let (desk, editor) = (Arc::clone(&desk), args.editor.clone());
        move || desk.show(editor)
    });
    let mut processes = Processes {
        args,
        head: pid,
        depth: config.depth,
        desk: Arc::clone(&desk),
    };
    let followed = follow(Followed::Family(pid), &config, None, &mut processes);
    desk.is_over.store(true, Relaxed);
    let shown = terminal
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    for notice in lock(&desk.notices).iter() {
        eprintln!("memhook-rs: {notice}");
    }
    for report in lock(&desk.reports).iter() {
        println!("{report}");
    }
    let count = followed?;
    shown?;
    if desk.has_gaps.load(Relaxed) {
        eprintln!(
            "memhook-rs: at times a process waited too long for memhook-rs and went on untraced"
        );
    }
    let (left, live) = (desk.left.load(Relaxed), desk.live_at_end.load(Relaxed));
    println!(
        "Traced {} for {}; {}{}",
        match count.traced {
            1 => "1 process".to_owned(),
            traced => format!("{traced} processes"),
        },
        milliseconds(begin.elapsed().as_millis() as u64),
        match left {
            0 => "none still runs".to_owned(),
            1 => format!("1 still runs, with {} live", bytes(live)),
            left => format!("{left} still run, with {} live", bytes(live)),
        },
        match count.missed {
            0 => String::new(),
            missed => format!(". {missed} ended too soon to be traced"),
        },
    );
    Ok(ExitCode::from(desk.code.load(Relaxed)))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// State of the screen for one process.
struct View {
    board: Mutex<Board>,
    live_bytes: AtomicU64,
    /// True if the screen does not show the latest numbers or names.
    is_stale: AtomicBool,
    /// True if a report was requested.
    wants_report: AtomicBool,
}

/// State shared by the threads of the processes and the thread of the terminal.
#[derive(Default)]
struct Desk {
    /// Traced processes, by their ids.
    views: Mutex<BTreeMap<i32, Arc<View>>>,
    /// Id of the process to show. If it is no longer traced, the next one is shown.
    shown: AtomicI32,
    is_over: AtomicBool,
    /// Messages for the time after the terminal is restored.
    notices: Mutex<Vec<String>>,
    /// Names of the reports that the user wrote with a key, which are printed at the end.
    reports: Mutex<Vec<String>>,
    /// The highest exit code of a trace that has ended.
    code: AtomicU8,
    has_gaps: AtomicBool,
    /// The processes that are no longer traced, with their live memory.
    left: AtomicU64,
    live_at_end: AtomicU64,
}

impl Desk {
    fn is_over(&self) -> bool {
        self.is_over.load(Relaxed) || stop_requested()
    }

    /// Returns true if this process is on the screen.
    fn shows(&self, pid: i32) -> bool {
        self.shown.load(Relaxed) == pid
    }

    /// Returns the process to show, and its position among all processes. `by` is its distance from
    /// the process shown before.
    fn choose(&self, by: i32) -> Option<(Arc<View>, Among)> {
        let views = lock(&self.views);
        let shown = self.shown.load(Relaxed);
        let after = views.keys().position(|&pid| pid >= shown).unwrap_or(0);
        let at = (after as i64 + i64::from(by)).rem_euclid(views.len().max(1) as i64) as usize;
        let (&pid, view) = views.iter().nth(at)?;
        self.shown.store(pid, Relaxed);
        let among = Among {
            place: at + 1,
            processes: views.len(),
            live_bytes: views.values().map(|v| v.live_bytes.load(Relaxed)).sum(),
        };
        Some((Arc::clone(view), among))
    }

    /// Draws the screen and handles keys until the end of the trace, or until the terminal fails.
    fn show(&self, editor: Option<Editor>) -> anyhow::Result<()> {
        let mut edit = EditKey::new(editor);
        let result = self.draw_and_listen(&mut edit);
        self.is_over.store(true, Relaxed);
        edit.finish();
        result
    }

    fn draw_and_listen(&self, edit: &mut EditKey) -> anyhow::Result<()> {
        let mut screen: Option<Screen> = None;
        let mut drawn = Among::default();
        let mut by = 0;
        while !self.is_over() {
            // If the first process cannot be traced, the error is printed after the terminal is
            // restored.
            let Some((view, among)) = self.choose(std::mem::take(&mut by)) else {
                std::thread::sleep(TURN);
                continue;
            };
            let screen = match &mut screen {
                Some(screen) => screen,
                none => none.insert(open()?),
            };
            let mut reactions = Vec::new();
            let mut next = screen.events().recv_timeout(TURN).ok();
            let mut board = lock(&view.board);
            board.among = Some(among.clone());
            while let Some(event) = next {
                let event = event.context("the terminal was closed; detached")?;
                reactions.extend(screen.react(&mut board, &event));
                next = screen.events().try_recv().ok();
            }
            for reaction in &reactions {
                match reaction {
                    Reaction::Quit => return Ok(()),
                    Reaction::Process(places) => by += places,
                    Reaction::Report => view.wants_report.store(true, Relaxed),
                    Reaction::Edit => board.message = edit.press(board.source_line()),
                    Reaction::Redraw | Reaction::Mouse => {}
                }
            }
            let mut is_stale = view.is_stale.swap(false, Relaxed);
            let edited = edit.turn(screen);
            if let Told::Redraw(message) = edited.context("the terminal cannot be used")? {
                board.message = message;
                is_stale = true;
            }
            if is_stale || among != drawn || !reactions.is_empty() {
                let done = screen.draw(&mut board);
                done.context("the terminal cannot be written")?;
                drawn = among;
            }
        }
        Ok(())
    }
}

/// Gives each process its job.
struct Processes<'a> {
    args: &'a Args,
    head: i32,
    depth: u32,
    desk: Arc<Desk>,
}

impl Assigner for Processes<'_> {
    fn work(&mut self, pid: i32, program: u32) -> Result<Work, Error> {
        let job = Box::new(Watch {
            pid,
            // An executed program started later than its process.
            is_child: pid != self.head && program == 1,
            interval: self.args.interval,
            names: Names::new(
                Symbolizer::new(TargetRoot::of(pid).search_order()),
                self.depth,
            ),
            next_sample: Duration::ZERO,
            report: ReportKey::new(pid, self.depth),
            view: None,
            desk: Arc::clone(&self.desk),
        });
        Ok(Work {
            job,
            recording: None,
        })
    }

    fn is_over(&mut self) -> bool {
        self.desk.is_over()
    }

    fn is_not_traced(&mut self, pid: i32, why: &Error) {
        let why = remedies::in_words(why);
        let notice = format!("process {pid} is not traced: {why}");
        lock(&self.desk.notices).push(notice);
        self.desk.code.fetch_max(exit_code::BAD_INPUT, Relaxed);
    }
}

/// Counts the activity of one process.
struct Watch {
    pid: i32,
    is_child: bool,
    interval: Duration,
    names: Names,
    next_sample: Duration,
    report: ReportKey,
    view: Option<Arc<View>>,
    desk: Arc<Desk>,
}

impl Watch {
    /// Updates the board, unless it is being drawn.
    fn fill(&mut self, trace: &Trace) {
        let Some(view) = &self.view else { return };
        let Ok(mut board) = view.board.try_lock() else {
            return;
        };
        let session = trace.session();
        let stacks = SessionStacks(session);
        let mut is_stale = self.names.follow(&stacks, &mut board);
        let now = trace.consumer().elapsed();
        if now >= self.next_sample {
            self.next_sample = now + self.interval;
            board.sample(sample(trace, None));
            view.live_bytes.store(board.live_bytes(), Relaxed);
            is_stale = true;
        }
        // Only the process on the screen needs names.
        if self.desk.shows(self.pid) {
            is_stale |= self.names.ask(&stacks, || session.module_files(), &board);
        }
        if view.wants_report.swap(false, Relaxed) {
            self.report.press(trace);
        }
        if let Some(saved) = self.report.turn(trace) {
            let (message, at_the_end) = told(saved);
            board.message = Some(message);
            lock(&self.desk.reports).extend(at_the_end);
            is_stale = true;
        }
        view.is_stale.fetch_or(is_stale, Relaxed);
    }

    /// Keeps the last process on the screen until the user leaves or a new process appears.
    fn show_end(&mut self, trace: &Trace) {
        let Some(view) = &self.view else { return };
        let is_last = |desk: &Desk| {
            let mut views = lock(&desk.views);
            if views.len() > 1 {
                views.remove(&self.pid);
            }
            views.contains_key(&self.pid)
        };
        if !is_last(&self.desk) {
            return;
        }
        lock(&view.board).has_ended = true;
        self.next_sample = Duration::ZERO;
        self.fill(trace);
        while !self.desk.is_over() && lock(&self.desk.views).len() == 1 {
            self.next_sample = Duration::MAX;
            self.fill(trace);
            std::thread::sleep(TURN);
        }
    }
}

impl Job for Watch {
    fn begin(&mut self, trace: &Trace) {
        let age = process_age(self.pid);
        let name = super::name_of(self.pid, trace.session().traces_mappings());
        let mut board = Board::new(name, self.pid);
        board.has_color = super::has_color();
        board.unseen = age.filter(|_| self.is_child && trace.session().found().is_none());
        let view = Arc::new(View {
            board: Mutex::new(board),
            live_bytes: AtomicU64::new(0),
            is_stale: AtomicBool::new(true),
            wants_report: AtomicBool::new(false),
        });
        lock(&self.desk.views).insert(self.pid, Arc::clone(&view));
        self.view = Some(view);
    }

    fn turn(&mut self, trace: &Trace, turn: &Turn) -> ControlFlow<()> {
        if turn.gone || self.desk.is_over() {
            return ControlFlow::Break(());
        }
        self.fill(trace);
        ControlFlow::Continue(())
    }

    fn end(&mut self, trace: &mut Trace, end: &End) {
        if matches!(end, End::Gone) {
            self.show_end(trace);
        }
        let desk = &self.desk;
        lock(&desk.views).remove(&self.pid);
        if let Some(fault) = ending::fault(end, self.pid) {
            lock(&desk.notices).push(fault);
            desk.code.fetch_max(exit_code::NOT_RESTORED, Relaxed);
        }
        let consumer = trace.consumer();
        if !consumer.gaps(consumer.elapsed()).is_empty() {
            desk.has_gaps.store(true, Relaxed);
            desk.code.fetch_max(exit_code::HAS_GAPS, Relaxed);
        }
        if matches!(end, End::Detached(_)) {
            desk.left.fetch_add(1, Relaxed);
            let live = consumer.lock().ledger.totals().live_bytes;
            desk.live_at_end.fetch_add(live, Relaxed);
        }
    }

    fn notice(&mut self, text: &str) {
        lock(&self.desk.notices).push(text.to_owned());
    }
}
