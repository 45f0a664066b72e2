//! The watch of one process, which writes reports when memory becomes scarce and when the process
//! has ended.

use crate::exit_code;
use crate::live::attach::hooked;
use crate::live::ending::of_trace;
use crate::live::model::Reporter;
use crate::live::watching::evidence::Place;
use crate::live::watching::watched::Watched;
use crate::options::View;
use memhook_attach::{End, Job, Trace, Turn};
use memhook_foreign::visible;
use memhook_heap::account_of_mappings;
use memhook_process::{ended_with, resident_counters};
use memhook_report::{
    Death, Kills, ReportModel, RssReport, RssView, SetAside, WatchMoment, WatchReport,
};
use memhook_triggers::{Alarm, Alarms};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// Time between two advance lookups of names, which make names available by the time a report is
/// due.
const NAMES_PERIOD: Duration = Duration::from_secs(2);
/// Seconds between two points of the history in the reports, which covers ten minutes.
const HISTORY_PAUSE: f64 = 5.0;
const HISTORY_MOMENTS: usize = 120;
/// Maximum wait of an urgent report for unknown names.
const URGENT_WAIT: Duration = Duration::from_millis(20);
/// Maximum number of reports that wait for names. Older reports keep the names that they have.
const MOST_UNNAMED: usize = 16;
/// Duration of one wait for names at the end, before signals are checked again.
const NAMES_PAUSE: Duration = Duration::from_millis(50);

/// A report that was written before its names were known.
struct Unnamed {
    place: Place,
    report: WatchReport,
    /// Suspended remainder of the report; `None` for the report whose names are being looked up.
    rest: Option<SetAside>,
}

/// The watch of one process.
pub(super) struct Watch {
    pid: i32,
    watched: Arc<Watched>,
    alarm: Arc<Alarms>,
    /// Number of alarms for which the watch has written a report.
    answered: u64,
    own: Alarms,
    own_answered: u64,
    kills_before: Option<u64>,
    /// Counters of the group when last read. They are stored because the group may disappear with
    /// the process.
    kills: Option<u64>,
    reporter: Reporter,
    top: usize,
    next_names: Duration,
    /// History of the last minutes.
    history: VecDeque<WatchMoment>,
    /// Reports that were written before their names were known, latest first. The names of the
    /// first one are being looked up.
    unnamed: VecDeque<Unnamed>,
    /// Wait status of the process, if it could be read.
    died: Option<i32>,
}

impl Watch {
    /// Job of a process that is about to be traced.
    pub(super) fn new(pid: i32, watched: &Arc<Watched>, view: &View, depth: u32) -> Watch {
        let alarm = watched.crowd().alarm_of(pid);
        watched.crowd().begins(pid);
        Watch {
            pid,
            answered: alarm.given(),
            kills_before: alarm.kills(),
            kills: None,
            alarm,
            own: watched.own_alarms(pid),
            own_answered: 0,
            watched: Arc::clone(watched),
            reporter: Reporter::new(pid, view.clone(), depth),
            top: view.top,
            next_names: Duration::ZERO,
            history: VecDeque::new(),
            unnamed: VecDeque::new(),
            died: None,
        }
    }

    /// Returns the alarm if a report is due.
    fn alarmed(&mut self) -> Option<Alarm> {
        let of_group = self.alarm.check(&mut self.answered);
        // In a group of many processes, a small process is not the cause.
        let of_group = of_group.filter(|_| self.watched.crowd().is_large(self.pid));
        of_group.or_else(|| self.own.check(&mut self.own_answered))
    }

    /// Records how much memory the process uses, and the live memory from the report.
    fn note(&mut self, report: &ReportModel) {
        let Some(found) = resident_counters(self.pid) else {
            return;
        };
        self.history.push_back(WatchMoment {
            time_s: report.elapsed_s,
            rss_bytes: found.resident(),
            live_bytes: report.totals.live_bytes,
        });
        if self.history.len() > HISTORY_MOMENTS {
            self.history.pop_front();
        }
    }

    fn look_at_the_end(&mut self) {
        self.kills = self.alarm.kills().or(self.kills);
        self.died = ended_with(self.pid).or(self.died);
    }

    /// Writes a report immediately with the known names, and again when the other names are known.
    fn urgent(&mut self, trace: &Trace, alarm: Alarm) {
        let (session, consumer) = (trace.session(), trace.consumer());
        if let Some(before) = self.unnamed.front_mut() {
            before.rest = self.reporter.set_aside();
        }
        self.reporter.begin(session, consumer, false);
        let found = match self.reporter.poll(session, URGENT_WAIT) {
            Some(report) => Some((report, false)),
            None => self.reporter.so_far(session),
        };
        if let Some((report, lacks_names)) = found {
            self.note(&report);
            let account = account_of_mappings(self.pid).ok().map(|account| {
                let view = RssView {
                    top: self.top,
                    pins: false,
                };
                RssReport::new(self.pid, &account, None, view)
            });
            let report =
                WatchReport::new(self.pid, alarm.reason, alarm.explanation, account, report);
            let report = report.with_history(self.history.iter().copied().collect());
            let place = self.watched.evidence().keep(&report);
            if lacks_names {
                self.unnamed.push_front(Unnamed {
                    place,
                    report,
                    rest: None,
                });
                self.unnamed.truncate(MOST_UNNAMED);
                return;
            }
        }
        self.take_up_unnamed();
    }

    /// Writes a report again after its names have arrived.
    fn replace_unnamed(&mut self, with_names: &ReportModel) {
        if let Some(Unnamed { place, report, .. }) = self.unnamed.pop_front() {
            let report = report.with_report(with_names.clone());
            self.watched.evidence().replace(place, &report);
            self.take_up_unnamed();
        }
    }

    /// Resumes the previous report.
    fn take_up_unnamed(&mut self) {
        let next = self.unnamed.front_mut();
        if let Some(rest) = next.and_then(|next| next.rest.take()) {
            self.reporter.take_up(rest);
        }
    }

    /// Waits at the end for the names of reports that lack them.
    fn finish_unnamed(&mut self, trace: &Trace) {
        let (session, wait) = (trace.session(), self.watched.name_wait());
        while !self.unnamed.is_empty() {
            let found = match wait.is_over() {
                true => self.reporter.give_up_names(session),
                false => self.reporter.poll(session, NAMES_PAUSE),
            };
            match found {
                Some(report) => self.replace_unnamed(&report),
                None if wait.is_over() => break,
                None => {}
            }
        }
    }

    /// Returns the kernel's kills since the watch of this process began.
    fn kills(&self) -> Kills {
        let count = self.kills.zip(self.kills_before);
        Kills {
            count: count.map(|(now, before)| now.saturating_sub(before)),
            processes: self.watched.killed(self.pid, self.alarm.group().as_deref()),
        }
    }

    /// Returns the last report with all names that arrive during the wait for them.
    fn last_report(&mut self, trace: &Trace) -> Option<ReportModel> {
        let (session, consumer) = (trace.session(), trace.consumer());
        let wait = self.watched.name_wait();
        self.reporter.begin(session, consumer, true);
        loop {
            if let Some(report) = self.reporter.poll(session, NAMES_PAUSE) {
                return Some(report);
            }
            if wait.is_over() {
                return self.reporter.give_up_names(session);
            }
        }
    }
}

impl Job for Watch {
    fn begin(&mut self, trace: &Trace) {
        let hooked = hooked(trace.session());
        eprintln!(
            "Watching {}: {hooked}; reports go to {}. Ctrl-C ends it",
            self.pid,
            self.watched.directory().display()
        );
    }

    fn turn(&mut self, trace: &Trace, turn: &Turn) -> ControlFlow<()> {
        if turn.gone {
            self.look_at_the_end();
        }
        if turn.is_last {
            return ControlFlow::Continue(());
        }
        if let Some(alarm) = self.alarmed() {
            eprintln!("memhook-rs: {}", alarm.explanation);
            self.urgent(trace, alarm);
        }
        self.kills = self.alarm.kills().or(self.kills);
        let now = trace.consumer().elapsed();
        // Names for earlier reports are looked up first.
        if now >= self.next_names && self.unnamed.is_empty() {
            self.next_names = now + NAMES_PERIOD;
            self.reporter
                .begin(trace.session(), trace.consumer(), false);
        }
        // The report gives its names to urgent reports that wait for them, and its live memory goes
        // into the history.
        if let Some(report) = self.reporter.poll(trace.session(), Duration::ZERO) {
            self.replace_unnamed(&report);
            let last = self.history.back().map_or(0.0, |last| last.time_s);
            if self.history.is_empty() || report.elapsed_s - last >= HISTORY_PAUSE {
                self.note(&report);
            }
        }
        ControlFlow::Continue(())
    }

    fn end(&mut self, trace: &mut Trace, end: &End) {
        self.look_at_the_end();
        let kills = self.kills();
        let is_gone = matches!(end, End::Gone);
        let death = is_gone.then(|| Death::new(self.pid, self.died, &kills));
        let explanation = match &death {
            Some(death) => death.explanation(self.pid, &kills),
            None => kills.beside_living(self.pid),
        };
        if death.is_some() {
            eprintln!("memhook-rs: process {} {}", self.pid, visible(&explanation));
        }
        self.finish_unnamed(trace);
        if let Some(report) = self.last_report(trace) {
            let report = WatchReport::new(self.pid, "end", explanation, None, report);
            let report = report.with_history(self.history.iter().copied().collect());
            let report = report.with_death(death, kills);
            self.watched.evidence().keep(&report);
        }
        let gaps = trace.consumer().gaps(trace.consumer().elapsed());
        let of_gaps = if gaps.is_empty() {
            exit_code::DONE
        } else {
            exit_code::HAS_GAPS
        };
        self.watched
            .ends(self.pid, of_trace(end, self.pid).max(of_gaps));
    }

    fn notice(&mut self, text: &str) {
        eprintln!("memhook-rs: {text}");
    }
}
