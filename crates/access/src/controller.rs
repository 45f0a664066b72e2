//! Chooses the pages and words to watch next. The decisions are pure functions, made once a second
//! from the results of earlier looks.

use crate::pages::{PAGE_BYTES, Pages, THRESHOLDS_MS};
use crate::random::mixed;
use crate::spending::Spending;
use std::ops::Range;

/// Settings of a watch.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Time without a touch after which a block is stale.
    pub older_ms: u32,
    /// Share of the target's time that may be spent.
    pub budget: f64,
}

/// Cost of one event for the thread that causes it, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// Cost of the first write to a guarded page.
    pub fault_ns: f64,
    /// Cost of an access to a watched word.
    pub trap_ns: f64,
}

/// Plan for pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PagePlan {
    /// Ranges to protect.
    pub guard: Vec<Range<u64>>,
    /// Ranges to stop protecting.
    pub lift: Vec<Range<u64>>,
}

/// Share of the budget for pages. Watchpoints get the rest.
const SHARE_OF_PAGES: f64 = 0.5;
/// Share of the uninformative pages to exchange at a time if there are more pages than may be
/// guarded.
const EXCHANGED_SHARE: f64 = 0.1;
/// Bytes of adjacent pages that are chosen together, to keep the number of protected ranges small.
const CHUNK_BYTES: u64 = 64 * PAGE_BYTES;

/// The controller of a watch.
#[derive(Clone, Debug)]
pub struct Controller {
    settings: Settings,
    costs: Costs,
    /// Known facts about pages.
    pub pages: Pages,
    faults: Spending,
    traps: Spending,
    fault_count: u64,
    trap_count: u64,
}

impl Controller {
    /// Creates a controller without any knowledge.
    pub fn new(settings: Settings, costs: Costs) -> Controller {
        Controller {
            settings,
            costs,
            pages: Pages::default(),
            faults: Spending::within(settings.budget * SHARE_OF_PAGES),
            traps: Spending::within(settings.budget * (1.0 - SHARE_OF_PAGES)),
            fault_count: 0,
            trap_count: 0,
        }
    }

    /// Returns the settings.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// Returns the cost of an event.
    pub fn costs(&self) -> Costs {
        self.costs
    }

    /// Returns the time spent, in nanoseconds.
    pub fn spent_ns(&self) -> f64 {
        self.faults.total_ns() + self.traps.total_ns()
    }

    /// Returns the faults of guarded pages and the traps at watched words.
    pub fn counts(&self) -> (u64, u64) {
        (self.fault_count, self.trap_count)
    }

    /// Processes the result of a look at the pages. `written` lists the written ranges.
    pub fn looked(&mut self, written: &[Range<u64>], now_ms: u32) {
        let faults = self.pages.looked(written, now_ms);
        self.fault_count += faults as u64;
        self.faults
            .spend(now_ms, faults as f64 * self.costs.fault_ns);
    }

    /// Charges traps of `count` threads at watched words.
    pub fn trapped(&mut self, count: usize, now_ms: u32) {
        self.trap_count += count as u64;
        self.traps.spend(now_ms, count as f64 * self.costs.trap_ns);
    }

    /// Charges the cost of scheduling threads with watchpoints.
    pub fn switched(&mut self, ns: f64, now_ms: u32) {
        self.traps.spend(now_ms, ns);
    }

    /// Returns the time that may still be spent on watchpoints, in nanoseconds.
    pub fn words_room_ns(&mut self, now_ms: u32) -> f64 {
        self.traps.room_ns(now_ms, 0.0)
    }

    /// Returns the time that may be spent on watchpoints in a whole window, in nanoseconds.
    pub fn all_of_words_ns(&self) -> f64 {
        self.traps.all_ns()
    }

    /// Returns how many more watchpoints may be armed, given the number of armed ones. Each
    /// watchpoint counts once per thread.
    pub fn watchpoint_room(&mut self, armed: usize, now_ms: u32) -> usize {
        let outstanding = armed as f64 * self.costs.trap_ns;
        (self.traps.room_ns(now_ms, outstanding) / self.costs.trap_ns) as usize
    }

    /// Chooses the pages to guard, and the pages to stop guarding. Call it after a look.
    pub fn plan_pages(&mut self, now_ms: u32) -> PagePlan {
        let is_open = |page: &crate::pages::Page| !page.is_guarded;
        let outstanding = self.pages.guarded() as f64 * self.costs.fault_ns;
        let room = self.faults.room_ns(now_ms, outstanding) / self.costs.fault_ns;
        let room = room as usize;
        let due = self
            .pages
            .iter()
            .filter(|(_, page)| is_open(page) && page.at_ms <= now_ms);
        let mut due: Vec<(u64, u64)> = due
            .map(|(address, page)| {
                // The page that has waited longest relative to its own threshold comes first. Ties
                // are broken at random.
                let threshold = THRESHOLDS_MS[usize::from(page.level)];
                let waited = u64::from(now_ms - page.at_ms) * 16 / u64::from(threshold);
                let chance = mixed(address / CHUNK_BYTES) >> 32;
                (u64::MAX - (waited << 32 | chance), address)
            })
            .collect();
        let mut lift = Vec::new();
        if due.len() > room {
            let wanted = due.len() - room;
            lift = self.told_all(wanted, now_ms);
            if room > 0 {
                due.select_nth_unstable(room - 1);
            }
            due.truncate(room);
        }
        let mut guard: Vec<u64> = due.into_iter().map(|(_, address)| address).collect();
        guard.sort_unstable();
        PagePlan {
            guard: runs(guard.into_iter()),
            lift,
        }
    }

    /// Returns some of the pages that have been guarded for so long that they yield no further
    /// information.
    fn told_all(&self, wanted: usize, now_ms: u32) -> Vec<Range<u64>> {
        let most = (self.pages.guarded() as f64 * EXCHANGED_SHARE).ceil() as usize;
        let long_ms = self.settings.older_ms.max(THRESHOLDS_MS[0]);
        let told = |page: &crate::pages::Page| {
            page.is_guarded && now_ms.saturating_sub(page.at_ms) >= long_ms
        };
        let mut oldest: Vec<(u32, u64)> = self
            .pages
            .iter()
            .filter(|(_, page)| told(page))
            .map(|(address, page)| (page.at_ms, address))
            .collect();
        oldest.sort_unstable();
        oldest.truncate(most.min(wanted));
        let mut chosen: Vec<u64> = oldest.into_iter().map(|(_, address)| address).collect();
        chosen.sort_unstable();
        runs(chosen.into_iter())
    }
}

/// Merges sorted pages to ranges.
fn runs(pages: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some(last) if last.end == page => last.end += PAGE_BYTES,
            _ => runs.push(page..page + PAGE_BYTES),
        }
    }
    runs
}
