//! What the screen shows: sites with their rates and their recent past, in an order, one of them selected.

use crate::StackFrame;
use memhook_ledger::{Bounded, SiteTotals, Totals};
use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
    time::Duration,
};

/// Samples that are remembered.
const PAST: usize = 60;
/// Rates and growth are taken over so many of them: single ones jump.
const RECENT: usize = 10;

/// Order of the rows; the largest, or the oldest, is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the definition
pub enum Sort {
    Bytes,
    Blocks,
    Growth,
    Rate,
    Age,
}

impl Sort {
    fn next(self) -> Sort {
        match self {
            Sort::Bytes => Sort::Blocks,
            Sort::Blocks => Sort::Growth,
            Sort::Growth => Sort::Rate,
            Sort::Rate => Sort::Age,
            Sort::Age => Sort::Bytes,
        }
    }
}

/// Something to be done.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // the names are the definition
pub enum Action {
    Quit,
    /// Show the stack of the selected row, or the rows again.
    Drill,
    Back,
    Pause,
    SortBy(Sort),
    NextSort,
    /// By so many rows.
    Move(i64),
    /// To the first or last row.
    First,
    Last,
    /// The terminal has another size.
    Redraw,
    /// It cannot be read any longer.
    TerminalGone,
}

/// The heap at a moment.
#[allow(missing_docs)] // the names are the definition
pub struct Sample {
    /// Since the attach.
    pub time: Duration,
    pub sites: Vec<SiteTotals>,
    pub totals: Totals,
    pub lost_events: u64,
    /// What is not known of it.
    pub bounded: Option<Bounded>,
}

/// A site.
#[derive(Clone, Default)]
#[allow(missing_docs)] // the names are the definition
pub struct BoardRow {
    pub stack: u32,
    pub bytes: u64,
    pub blocks: u64,
    /// Bytes a second.
    pub growth: f64,
    /// Allocations a second.
    pub rate: f64,
    /// Time of the oldest live block since the attach.
    pub oldest: Option<Duration>,
}

/// Name of a site, once it is known.
#[allow(missing_docs)] // the names are the definition
pub struct Named {
    pub name: String,
    pub kind: String,
    pub frames: Vec<StackFrame>,
}

/// Live bytes and allocations up to then.
type Past = VecDeque<(u64, u64)>;

/// All that is shown.
#[allow(missing_docs)] // the names are the definition
pub struct Board {
    pub name: String,
    pub pid: i32,
    pub totals: Totals,
    pub lost_events: u64,
    /// What is not known of it.
    pub bounded: Option<Bounded>,
    pub rows: Vec<BoardRow>,
    pub sort: Sort,
    pub is_paused: bool,
    pub is_drilled: bool,
    /// First row on the screen.
    pub first: usize,
    /// Rows that fit.
    pub height: usize,
    selected: Option<u32>,
    past: HashMap<u32, Past>,
    all: Past,
    times: VecDeque<Duration>,
    names: HashMap<u32, Named>,
}

impl Board {
    /// Nothing counted yet.
    pub fn new(name: String, pid: i32) -> Board {
        Board {
            name,
            pid,
            totals: Totals::default(),
            lost_events: 0,
            bounded: None,
            rows: Vec::new(),
            sort: Sort::Bytes,
            is_paused: false,
            is_drilled: false,
            first: 0,
            height: 0,
            selected: None,
            past: HashMap::new(),
            all: Past::new(),
            times: VecDeque::new(),
            names: HashMap::new(),
        }
    }

    /// Takes a sample; while paused only the past goes on.
    pub fn sample(&mut self, sample: Sample) {
        // A site that is new has been at nothing before.
        let before = self.times.len();
        for site in &sample.sites {
            let past = self
                .past
                .entry(site.stack)
                .or_insert_with(|| vec![(0, 0); before].into());
            past.push_back((site.bytes, site.allocated_blocks));
        }
        self.times.push_back(sample.time);
        self.all
            .push_back((sample.totals.live_bytes, sample.totals.allocations));
        if self.times.len() > PAST {
            self.times.pop_front();
            self.all.pop_front();
            self.past.values_mut().for_each(|past| {
                past.pop_front();
            });
        }
        if self.is_paused {
            return;
        }
        let row = |site: &SiteTotals| {
            let (growth, rate) = self.changes(&self.past[&site.stack]);
            BoardRow {
                stack: site.stack,
                bytes: site.bytes,
                blocks: site.blocks,
                growth,
                rate,
                oldest: (site.blocks > 0).then(|| Duration::from_nanos(site.oldest_ns)),
            }
        };
        let is_shown = |row: &BoardRow| row.bytes > 0 || row.blocks > 0 || row.rate > 0.0;
        self.rows = sample.sites.iter().map(row).filter(is_shown).collect();
        self.totals = sample.totals;
        self.lost_events = sample.lost_events;
        self.bounded = sample.bounded;
        self.order();
    }

    /// Bytes and allocations a second over the recent past.
    fn changes(&self, past: &Past) -> (f64, f64) {
        let last = past.len().saturating_sub(1);
        let first = last.saturating_sub(RECENT);
        let seconds = match (self.times.get(first), self.times.get(last)) {
            (Some(&from), Some(&to)) if to > from => (to - from).as_secs_f64(),
            _ => return (0.0, 0.0),
        };
        let ((old_bytes, old_count), (bytes, count)) = (past[first], past[last]);
        (
            (bytes as f64 - old_bytes as f64) / seconds,
            count.saturating_sub(old_count) as f64 / seconds,
        )
    }

    /// Bytes and allocations a second of the whole heap.
    pub fn all_changes(&self) -> (f64, f64) {
        self.changes(&self.all)
    }

    /// Live bytes of the whole heap, oldest first.
    pub fn all_past(&self) -> Vec<u64> {
        self.all.iter().map(|past| past.0).collect()
    }

    /// Live bytes of a site, oldest first.
    pub fn past(&self, stack: u32) -> Vec<u64> {
        let past = self.past.get(&stack);
        past.into_iter().flatten().map(|past| past.0).collect()
    }

    /// Time of the last sample.
    pub fn elapsed(&self) -> Duration {
        self.times.back().copied().unwrap_or_default()
    }

    fn order(&mut self) {
        let whole = |x: f64| x.round() as i64;
        match self.sort {
            Sort::Bytes => self.rows.sort_by_key(|r| (Reverse(r.bytes), r.stack)),
            Sort::Blocks => self.rows.sort_by_key(|r| (Reverse(r.blocks), r.stack)),
            Sort::Growth => self
                .rows
                .sort_by_key(|r| (Reverse(whole(r.growth)), r.stack)),
            Sort::Rate => self.rows.sort_by_key(|r| (Reverse(whole(r.rate)), r.stack)),
            Sort::Age => self
                .rows
                .sort_by_key(|r| (r.oldest.unwrap_or(Duration::MAX), r.stack)),
        }
        self.keep_in_sight();
    }

    /// Index of the selected row. It is the site that stays selected, wherever it goes.
    pub fn selected(&self) -> Option<usize> {
        let stack = self.selected?;
        self.rows.iter().position(|row| row.stack == stack)
    }

    /// The row whose stack is shown.
    pub fn drilled(&self) -> Option<&BoardRow> {
        if self.is_drilled {
            self.selected().map(|at| &self.rows[at])
        } else {
            None
        }
    }

    fn keep_in_sight(&mut self) {
        let height = self.height.max(1);
        self.first = self.first.min(self.rows.len().saturating_sub(height));
        if let Some(at) = self.selected() {
            self.first = self.first.clamp((at + 1).saturating_sub(height), at);
        }
    }

    /// As many rows fit on the screen.
    pub fn set_height(&mut self, rows: usize) {
        self.height = rows;
        self.keep_in_sight();
    }

    /// Stack ids of the rows on the screen.
    pub fn visible(&self) -> impl Iterator<Item = u32> + '_ {
        let on_screen = self.rows.iter().skip(self.first).take(self.height);
        on_screen.map(|row| row.stack)
    }

    /// Does what a key asks for.
    pub fn act(&mut self, action: Action) {
        match action {
            Action::Pause => self.is_paused = !self.is_paused,
            Action::SortBy(sort) => self.sort = sort,
            Action::NextSort => self.sort = self.sort.next(),
            Action::Drill if self.is_drilled => self.is_drilled = false,
            Action::Drill => {
                if self.selected().is_none() {
                    self.select(0);
                }
                self.is_drilled = self.selected.is_some();
            }
            Action::Back => self.is_drilled = false,
            Action::Move(by) => {
                let to = self
                    .selected()
                    .map_or(0, |at| (at as i64 + by).max(0) as usize);
                self.select(to);
            }
            Action::First => self.select(0),
            Action::Last => self.select(usize::MAX),
            Action::Quit | Action::Redraw | Action::TerminalGone => {}
        }
        self.order();
    }

    fn select(&mut self, at: usize) {
        let last = self.rows.len().saturating_sub(1);
        self.selected = self.rows.get(at.min(last)).map(|row| row.stack);
    }

    /// A name has come.
    pub fn name_site(&mut self, stack: u32, name: String, kind: String, frames: Vec<StackFrame>) {
        self.names.insert(stack, Named { name, kind, frames });
    }

    /// The name, if it has come.
    pub fn named(&self, stack: u32) -> Option<&Named> {
        self.names.get(&stack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(
        stack: u32,
        bytes: u64,
        blocks: u64,
        allocated_blocks: u64,
        oldest_ns: u64,
    ) -> SiteTotals {
        SiteTotals {
            stack,
            bytes,
            blocks,
            oldest_ns,
            allocated_blocks,
            allocated_bytes: 0,
            released_blocks: 0,
            released_bytes: 0,
            min_size: 0,
            max_size: 0,
        }
    }

    fn sample(seconds: u64, sites: Vec<SiteTotals>) -> Sample {
        Sample {
            time: Duration::from_secs(seconds),
            sites,
            totals: Totals::default(),
            lost_events: 0,
            bounded: None,
        }
    }

    fn stacks(board: &Board) -> Vec<u32> {
        board.rows.iter().map(|row| row.stack).collect()
    }

    #[test]
    fn rates_orders_and_what_stays_selected() {
        let mut board = Board::new("shop".into(), 7);
        board.set_height(10);
        board.sample(sample(
            0,
            vec![site(1, 100, 9, 9, 5), site(2, 500, 1, 1, 3)],
        ));
        board.sample(sample(
            2,
            vec![
                site(1, 300, 19, 49, 5),
                site(2, 500, 1, 1, 3),
                site(3, 0, 0, 60, 0),
            ],
        ));
        assert_eq!(stacks(&board), [2, 1, 3]);
        let row = |board: &Board, stack| {
            board
                .rows
                .iter()
                .find(|r| r.stack == stack)
                .cloned()
                .expect("there")
        };
        assert_eq!((row(&board, 1).growth, row(&board, 1).rate), (100.0, 20.0));
        assert_eq!((row(&board, 3).growth, row(&board, 3).rate), (0.0, 30.0));
        for (sort, expected) in [
            (Sort::Blocks, [1, 2, 3]),
            (Sort::Growth, [1, 2, 3]),
            (Sort::Rate, [3, 1, 2]),
            (Sort::Age, [2, 1, 3]),
        ] {
            board.act(Action::SortBy(sort));
            assert_eq!(stacks(&board), expected, "{sort:?}");
        }
        board.act(Action::Move(1));
        assert_eq!(board.selected(), Some(0));
        board.act(Action::SortBy(Sort::Rate));
        assert_eq!(board.selected(), Some(2), "site 2 stays selected");
        board.act(Action::Drill);
        assert_eq!(board.drilled().map(|row| row.stack), Some(2));
        board.act(Action::Back);
        assert!(board.drilled().is_none());
    }

    #[test]
    fn a_pause_holds_the_rows_and_not_the_past() {
        let mut board = Board::new("shop".into(), 7);
        board.sample(sample(0, vec![site(1, 100, 1, 1, 0)]));
        board.act(Action::Pause);
        board.sample(sample(1, vec![site(1, 900, 2, 2, 0)]));
        assert_eq!(board.rows[0].bytes, 100);
        assert_eq!(board.past(1), [100, 900]);
        board.act(Action::Pause);
        for second in 2..200 {
            board.sample(sample(second, vec![site(1, 900 + second, 2, 2, 0)]));
        }
        assert_eq!(board.past(1).len(), PAST);
        assert_eq!(board.rows[0].growth, 1.0);
        board.sample(sample(200, vec![]));
        assert!(board.rows.is_empty());
        board.act(Action::Drill);
        board.act(Action::Last);
        assert!(board.drilled().is_none());
    }
}
