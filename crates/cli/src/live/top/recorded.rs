//! `top --from`: shows a recording that is still being written.

use super::edit_key::{EditKey, Told};
use super::editor::Editor;
use super::saved::{ROWS, save, told};
use super::{has_color, open};
use crate::report::follow::follow;
use anyhow::{Context, bail};
use crossbeam_channel::{Receiver, bounded, select};
use memhook_ledger::SiteTotals;
use memhook_recording::{RESIDENT_NOTE, Recording, resident_of};
use memhook_report::recorded::{
    self, Contents, NameSources, Selection, Window, module_files, note, symbolizer, window_totals,
};
use memhook_report::top::{Board, Names, Reaction, Resident, Sample, Screen};
use memhook_report::{Measure, RowsBy, SortBy};
use std::collections::HashMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Number of points in the timeline of activity, which this screen does not show.
const POINTS: usize = 1;
/// Time to wait for keys between two lookups of names.
const PAUSE: Duration = Duration::from_millis(100);

/// The part of the recording that has been read, and its contents.
type Read = (Arc<Recording>, Sample);

/// Shows the recording until the user leaves.
pub fn run(file: &Path, interval: Duration, editor: Option<Editor>) -> anyhow::Result<ExitCode> {
    if !std::io::stdout().is_terminal() {
        bail!(
            "top needs a terminal; in scripts, use memhook-rs report --follow {} --json",
            file.display()
        );
    }
    let read = reader(file.to_owned(), interval);
    // Read errors are reported before the screen is taken over.
    let (recording, sample) = match read.recv() {
        Ok(first) => first?,
        Err(_) => bail!("{}: the recording is empty", file.display()),
    };
    let depth = note(&recording, "depth").parse().unwrap_or(0);
    let pid = recording.meta().pid as i32;
    let mut view = View {
        board: Board::new(note(&recording, "name").to_owned(), pid),
        names: Names::new(symbolizer(&recording, NameSources::default()), depth),
        recording,
        edit: EditKey::new(editor),
        reports: Vec::new(),
    };
    view.board.has_color = has_color();
    view.board.sample(sample);
    let end = view.show(&read);
    view.edit.finish();
    let end = end?;
    for report in &view.reports {
        println!("{report}");
    }
    println!(
        "{end} of {} ({pid}): {} live in {}",
        view.board.name,
        memhook_report::bytes(view.board.live_bytes()),
        memhook_report::counted(view.board.totals().live_blocks, "block")
    );
    Ok(ExitCode::SUCCESS)
}

/// Reads the recording in a separate thread whenever it has grown.
fn reader(file: PathBuf, interval: Duration) -> Receiver<anyhow::Result<Read>> {
    let (to, read) = bounded(1);
    std::thread::spawn(move || {
        let followed = follow(&file, interval, &mut |recording| {
            let found = sample(&recording).map(|sample| (recording, sample));
            to.send(found).context("nobody looks")
        });
        if let Err(error) = followed {
            let _ = to.send(Err(error));
        }
    });
    read
}

/// Contents of the screen.
struct View {
    recording: Arc<Recording>,
    board: Board,
    names: Names,
    edit: EditKey,
    /// Names of the reports that were written at a key press. They are printed at the end.
    reports: Vec<String>,
}

/// Result of a report that a thread writes.
type Written = Receiver<anyhow::Result<PathBuf>>;

/// Writes a report of the part that has been read, in a separate thread, because looking up names
/// takes a long time.
fn write(recording: Arc<Recording>) -> Written {
    let (to, written) = bounded(1);
    std::thread::spawn(move || to.send(written_report(&recording)));
    written
}

fn written_report(recording: &Recording) -> anyhow::Result<PathBuf> {
    let mut symbols = symbolizer(recording, NameSources::default());
    let all = Window::default();
    let profile = recorded::profile(recording, &mut symbols, all, Contents::default())?;
    let selection = Selection {
        by: RowsBy::Site,
        measure: Measure::Live,
        sort: SortBy::Bytes,
        top: ROWS,
        is_window: false,
        merges_alike: true,
    };
    let report = recorded::report(recording, &symbols, &profile, &selection);
    let report = report.context("the recorder's note on what it saw cannot be read")?;
    save(
        &report,
        note(recording, "name"),
        recording.meta().pid as i32,
    )
}

impl View {
    /// Updates the screen and handles keys until the user leaves. Returns the offset up to which
    /// the recording was read.
    fn show(&mut self, read: &Receiver<anyhow::Result<Read>>) -> anyhow::Result<&'static str> {
        let mut screen = open()?;
        let mut end = "What was recorded so far";
        let mut is_stale = true;
        let mut read = Some(read);
        let mut written: Option<Written> = None;
        loop {
            is_stale |= self.names.follow(&*self.recording, &mut self.board);
            let edited = self.edit.turn(&mut screen);
            if let Told::Redraw(message) = edited.context("the terminal cannot be used")? {
                self.board.message = message;
                is_stale = true;
            }
            if std::mem::take(&mut is_stale) {
                is_stale = self.draw(&mut screen)?;
            }
            let (never, nothing) = (crossbeam_channel::never(), crossbeam_channel::never());
            select! {
                recv(screen.events()) -> event => {
                    let event = event.ok().flatten();
                    let event = event.context("the terminal went away")?;
                    match screen.react(&mut self.board, &event) {
                        Some(Reaction::Quit) => return Ok(end),
                        Some(Reaction::Edit) => {
                            self.board.message = self.edit.press(self.board.source_line());
                            is_stale = true;
                        }
                        Some(Reaction::Report) => written = Some(write(Arc::clone(&self.recording))),
                        reaction => is_stale |= reaction.is_some(),
                    }
                }
                recv(written.as_ref().unwrap_or(&nothing)) -> done => {
                    written = None;
                    if let Ok(done) = done {
                        let (message, at_the_end) = told(done);
                        self.board.message = Some(message);
                        self.reports.extend(at_the_end);
                        is_stale = true;
                    }
                }
                recv(read.unwrap_or(&never)) -> found => match found {
                    Ok(found) => {
                        let (recording, sample) = found?;
                        self.recording = recording;
                        self.board.sample(sample);
                        is_stale = true;
                    }
                    // The screen keeps the state at the end.
                    Err(_) => {
                        (read, end) = (None, "The recording");
                        self.board.has_ended = true;
                        is_stale = true;
                    }
                },
                default(PAUSE) => {}
            }
        }
    }

    /// Returns true if new names are needed.
    fn draw(&mut self, screen: &mut Screen) -> anyhow::Result<bool> {
        let drawn = screen.draw(&mut self.board);
        drawn.context("the terminal cannot be written")?;
        let recording = &self.recording;
        let modules = || module_files(recording, &[PathBuf::from("/")], false);
        Ok(self.names.ask(&**recording, modules, &self.board))
    }
}

/// Returns the heap at the end of the recorded part.
fn sample(recording: &Recording) -> anyhow::Result<Sample> {
    let activity = recording.activity(None, None, POINTS)?;
    let mut by_stack: HashMap<u32, SiteTotals> = HashMap::new();
    for site in &activity.sites {
        let number = |amount: f64| amount.round() as u64;
        let found = by_stack.entry(site.stack).or_insert(SiteTotals {
            stack: site.stack,
            oldest_ns: u64::MAX,
            ..SiteTotals::default()
        });
        found.bytes += number(site.live.bytes);
        found.blocks += number(site.live.blocks);
        found.oldest_ns = found.oldest_ns.min(site.oldest_ns);
        found.allocated_blocks += number(site.allocated.blocks);
        found.allocated_bytes += number(site.allocated.bytes);
        found.released_blocks += number(site.released.blocks);
        found.released_bytes += number(site.released.bytes);
    }
    let samples = resident_of(note(recording, RESIDENT_NOTE));
    let resident = samples.last().map(|last| Resident {
        rss_bytes: last.anonymous_bytes + last.file_bytes + last.shared_bytes,
        parts: vec![
            ("anonymous memory".into(), last.anonymous_bytes),
            ("file pages".into(), last.file_bytes),
            ("shared memory".into(), last.shared_bytes),
        ],
    });
    let losses = recording.losses();
    Ok(Sample {
        time: Duration::from_nanos(activity.to_ns),
        sites: by_stack.into_values().collect(),
        totals: window_totals(recording, &activity),
        lost_events: losses.events(),
        unwatched_libraries: losses.unwatched_libraries,
        bounded: None,
        overhead: memhook_report::recorded::overhead(recording),
        stale: None,
        is_sampled: recording.sample_bytes().is_some(),
        resident,
    })
}
