//! Job of `stale` while it traces a process.

use super::departures::Departures;
use super::watching::{Summary, Watching, now_ms};
use crate::live::signals::stop_requested;
use memhook_access::{EarlierBlocks, Settings};
use memhook_attach::{End, Job, Session, Trace, Turn};
use memhook_foreign::{visible, visible_json};
use memhook_heap::{Captured, Request, capture};
use memhook_report::{Progress, StaleReport, Style, document, shown};
use std::io::Write;
use std::ops::ControlFlow;
use std::time::Duration;

/// Outputs and their times.
pub struct Output {
    /// Length of the watch.
    pub duration: Duration,
    /// Time between two reports.
    pub interval: Option<Duration>,
    /// Number of sites in a report.
    pub top: usize,
    /// True if the report includes unreachable blocks.
    pub leaks: bool,
    /// Request for the copy of the memory.
    pub search: Request,
    /// True if reports are JSON.
    pub is_json: bool,
    /// True if status lines are off.
    pub is_quiet: bool,
    /// Style of text.
    pub style: Style<'static>,
}

/// Job of the watch.
pub struct StaleJob {
    pid: i32,
    output: Output,
    watching: Watching,
    next_report_ms: Option<u32>,
    /// Summary for the last report.
    last: Option<Summary>,
    /// Copy of the memory at the end, and its time.
    captured: Option<(u32, Captured)>,
    /// Reason why the copy could not be made.
    pub failure: Option<anyhow::Error>,
}

impl StaleJob {
    /// Creates a job that has not begun.
    pub fn new(pid: i32, settings: Settings, output: Output) -> StaleJob {
        StaleJob {
            pid,
            watching: Watching::new(pid, settings, output.top),
            output,
            next_report_ms: None,
            last: None,
            captured: None,
            failure: None,
        }
    }

    /// Finds the existing blocks, and begins to watch.
    fn begin_to_watch(&mut self, trace: &Trace<Departures>) -> anyhow::Result<()> {
        let captured = Progress::during("copying the memory", || {
            capture(self.pid, self.output.search)
        });
        let earlier = captured.and_then(|captured| EarlierBlocks::of(&captured));
        self.watching.earlier = match earlier {
            Ok(earlier) => earlier,
            Err(error) => {
                let pages = EarlierBlocks::pages_of(self.pid);
                let instead = if pages.are_pages() {
                    ", so its whole pages count instead, whatever they hold"
                } else {
                    ""
                };
                self.watching.note(format!(
                    "blocks from before the attach are not known: {error}{instead}"
                ));
                pages
            }
        };
        self.watching.begin(now_ms(trace))?;
        if !self.output.is_quiet {
            eprintln!(
                "Watching {} ({}) for {:.0} s. Ctrl-C ends it with the report",
                self.pid,
                visible(self.watching.name()),
                self.output.duration.as_secs_f64()
            );
        }
        let interval = self.output.interval;
        self.next_report_ms = interval.map(|time| now_ms(trace) + time.as_millis() as u32);
        Ok(())
    }

    /// Counts the live blocks.
    fn take_census(&mut self, trace: &Trace<Departures>) {
        let gone = trace.consumer().lock().ledger.observer_mut().take();
        let earlier = &mut self.watching.earlier;
        gone.into_iter().for_each(|address| earlier.remove(address));
        self.watching.take_census(trace);
    }

    /// Writes a report.
    fn print(&mut self, session: &Session, summary: Summary) {
        let report = self.watching.report(session, summary);
        write(&report, self.output.is_json, self.output.style);
    }

    fn watch(&mut self, trace: &Trace<Departures>) -> anyhow::Result<ControlFlow<()>> {
        if !self.watching.is_on() {
            self.begin_to_watch(trace)?;
        }
        let now = now_ms(trace);
        let is_census_due = self.watching.turn(now);
        if u128::from(self.watching.watched_ms(now)) >= self.output.duration.as_millis() {
            return Ok(ControlFlow::Break(()));
        }
        if is_census_due {
            self.take_census(trace);
        }
        if let (Some(at), Some(interval)) = (self.next_report_ms, self.output.interval)
            && now >= at
        {
            self.next_report_ms = Some(now + interval.as_millis() as u32);
            if let Some(summary) = self.watching.summary(trace.session(), now, false) {
                // Looking up names may take a long time, and a dlopen in the target does not wait
                // for it.
                self.print(trace.session(), summary);
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Writes a report to standard output.
pub fn write(report: &StaleReport, is_json: bool, style: Style<'static>) {
    let Ok(text) = document(report, is_json, style) else {
        return;
    };
    let text = if is_json {
        visible_json(&text).into_owned()
    } else {
        shown(&format!("{text}\n"), style).into_owned()
    };
    // A closed pipe is not an error.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

impl Job<Departures> for StaleJob {
    fn turn(&mut self, trace: &Trace<Departures>, turn: &Turn) -> ControlFlow<()> {
        if turn.gone || stop_requested() {
            return ControlFlow::Break(());
        }
        self.watch(trace).unwrap_or_else(|failure| {
            self.failure = Some(failure);
            ControlFlow::Break(())
        })
    }

    fn before_detach(&mut self, trace: &Trace<Departures>) {
        if !self.watching.is_on() {
            return;
        }
        self.watching.look_again(now_ms(trace));
        self.take_census(trace);
        self.last = self.watching.summary(trace.session(), now_ms(trace), true);
        if self.output.leaks {
            // If two programs watch pages, the kernel refuses the second one.
            self.watching.end();
            let moment_ms = now_ms(trace);
            match Progress::during("copying the memory", || {
                capture(self.pid, self.output.search)
            }) {
                Ok(captured) => self.captured = Some((moment_ms, captured)),
                Err(error) => self
                    .watching
                    .note(format!("what reaches the blocks is not known: {error}")),
            }
        }
    }

    fn end(&mut self, trace: &mut Trace<Departures>, end: &End) {
        // A process that has ended no longer has pages, so the last census counts.
        let last = self.last.take();
        let last = last.or_else(|| self.watching.summary(trace.session(), now_ms(trace), true));
        // This step precedes everything that may take a long time, so that nothing of ours stays in
        // the process meanwhile.
        self.watching.end();
        if let Some((moment_ms, captured)) = self.captured.take() {
            let join = || {
                self.watching
                    .join_reachability(&captured.snapshot, moment_ms, trace)
            };
            Progress::during("searching the memory", join);
        }
        match last {
            Some(summary) => self.print(trace.session(), summary),
            // An empty output would look as if nothing were stale.
            None if self.failure.is_none() => {
                let why = match end {
                    End::Gone => "has ended",
                    _ => "was left",
                };
                let why = format!("process {} {why} before it could be watched", self.pid);
                self.failure = Some(anyhow::Error::msg(why));
            }
            None => {}
        }
    }

    fn notice(&mut self, text: &str) {
        eprintln!("memhook-rs: {text}");
    }
}
