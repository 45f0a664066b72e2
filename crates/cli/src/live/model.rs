//! Builds the reports of one attach.

use super::signals;
use crate::options::View;
use memhook_attach::{CallScans, Consumer, MappedMemory, Session};
use memhook_checkup::{StackNames, Traced, kept_overhead};
use memhook_ledger::{Discarded, Observer, SampledAllocations};
use memhook_process::TargetRoot;
use memhook_report::{
    AddressSpace, AddressSpacePart, LiveReporter, LiveView, Mappings, ReportModel, SetAside,
    StackFrame, UnreachableSite,
};
use memhook_symbols::Symbolizer;
use std::time::Duration;

/// Builder of reports.
pub struct Reporter {
    depth: u32,
    call_scans: CallScans,
    reports: LiveReporter,
    heaps: HeapReports,
    mappings: MappingReports,
    unreachable: Option<Vec<UnreachableSite>>,
    /// Source of the names. It stays valid after the process has ended.
    _root: TargetRoot,
}

/// Reports about the described heaps, as parts of the whole report.
struct HeapReports {
    view: LiveView,
    reports: Vec<LiveReporter>,
    /// Reports whose names are known.
    done: Vec<Option<ReportModel>>,
    /// The report of the main heap, kept until the reports of the other heaps are ready.
    main: Option<ReportModel>,
}

impl HeapReports {
    fn begin<O: Observer + Send>(
        &mut self,
        run: &mut Traced<'_>,
        consumer: &Consumer<O>,
        is_final: bool,
    ) {
        let root = run.session.root().clone();
        self.reports.resize_with(run.session.heaps().len(), || {
            LiveReporter::new(self.view, Symbolizer::new(root.search_order()))
        });
        self.done = self.reports.iter().map(|_| None).collect();
        self.main = None;
        let now = consumer.elapsed();
        for (number, reports) in self.reports.iter_mut().enumerate() {
            let mut numbers = reports.numbers(now, consumer.gaps(now));
            consumer.in_slices(|state| {
                let heap = state.heaps.get(number);
                heap.is_some_and(|heap| numbers.take(&heap.ledger, &heap.counts))
            });
            reports.begin(run, numbers, is_final);
        }
    }

    /// Returns the whole report if the names of all parts are known.
    fn poll(
        &mut self,
        run: &mut Traced<'_>,
        main: Option<ReportModel>,
        mut part: impl FnMut(&mut LiveReporter, &mut Traced<'_>) -> Option<ReportModel>,
    ) -> Option<ReportModel> {
        self.main = main.or(self.main.take());
        self.main.as_ref()?;
        for (reports, done) in self.reports.iter_mut().zip(&mut self.done) {
            if done.is_none() {
                *done = part(reports, run);
            }
        }
        if self.done.iter().any(Option::is_none) {
            return None;
        }
        let heaps = run.session.heaps().iter().zip(self.done.drain(..));
        let heaps = heaps.filter_map(|(heap, report)| {
            let functions = heap.functions.iter().map(|(_, name)| name.clone());
            Some((heap.name.clone(), functions.collect(), report?))
        });
        let heaps: Vec<_> = heaps.collect();
        let main = self.main.take()?;
        Some(main.with_heaps(heaps, self.view.sort))
    }
}

/// Report about mappings, as a part of the whole report.
struct MappingReports {
    reports: LiveReporter,
    top: usize,
    discarded: Discarded,
    /// Address space at the last reading.
    process: Option<MappedMemory>,
    /// The report of the heap, kept until the names for the call stacks of the mappings are known.
    heap: Option<ReportModel>,
}

impl MappingReports {
    /// Returns the heap report together with its section on mappings.
    fn join(&mut self, of_mappings: ReportModel) -> Option<ReportModel> {
        let mut report = self.heap.take()?;
        let discarded = (self.discarded.calls, self.discarded.bytes);
        let process = self.process.as_ref();
        let process = process.map(|found| address_space(found, self.top));
        let found = Mappings::new(of_mappings, discarded, process);
        report.mappings = Some(Box::new(found));
        Some(report)
    }
}

fn address_space(found: &MappedMemory, top: usize) -> AddressSpace {
    let parts = found.parts.iter().take(top);
    AddressSpace {
        bytes: found.bytes,
        traced_bytes: found.traced_bytes,
        gone_bytes: found.gone_bytes,
        unseen_bytes: found.unseen_bytes(),
        parts: parts
            .map(|part| AddressSpacePart {
                kind: part.kind.name(),
                name: part.name.clone(),
                bytes: part.bytes,
            })
            .collect(),
        more_parts: found.parts.len().saturating_sub(top) as u64,
    }
}

impl Reporter {
    /// Creates a reporter that has reported nothing yet.
    pub fn new(pid: i32, view: View, depth: u32) -> Self {
        let view = LiveView {
            by: view.by,
            sort: view.sort,
            top: view.top,
            older: view.older,
        };
        let root = TargetRoot::of(pid);
        Reporter {
            depth,
            call_scans: CallScans::default(),
            reports: LiveReporter::new(view, Symbolizer::new(root.search_order())),
            heaps: HeapReports {
                view,
                reports: Vec::new(),
                done: Vec::new(),
                main: None,
            },
            mappings: MappingReports {
                reports: LiveReporter::new(view, Symbolizer::new(root.search_order())),
                top: view.top,
                discarded: Discarded::default(),
                process: None,
                heap: None,
            },
            unreachable: None,
            _root: root,
        }
    }

    /// Sets the unreachable blocks for the rows of the next report.
    pub fn set_unreachable(&mut self, sites: Vec<UnreachableSite>) {
        self.unreachable = Some(sites);
    }

    /// Begins a report with the current numbers. Drops an unfinished report.
    pub fn begin<O: Observer + Send>(
        &mut self,
        session: &Session,
        consumer: &Consumer<O>,
        is_final: bool,
    ) {
        let now = consumer.elapsed();
        let mut numbers = self.reports.numbers(now, consumer.gaps(now));
        numbers.overhead = consumer.budget_kept().map(kept_overhead);
        numbers.call_times = consumer.call_times();
        numbers.unreachable = self.unreachable.take();
        consumer.in_slices(|state| numbers.take(&state.ledger, &state.counts));
        let (reports, mut run) = self.on(session);
        reports.begin(&mut run, numbers, is_final);
        if !session.heaps().is_empty() {
            let mut run = Traced::new(session, &mut self.call_scans, self.depth);
            self.heaps.begin(&mut run, consumer, is_final);
        }
        if session.traces_mappings() {
            // The last report shows the state before the detach.
            if !is_final || self.mappings.process.is_none() {
                self.look_at_mappings(session, consumer);
            }
            self.begin_mappings(session, consumer, is_final);
        }
    }

    /// Reads the address space of the process for the following reports.
    pub fn look_at_mappings<O: Observer + Send>(
        &mut self,
        session: &Session,
        consumer: &Consumer<O>,
    ) {
        self.mappings.process =
            MappedMemory::look(session, consumer).or(self.mappings.process.take());
    }

    fn begin_mappings<O: Observer + Send>(
        &mut self,
        session: &Session,
        consumer: &Consumer<O>,
        is_final: bool,
    ) {
        let now = consumer.elapsed();
        let mut numbers = self.mappings.reports.numbers(now, consumer.gaps(now));
        let (mut totals, mut discarded) = Default::default();
        consumer.in_slices(|state| {
            let Some(mappings) = &state.mappings else {
                return false;
            };
            (totals, discarded) = (mappings.totals(), mappings.discarded());
            numbers.take(mappings.ledger(), &SampledAllocations::default())
        });
        let mut run = Traced::new(session, &mut self.call_scans, self.depth);
        self.mappings.discarded = discarded;
        let numbers = numbers.with_totals(totals);
        self.mappings.reports.begin(&mut run, numbers, is_final);
    }

    /// Returns the current report, if its names are known within `wait`.
    pub fn poll(&mut self, session: &Session, wait: Duration) -> Option<ReportModel> {
        self.finish(session, |reports, run| reports.poll(run, wait))
    }

    /// Returns the current report with the names known so far.
    pub fn give_up_names(&mut self, session: &Session) -> Option<ReportModel> {
        self.finish(session, |reports, run| reports.give_up_names(run))
            .or_else(|| self.mappings.heap.take())
    }

    /// Returns the current report, composed of the parts that `part` has finished.
    fn finish(
        &mut self,
        session: &Session,
        part: impl Fn(&mut LiveReporter, &mut Traced<'_>) -> Option<ReportModel>,
    ) -> Option<ReportModel> {
        let mut run = Traced::new(session, &mut self.call_scans, self.depth);
        let mut found = part(&mut self.reports, &mut run);
        if !session.heaps().is_empty() {
            found = self.heaps.poll(&mut run, found, &part);
        }
        if !session.traces_mappings() {
            return found;
        }
        self.mappings.heap = found.or(self.mappings.heap.take());
        self.mappings.heap.as_ref()?;
        let of_mappings = part(&mut self.mappings.reports, &mut run)?;
        self.mappings.join(of_mappings)
    }

    /// Returns the current report with the names that are known so far, and true if more names are
    /// pending.
    pub fn so_far(&mut self, session: &Session) -> Option<(ReportModel, bool)> {
        if !session.heaps().is_empty() || session.traces_mappings() {
            // The parts are combined only once.
            return Some((self.give_up_names(session)?, false));
        }
        let (reports, mut run) = self.on(session);
        Some((reports.so_far(&mut run)?, true))
    }

    /// Suspends the current report while other reports are created; [`so_far`](Self::so_far)
    /// continues it later.
    pub fn set_aside(&mut self) -> Option<SetAside> {
        self.reports.set_aside()
    }

    /// Resumes a suspended report.
    pub fn take_up(&mut self, report: SetAside) {
        self.reports.take_up(report);
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

impl StackNames for Reporter {
    fn look_up(&mut self, session: &Session, stacks: &mut dyn Iterator<Item = u32>) {
        let (reports, run) = self.on(session);
        reports.look_up(&run, stacks, || signals::stops() >= 2);
    }

    fn stack(&mut self, session: &Session, id: u32) -> (String, bool, Vec<StackFrame>) {
        let (reports, run) = self.on(session);
        reports.stack(&run, id)
    }
}
