//! The reports of one attach.

use super::frames::Traced;
use super::signals;
use crate::options::View;
use memhook_attach::{BudgetKept, CallScans, Consumer, Session};
use memhook_process::TargetRoot;
use memhook_report::{KeptTime, LiveReporter, LiveView, Overhead, ReportModel, StackFrame};
use memhook_symbols::Symbolizer;
use std::time::Duration;

/// Makes them.
pub struct Reporter {
    depth: u32,
    call_scans: CallScans,
    reports: LiveReporter,
    /// Where the names come from, also when the process has ended.
    _root: TargetRoot,
}

impl Reporter {
    /// A reporter that has reported nothing yet.
    pub fn new(pid: i32, view: View, depth: u32) -> Self {
        let view = LiveView {
            by: view.by.into(),
            sort: view.sort.into(),
            top: view.top,
            older: view.older,
        };
        let root = TargetRoot::of(pid);
        Reporter {
            depth,
            call_scans: CallScans::default(),
            reports: LiveReporter::new(view, Symbolizer::new(root.search_order())),
            _root: root,
        }
    }

    /// Takes the numbers of this moment for a report; one that is not finished is given up.
    pub fn begin(&mut self, session: &Session, consumer: &Consumer, is_final: bool) {
        let now = consumer.elapsed();
        let mut numbers = self.reports.numbers(now, consumer.gaps(now));
        numbers.overhead = consumer.budget_kept().map(overhead);
        consumer.in_slices(|state| numbers.take(&state.ledger, &state.counts));
        let (reports, mut run) = self.on(session);
        reports.begin(&mut run, numbers, is_final);
    }

    /// The report that was begun, if its names are there within `wait`.
    pub fn poll(&mut self, session: &Session, wait: Duration) -> Option<ReportModel> {
        let (reports, mut run) = self.on(session);
        reports.poll(&mut run, wait)
    }

    /// The report that was begun with the names that are there.
    pub fn give_up_names(&mut self, session: &Session) -> Option<ReportModel> {
        let (reports, mut run) = self.on(session);
        reports.give_up_names(&mut run)
    }

    /// Has the names of these backtraces looked up, and waits for them until the user gives up.
    pub fn look_up(&mut self, session: &Session, stacks: impl Iterator<Item = u32>) {
        let (reports, run) = self.on(session);
        reports.look_up(&run, stacks, || signals::stops() >= 2);
    }

    /// Kind of a backtrace, whether it was cut short, and its frames with the names that are there.
    pub fn stack(&mut self, session: &Session, id: u32) -> (String, bool, Vec<StackFrame>) {
        let (reports, run) = self.on(session);
        reports.stack(&run, id)
    }

    fn on<'a>(&'a mut self, session: &'a Session) -> (&'a mut LiveReporter, Traced<'a>) {
        let run = Traced {
            session,
            call_scans: &mut self.call_scans,
            depth: self.depth,
        };
        (&mut self.reports, run)
    }
}

/// What a budget has kept, for reports.
pub fn overhead(kept: BudgetKept) -> Overhead {
    let ends = kept.kept.iter().skip(1).map(|next| next.from);
    let ends = ends.chain([kept.until]);
    let times = kept.kept.iter().zip(ends).map(|(time, to)| KeptTime {
        from_s: time.from.as_secs_f64(),
        to_s: to.as_secs_f64(),
        mean_bytes: time.mean_bytes,
    });
    Overhead {
        budget: kept.budget,
        cost: kept.in_process + kept.in_attacher,
        in_process: kept.in_process,
        in_attacher: kept.in_attacher,
        passing: kept.passing,
        timed_calls: kept.timed_calls,
        kept: times.collect(),
    }
}
