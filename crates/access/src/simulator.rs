//! Simulated programs, and invariants of the controller that hold for all of them.

use crate::controller::{Controller, Costs, Settings};
use crate::pages::{PAGE_BYTES, THRESHOLDS_MS, Writes};
use crate::random::Random;
use crate::spending::WINDOW_MS;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::ops::Range;

/// Pages of a program, in groups. Each group is written periodically; its period changes now and
/// then.
struct Program {
    pages: u64,
    /// Period of each group in ms; 0 for never.
    periods: Vec<u64>,
    /// Time from which all pages are written simultaneously every second.
    storm_ms: u64,
    protected: Vec<bool>,
    written_ms: Vec<u64>,
    /// Number of faults by millisecond.
    faults: VecDeque<(u64, u64)>,
    total: u64,
}

impl Program {
    fn new(pages: u64, periods: Vec<u64>, storm_ms: u64) -> Program {
        Program {
            pages,
            periods,
            storm_ms,
            protected: vec![false; pages as usize],
            written_ms: vec![0; pages as usize],
            faults: VecDeque::new(),
            total: 0,
        }
    }

    /// Runs for 100 ms from `now_ms` on.
    fn run(&mut self, now_ms: u64) {
        let mut faults = 0;
        for page in 0..self.pages {
            let group = page as usize * self.periods.len() / self.pages as usize;
            let period = match self.periods[group] {
                _ if now_ms >= self.storm_ms && now_ms.is_multiple_of(1000) => 1,
                period => period,
            };
            let is_written = period > 0 && (now_ms + page * 37) % period.max(100) < 100;
            if is_written {
                self.written_ms[page as usize] = now_ms;
                faults += u64::from(std::mem::take(&mut self.protected[page as usize]));
            }
        }
        self.total += faults;
        self.faults.push_back((now_ms, faults));
    }

    /// Returns the largest number of faults in any five seconds.
    fn worst(&self) -> u64 {
        let mut worst = 0;
        for (i, &(from, _)) in self.faults.iter().enumerate() {
            let within = self.faults.iter().skip(i);
            let within = within.take_while(|(at, _)| *at < from + u64::from(WINDOW_MS));
            worst = worst.max(within.map(|(_, n)| n).sum());
        }
        worst
    }

    fn open(&self) -> Vec<Range<u64>> {
        let open = (0..self.pages).filter(|&page| !self.protected[page as usize]);
        open.map(|page| page * PAGE_BYTES..(page + 1) * PAGE_BYTES)
            .collect()
    }

    fn set(&mut self, runs: &[Range<u64>], is_protected: bool) {
        for run in runs {
            let pages = run.start / PAGE_BYTES..run.end / PAGE_BYTES;
            pages.for_each(|page| self.protected[page as usize] = is_protected);
        }
    }
}

/// Runs a program with a controller, and calls `each` after each second's decisions.
fn simulate(
    program: &mut Program,
    settings: Settings,
    costs: Costs,
    seconds: u64,
    mut each: impl FnMut(&Controller, &Program, u32),
) -> Controller {
    let mut controller = Controller::new(settings, costs);
    controller
        .pages
        .set_areas(&[0..program.pages * PAGE_BYTES], 0);
    for now_ms in (0..seconds * 1000).step_by(100) {
        if now_ms % 1000 == 0 {
            let now = now_ms as u32;
            controller.looked(&program.open(), now);
            let plan = controller.plan_pages(now);
            program.set(&plan.lift, false);
            controller.pages.lift(&plan.lift, now);
            program.set(&plan.guard, true);
            controller.pages.guard(&plan.guard, now);
            each(&controller, program, now);
        }
        program.run(now_ms);
    }
    controller
}

fn adaptive(older_ms: u32, budget: f64) -> Settings {
    Settings { older_ms, budget }
}

/// Returns the stale pages according to the controller.
fn reported(controller: &Controller, pages: u64, older_ms: u32) -> Vec<u64> {
    let is_stale = |page: &u64| {
        let range = page * PAGE_BYTES..(page + 1) * PAGE_BYTES;
        matches!(
            controller.pages.writes(range, older_ms),
            Writes::NoneSince(_)
        )
    };
    (0..pages).filter(is_stale).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// No five-second window exceeds the budget by more than a tenth, even if all pages are written
    /// simultaneously.
    #[test]
    fn within_the_budget(
        pages in 1u64..400,
        periods in prop::collection::vec(prop::sample::select(vec![0, 100, 1000, 5000, 20_000]), 1..6),
        storm_s in 5u64..60,
        budget in 0.001f64..0.05,
        fault_ns in 1000f64..2_000_000.0,
    ) {
        let mut program = Program::new(pages, periods, storm_s * 1000);
        let costs = Costs { fault_ns, trap_ns: 28_000.0 };
        let controller = simulate(&mut program, adaptive(5000, budget), costs, 60, |_, _, _| {});
        let most = f64::from(WINDOW_MS) * 1e6 * budget;
        prop_assert!(program.worst() as f64 * fault_ns <= most * 1.1);
        prop_assert!(controller.counts().0 <= program.total);
    }

    /// Each page is guarded at least once within a bounded time, however many pages may be guarded
    /// at once. No page that was reported as unwritten had been written.
    #[test]
    fn every_page_is_looked_at_and_reports_are_true(
        pages in 1u64..200,
        periods in prop::collection::vec(prop::sample::select(vec![0, 100, 3000, 20_000]), 1..6),
        share in 0.1f64..2.0,
    ) {
        // The budget allows `share` of the pages to be guarded together.
        let (budget, older_ms) = (0.01, 3000);
        let fault_ns = 25e6 / (share * pages as f64).max(1.0);
        let mut program = Program::new(pages, periods, u64::MAX);
        let mut seen = vec![0u32; pages as usize];
        let mut longest = 0;
        let mut wrong = 0;
        let costs = Costs { fault_ns, trap_ns: 28_000.0 };
        simulate(&mut program, adaptive(older_ms, budget), costs, 600, |controller, program, now| {
            for (address, page) in controller.pages.iter() {
                let seen = &mut seen[(address / PAGE_BYTES) as usize];
                if page.is_guarded {
                    *seen = now;
                }
                longest = longest.max(now - *seen);
            }
            for page in reported(controller, pages, older_ms) {
                let idle = u64::from(now) - program.written_ms[page as usize];
                wrong += usize::from(program.written_ms[page as usize] > 0 && idle < u64::from(older_ms));
            }
        });
        prop_assert_eq!(wrong, 0);
        let bound = f64::from(THRESHOLDS_MS[3]) + 300_000.0 / share.min(1.0) * 0.5;
        prop_assert!(f64::from(longest) <= bound, "{} > {}", longest, bound);
    }

    /// The longer the time in question, the less is reported.
    #[test]
    fn longer_times_report_less(
        pages in 1u64..300,
        periods in prop::collection::vec(prop::sample::select(vec![0, 500, 5000, 20_000]), 1..6),
    ) {
        let mut program = Program::new(pages, periods, u64::MAX);
        let costs = Costs { fault_ns: 600.0, trap_ns: 28_000.0 };
        let controller = simulate(&mut program, adaptive(1000, 0.01), costs, 60, |_, _, _| {});
        let mut before = reported(&controller, pages, 0);
        for older_ms in [1000, 2000, 5000, 10_000, 20_000, 40_000] {
            let now = reported(&controller, pages, older_ms);
            prop_assert!(now.iter().all(|page| before.contains(page)));
            before = now;
        }
    }
}

/// Guarding all pages again every second would cost more in a program that keeps writing some of
/// them.
#[test]
fn what_is_written_all_the_time_is_looked_at_less() {
    let mut program = Program::new(200, vec![100, 0, 0, 0], u64::MAX);
    let costs = Costs {
        fault_ns: 600.0,
        trap_ns: 28_000.0,
    };
    simulate(&mut program, adaptive(5000, 0.5), costs, 60, |_, _, _| {});
    // A quarter of the pages is written in each of the sixty seconds.
    let naive = 50 * 60;
    let adaptive = program.total;
    assert!(adaptive * 4 < naive, "{adaptive} of {naive}");
}

#[test]
fn random_numbers_are_spread() {
    let mut random = Random::seeded(1);
    let mut counts = [0; 8];
    (0..8000).for_each(|_| counts[random.below(8) as usize] += 1);
    assert!(
        counts.iter().all(|&n| (850..1150).contains(&n)),
        "{counts:?}"
    );
}
