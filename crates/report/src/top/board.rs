//! State of the screen: sites or a tree of calls, sorted, with one selected row.

use super::keys::{Action, action, is_end};
use super::layout::Places;
use super::past::Past;
use super::rows::{Numbers, Row, Sort, Subject};
use super::tree::Tree;
use crate::names::is_plumbing;
use crate::places::source_root;
use crate::stacks::responsible;
use crate::units::count;
use crate::{Overhead, StackFrame, frame_name};
use memhook_ledger::{Bounded, SiteTotals, Totals};
use ratatui::crossterm::event::Event;
use std::{collections::HashMap, time::Duration};

/// Maximum number of sites that a filter and the tree consider, because each of them needs its
/// names.
const MOST_NAMED: usize = 2_000;

/// The heap at one moment.
#[derive(Default)]
#[allow(missing_docs)] // the names are the definition
pub struct Sample {
    /// Time since the attach.
    pub time: Duration,
    pub sites: Vec<SiteTotals>,
    pub totals: Totals,
    pub lost_events: u64,
    pub unwatched_libraries: u64,
    /// Losses of a ledger that reached its bound.
    pub bounded: Option<Bounded>,
    /// Cost of tracing, if the trace keeps to a budget.
    pub overhead: Option<Overhead>,
    /// Bytes that were not touched for a time, by stack, if accesses are watched.
    pub stale: Option<HashMap<u32, u64>>,
    /// True if only samples were recorded. All sums are then estimates.
    pub is_sampled: bool,
    /// Resident memory of the process, if known.
    pub resident: Option<Resident>,
}

/// Resident memory of the process, shown next to its live memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// All resident bytes.
    pub rss_bytes: u64,
    /// Names and bytes of the parts of the resident memory.
    pub parts: Vec<(String, u64)>,
}

/// Names of a site.
pub(super) struct Named {
    pub kind: String,
    pub frames: Vec<StackFrame>,
}

fn is_librarys(frame: &StackFrame) -> bool {
    frame.function.as_deref().is_some_and(is_plumbing)
}

/// Effect of an event on the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// The user wants to quit.
    Quit,
    /// Redraw the whole screen.
    Redraw,
    /// Show the process or heap that is this many positions further on.
    Process(i32),
    /// Write a report.
    Report,
    /// Open the source line of the selected row ([`Board::source_line`]).
    Edit,
    /// Leave the mouse to the terminal, or capture it again.
    Mouse,
}

/// A place in the sources. The process's debug information names the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// Path of the file.
    pub file: String,
    /// Line number from 1 on, if it is known.
    pub line: Option<u32>,
}

/// Place of the shown process among several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Among {
    /// Place of the process, from 1 on.
    pub place: usize,
    /// Number of processes.
    pub processes: usize,
    /// Live bytes of all processes together.
    pub live_bytes: u64,
}

/// Contents of the screen.
pub struct Board {
    /// Name of the process.
    pub name: String,
    /// Id of the process.
    pub pid: i32,
    /// True if colours are allowed.
    pub has_color: bool,
    /// Position of the process among several traced ones.
    pub among: Option<Among>,
    /// If the process has several heaps: the position of this heap, counted from 1, and the number
    /// of heaps.
    pub heap: Option<(usize, usize)>,
    /// How long the process ran untraced before the attach, if that may matter.
    pub unseen: Option<Duration>,
    /// True if the process is gone.
    pub has_ended: bool,
    /// Message shown at the bottom in place of the key hints, until the user presses a key.
    pub message: Option<String>,
    /// The latest sample, except its sites, which are in `sites`.
    pub(super) latest: Sample,
    pub(super) sort: Sort,
    pub(super) is_paused: bool,
    pub(super) is_help_shown: bool,
    pub(super) is_tree: bool,
    pub(super) is_drilled: bool,
    pub(super) filter: String,
    pub(super) is_typing: bool,
    /// First row on the screen.
    pub(super) first: usize,
    /// Layout of the screen.
    pub(super) places: Places,
    /// All sites with a value, sorted.
    sites: Vec<Row>,
    /// Rows that pass the filter, or the open calls of the tree.
    rows: Vec<Row>,
    selected: Option<u64>,
    /// Calls of the tree that the user opened or closed.
    chosen: HashMap<u64, bool>,
    past: Past,
    names: HashMap<u32, Named>,
}

impl Board {
    /// Creates a board without counts.
    pub fn new(name: String, pid: i32) -> Board {
        Board {
            name,
            pid,
            has_color: true,
            among: None,
            heap: None,
            unseen: None,
            has_ended: false,
            message: None,
            latest: Sample::default(),
            sort: Sort::Bytes,
            is_paused: false,
            is_help_shown: false,
            is_tree: false,
            is_drilled: false,
            filter: String::new(),
            is_typing: false,
            first: 0,
            places: Places::default(),
            sites: Vec::new(),
            rows: Vec::new(),
            selected: None,
            chosen: HashMap::new(),
            past: Past::default(),
            names: HashMap::new(),
        }
    }

    /// Takes a sample. While the board is paused, the sample only extends the history.
    pub fn sample(&mut self, mut sample: Sample) {
        self.past.remember(&sample);
        if self.is_paused {
            return;
        }
        let stale = sample.stale.as_ref();
        let row = |site: &SiteTotals| {
            let (growth, rate) = self.past.changes_of(site.stack);
            let numbers = Numbers {
                bytes: site.bytes,
                blocks: site.blocks,
                growth,
                rate,
                oldest: (site.blocks > 0).then(|| Duration::from_nanos(site.oldest_ns)),
                stale: stale
                    .and_then(|stale| stale.get(&site.stack))
                    .map_or(0, |&bytes| bytes.min(site.bytes)),
            };
            Row::of_site(site.stack, numbers)
        };
        let rows = sample.sites.iter().map(row);
        self.sites = rows.filter(|row| row.numbers.is_something()).collect();
        sample.sites = Vec::new();
        self.latest = sample;
        self.arrange();
    }

    /// Returns true if untouched memory is watched.
    pub(super) fn has_stale(&self) -> bool {
        self.latest.stale.is_some()
    }

    /// Sums of the latest sample.
    pub fn totals(&self) -> &Totals {
        &self.latest.totals
    }

    /// Returns the number of live bytes.
    pub fn live_bytes(&self) -> u64 {
        self.latest.totals.live_bytes
    }

    /// Returns the time of the latest sample.
    pub fn elapsed(&self) -> Duration {
        self.past.time()
    }

    pub(super) fn past(&self) -> &Past {
        &self.past
    }

    pub(super) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Returns true if no site has a value. Sites hidden by a filter count too.
    pub(super) fn is_empty(&self) -> bool {
        self.sites.is_empty()
    }

    /// Sorts the rows.
    fn arrange(&mut self) {
        let sort = self.sort;
        self.sites
            .sort_by_cached_key(|row| (row.numbers.order(sort), row.key));
        self.rows = if self.is_tree {
            let mut tree = Tree::new();
            for (row, named) in self.named_sites().filter(|(_, named)| self.passes(named)) {
                // Without this, the C++ library's own functions would take up most of the rows.
                let own = named
                    .frames
                    .iter()
                    .rev()
                    .filter(|frame| !is_librarys(frame));
                tree.add(own.map(frame_name), &row.numbers);
            }
            let rest = self.sites.get(MOST_NAMED..).unwrap_or_default();
            if !rest.is_empty() && self.filter.is_empty() {
                let mut sum = Numbers::default();
                rest.iter().for_each(|row| sum.add(&row.numbers));
                let name = format!("({} smaller sites)", count(rest.len() as u64));
                tree.add(std::iter::once(name), &sum);
            }
            tree.rows(sort, &self.chosen)
        } else if self.filter.is_empty() {
            self.sites.clone()
        } else {
            let passing = self.named_sites().filter(|(_, named)| self.passes(named));
            passing.map(|(row, _)| row.clone()).collect()
        };
        self.keep_in_sight();
    }

    /// Iterates over the sites in order, with the names that are known so far.
    fn named_sites(&self) -> impl Iterator<Item = (&Row, &Named)> {
        let sites = self.sites.iter().take(MOST_NAMED);
        sites.filter_map(|row| Some((row, self.names.get(&row.stack()?)?)))
    }

    fn passes(&self, named: &Named) -> bool {
        let wanted = self.filter.to_lowercase();
        let has = |text: &Option<String>| {
            text.as_ref()
                .is_some_and(|text| text.to_lowercase().contains(&wanted))
        };
        let is_like =
            |frame: &StackFrame| has(&frame.function) || has(&frame.file) || has(&frame.module);
        wanted.is_empty() || named.frames.iter().any(is_like)
    }

    /// Returns the number of sites that a filter or the tree considers, if not all.
    pub(super) fn looked_at(&self) -> Option<usize> {
        let needs_names = self.is_tree || !self.filter.is_empty();
        (needs_names && self.sites.len() > MOST_NAMED).then_some(MOST_NAMED)
    }

    /// Returns the index of the selected row. The selection stays on the same item when rows move.
    pub(super) fn selected(&self) -> Option<usize> {
        let key = self.selected?;
        self.rows.iter().position(|row| row.key == key)
    }

    /// Returns the row whose stack is shown.
    pub(super) fn drilled(&self) -> Option<&Row> {
        let at = self.selected().filter(|_| self.is_drilled)?;
        Some(&self.rows[at])
    }

    fn keep_in_sight(&mut self) {
        let height = self.places.rows().max(1);
        self.first = self.first.min(self.rows.len().saturating_sub(height));
        if let Some(at) = self.selected() {
            self.first = self.first.clamp((at + 1).saturating_sub(height), at);
        }
    }

    /// Sets the layout of the screen.
    pub(super) fn set_places(&mut self, places: Places) {
        self.places = places;
        self.keep_in_sight();
    }

    /// Iterates over the rows on the screen, with their indices.
    pub(super) fn visible(&self) -> impl Iterator<Item = (usize, &Row)> {
        let rows = self.rows.iter().enumerate();
        rows.skip(self.first).take(self.places.rows())
    }

    /// Returns the stacks whose names are needed now: the stacks on the screen, and with a filter
    /// or a tree, the stacks of all considered sites.
    pub(super) fn wanted(&self) -> Vec<u32> {
        let needs_all = self.is_tree || !self.filter.is_empty();
        let all = self
            .sites
            .iter()
            .take(if needs_all { MOST_NAMED } else { 0 });
        let visible = self.visible().map(|(_, row)| row);
        visible.chain(all).filter_map(Row::stack).collect()
    }

    /// Performs the action of a key or the mouse.
    pub fn react(&mut self, event: &Event) -> Option<Reaction> {
        if matches!(event, Event::Resize(..)) {
            return Some(Reaction::Redraw);
        }
        let action = action(event, self.is_typing)?;
        self.message = None;
        match action {
            // Any key closes the help, so the program ends only with a second key.
            Action::Quit if self.is_help_shown && !is_end(event) => {}
            Action::Quit => return Some(Reaction::Quit),
            Action::Process(by) if self.among.is_some() || self.heap.is_some() => {
                return Some(Reaction::Process(by));
            }
            Action::Write if !self.is_help_shown => return Some(Reaction::Report),
            Action::Edit if !self.is_help_shown => return Some(Reaction::Edit),
            Action::Mouse if !self.is_help_shown => return Some(Reaction::Mouse),
            _ => {}
        }
        self.act(action);
        Some(Reaction::Redraw)
    }

    fn act(&mut self, action: Action) {
        // Any key closes the help.
        if std::mem::take(&mut self.is_help_shown) {
            return;
        }
        match action {
            Action::Help => self.is_help_shown = true,
            Action::Pause => self.is_paused = !self.is_paused,
            Action::SortBy(Sort::Stale) if !self.has_stale() => {}
            Action::SortBy(sort) => self.sort = sort,
            Action::NextSort => self.sort = self.sort.next(self.has_stale()),
            Action::Enter => self.enter(),
            Action::Open(is_open) => self.open(is_open),
            Action::Back => self.back(),
            Action::Tree => {
                self.is_tree = !self.is_tree;
                self.is_drilled = false;
                self.selected = None;
                self.first = 0;
            }
            Action::Move(by) => {
                let at = self.selected();
                self.select(at.map_or(0, |at| (at as i64 + by).max(0) as usize));
            }
            Action::First => self.select(0),
            Action::Last => self.select(usize::MAX),
            Action::Filter => {
                self.is_typing = true;
                self.is_drilled = false;
            }
            Action::Type(c) => self.filter.push(c),
            Action::Rubout => self.is_typing = self.filter.pop().is_some(),
            Action::EndFilter => self.is_typing = false,
            Action::Click(column, row) => self.click(column, row),
            Action::Quit | Action::Process(_) | Action::Write | Action::Edit | Action::Mouse => {}
        }
        self.arrange();
    }

    fn enter(&mut self) {
        if self.selected().is_none() {
            self.select(0);
        }
        let Some(at) = self.selected() else { return };
        match self.rows[at].subject {
            Subject::Call { is_open, .. } => self.open(is_open == Some(false)),
            Subject::Site(_) => self.is_drilled = !self.is_drilled,
        }
    }

    /// Returns the file and line of the selected row, or of the first row.
    ///
    /// # Errors
    /// The error says why there is no such line, in words for the user.
    pub fn source_line(&mut self) -> Result<SourceLine, &'static str> {
        if self.selected().is_none() {
            self.select(0);
        }
        let at = self.selected().ok_or("No row is selected")?;
        let Some(stack) = self.rows[at].stack() else {
            return Err("A call of the tree has no source line; t shows the sites");
        };
        let named = self.named(stack).ok_or("The names are not available yet")?;
        let frame = responsible(&named.frames);
        let line = frame.and_then(|frame| {
            Some(SourceLine {
                file: frame.file.clone()?,
                line: frame.line,
            })
        });
        line.ok_or("The source line is not known: no debug information")
    }

    fn open(&mut self, is_open: bool) {
        if let (true, Some(at)) = (self.is_tree, self.selected()) {
            self.chosen.insert(self.rows[at].key, is_open);
        }
    }

    /// Leaves the view that was entered last.
    fn back(&mut self) {
        if self.is_drilled {
            self.is_drilled = false;
        } else if self.is_typing || !self.filter.is_empty() {
            self.is_typing = false;
            self.filter.clear();
        } else if self.is_tree {
            self.act(Action::Tree);
        }
    }

    fn click(&mut self, column: u16, row: u16) {
        if self.is_drilled {
            return;
        }
        if let Some(sort) = self.places.sort_at(column, row) {
            self.sort = sort;
        } else if let Some(at) = self.places.row_at(row).map(|at| self.first + at)
            && at < self.rows.len()
        {
            if self.selected() == Some(at) {
                self.enter();
            } else {
                self.select(at);
            }
        }
    }

    fn select(&mut self, at: usize) {
        let last = self.rows.len().saturating_sub(1);
        self.selected = self.rows.get(at.min(last)).map(|row| row.key);
    }

    /// Takes names that have arrived.
    pub(super) fn name_sites(&mut self, names: impl Iterator<Item = (u32, Named)>) {
        self.names.extend(names);
        self.arrange();
    }

    /// Returns the directory that contains the known sources.
    pub(super) fn source_root(&self) -> String {
        source_root(self.names.values().flat_map(|named| &named.frames))
    }

    /// Returns the names of a site, if they have arrived.
    pub(super) fn named(&self, stack: u32) -> Option<&Named> {
        self.names.get(&stack)
    }
}
