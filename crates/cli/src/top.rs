//! `top`: the live heap of a running process on the terminal.

mod keys;

use crate::exit_code;
use crate::frames::{module_files, stack_of};
use crate::options::duration;
use crate::signals;
use crate::tracing::Tracing;
use anyhow::{Context, bail};
use memhook_attach::{Consumer, Session, Upkeep, process_name};
use memhook_report::top::{self, Action, Board, Sample};
use memhook_report::{bytes, counted, milliseconds, site_name};
use memhook_symbols::Symbolizer;
use ratatui::DefaultTerminal;
use std::{
    collections::HashMap,
    io::IsTerminal,
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, mpsc},
    time::Duration,
};

/// How often this thread looks around when nobody wakes it.
const TURN: Duration = Duration::from_millis(10);

/// Options of `top`.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// Process id
    pid: i32,
    /// Count again every so often
    #[arg(short, long, value_parser = duration, default_value = "1s")]
    interval: Duration,
    #[command(flatten)]
    tracing: Tracing,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let pid = args.pid;
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        bail!("top needs a terminal; for scripts there is: memhook-rs attach {pid} --json");
    }
    if args.tracing.sample_bytes().is_some() {
        bail!("top counts every allocation: leave --sample out");
    }
    let config = args.tracing.resolve();
    signals::catch_stops();
    let mut session = Session::start(pid, &config)?;
    let region = Arc::clone(session.shared_region());
    let consumer = Consumer::new(&region, &config);
    let mut board = Board::new(
        memhook_foreign::visible(&process_name(pid)).into_owned(),
        pid,
    );
    let code = consumer.while_draining(|| {
        let mut upkeep = Upkeep::new(pid);
        // A terminal that cannot be used, or goes away, ends the trace as `q` does.
        let ended = match ratatui::try_init() {
            Ok(mut terminal) => {
                let ended = watch(
                    args,
                    &mut session,
                    &consumer,
                    &mut upkeep,
                    &mut board,
                    &mut terminal,
                );
                let _ = ratatui::try_restore();
                ended
            }
            Err(error) => Err(error).context("the terminal cannot be used"),
        };
        match ended {
            Ok(End::Gone) => Ok(0),
            Ok(End::Asked) => Ok(exit_code::detached(upkeep.detach(&mut session), pid)),
            Err(error) => {
                exit_code::detached(upkeep.detach(&mut session), pid);
                Err(error)
            }
        }
    })?;
    tell_end(&board, &consumer, code, region.abandoned());
    Ok(ExitCode::from(code))
}

/// The last line, which stays on the terminal.
fn tell_end(board: &Board, consumer: &Consumer, code: u8, abandoned: bool) {
    let totals = consumer.lock().ledger.totals();
    let how = match (abandoned, code) {
        (true, _) => "It waited for us too long and went on untraced",
        (false, 0) => "Detached",
        _ => "Not fully detached",
    };
    println!(
        "{how} from {} ({}) after {}: {} live in {} (peak {})",
        board.pid,
        board.name,
        milliseconds(board.elapsed().as_millis() as u64),
        bytes(totals.live_bytes),
        counted(totals.live_blocks, "block"),
        bytes(totals.peak_live_bytes),
    );
}

/// Why it is over.
enum End {
    /// The target is.
    Gone,
    /// Somebody wants it.
    Asked,
}

/// Counts, draws and listens until the end.
fn watch(
    args: &Args,
    session: &mut Session,
    consumer: &Consumer,
    upkeep: &mut Upkeep,
    board: &mut Board,
    terminal: &mut DefaultTerminal,
) -> anyhow::Result<End> {
    let roots = vec![
        format!("/proc/{}/root", args.pid).into(),
        PathBuf::from("/"),
    ];
    let mut names = Names {
        symbols: Symbolizer::new(roots),
        asked: HashMap::new(),
    };
    let (sender, actions) = mpsc::channel();
    keys::listen(sender, std::thread::current());
    let mut next_sample = Duration::ZERO;
    let mut is_stale = true;
    loop {
        let turn = upkeep.turn(session, consumer);
        if let Some(notice) = turn.notice {
            eprintln!("memhook-rs: {notice}");
        }
        if turn.gone {
            return Ok(End::Gone);
        }
        if signals::stop_requested() || session.region().abandoned() {
            return Ok(End::Asked);
        }
        while let Ok(action) = actions.try_recv() {
            match action {
                Action::Quit => return Ok(End::Asked),
                Action::TerminalGone => bail!("the terminal went away; detached"),
                action => board.act(action),
            }
            is_stale = true;
        }
        let now = consumer.elapsed();
        if now >= next_sample {
            next_sample = now + args.interval;
            board.sample(sample(session, consumer));
            is_stale = true;
        }
        is_stale |= names.follow(session, board);
        if std::mem::take(&mut is_stale) {
            let drawn = terminal.draw(|frame| top::draw(frame, board));
            drawn.context("the terminal cannot be written")?;
            // What has come into view gets its names next.
            is_stale = names.ask(session, board);
        }
        std::thread::park_timeout(TURN);
    }
}

fn sample(session: &Session, consumer: &Consumer) -> Sample {
    let state = consumer.lock();
    let (sites, totals) = (state.ledger.sites(), state.ledger.totals());
    drop(state);
    let losses = session.region().losses();
    Sample {
        time: consumer.elapsed(),
        sites,
        totals,
        lost_events: losses.dropped + losses.ringless,
    }
}

/// Names of the stacks that are on the screen, as they come.
struct Names {
    symbols: Symbolizer,
    /// Whether the name is final.
    asked: HashMap<u32, bool>,
}

impl Names {
    /// Asks for what is visible; returns whether there was something new.
    fn ask(&mut self, session: &Session, board: &Board) -> bool {
        let visible = board.visible().collect::<Vec<u32>>();
        let new: Vec<u32> = visible
            .into_iter()
            .filter(|id| !self.asked.contains_key(id))
            .collect();
        if new.is_empty() {
            return false;
        }
        self.symbols.set_modules(module_files(session));
        let frames = new.iter().filter_map(|&id| session.stack(id));
        self.symbols.request(frames.flat_map(|(_, frames)| frames));
        self.asked.extend(new.iter().map(|&id| (id, false)));
        true
    }

    /// Hands over names that have come; returns whether there were any.
    fn follow(&mut self, session: &Session, board: &mut Board) -> bool {
        let is_waiting = self.asked.values().any(|known| !known);
        if !is_waiting || !self.symbols.is_ready(Duration::ZERO) {
            return false;
        }
        for (&id, known) in self.asked.iter_mut().filter(|(_, known)| !**known) {
            let (kind, stack) = stack_of(session, &self.symbols, id);
            board.name_site(id, site_name(&stack), kind, stack);
            *known = true;
        }
        true
    }
}
