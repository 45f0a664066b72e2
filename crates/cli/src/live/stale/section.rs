//! Untouched blocks, as a section of the last report of `attach`.

use super::watching::{Summary, Watching, now_ms};
use memhook_access::Settings;
use memhook_attach::Trace;
use memhook_heap::Snapshot;
use memhook_ledger::Observer;
use memhook_report::StaleReport;
use std::collections::HashMap;
use std::time::Duration;

/// Share of the process's time that watching may take.
const BUDGET: f64 = 0.01;

/// The section.
pub struct StaleSection {
    watching: Watching,
    /// True if the watch could not begin.
    has_failed: bool,
    last: Option<Summary>,
    copied_ms: u32,
}

impl StaleSection {
    /// Creates the section about memory that was not touched for `older`, with at most `top` sites.
    pub fn new(pid: i32, older: Duration, top: usize) -> StaleSection {
        let settings = Settings {
            older_ms: older.as_millis().min(u128::from(u32::MAX / 4)) as u32,
            budget: BUDGET,
        };
        let mut watching = Watching::new(pid, settings, top);
        watching.note(
            "blocks from before the attach are not among these: memhook-rs stale shows them, too"
                .into(),
        );
        StaleSection {
            watching,
            has_failed: false,
            last: None,
            copied_ms: 0,
        }
    }

    /// Call this every few milliseconds. Returns a message if the watch cannot begin.
    pub fn turn<O: Observer + Send>(&mut self, trace: &Trace<O>) -> Option<String> {
        let now = now_ms(trace);
        if !self.watching.is_on()
            && !self.has_failed
            && let Err(error) = self.watching.begin(now)
        {
            self.has_failed = true;
            return Some(format!("--stale: {}", crate::remedies::in_words(&error)));
        }
        if self.watching.turn(now) {
            self.watching.take_census(trace);
        }
        None
    }

    /// Returns the best estimates of the untouched bytes of each call stack, according to the last
    /// census; `None` if nothing is watched.
    pub fn stale_bytes<O: Observer + Send>(&self, trace: &Trace<O>) -> Option<HashMap<u32, u64>> {
        self.watching.stale_bytes(now_ms(trace))
    }

    /// Finishes the watch while the process is still traced. After that, nothing is watched.
    pub fn before_detach<O: Observer + Send>(&mut self, trace: &Trace<O>) {
        if !self.watching.is_on() {
            return;
        }
        self.watching.look_again(now_ms(trace));
        self.watching.take_census(trace);
        self.last = self.watching.summary(trace.session(), now_ms(trace), true);
        self.watching.end();
        self.copied_ms = now_ms(trace);
        if trace.consumer().lock().ledger.is_sampled() {
            self.watching.note(
                "not every allocation was recorded: the sums cover only the recorded ones".into(),
            );
        }
    }

    /// Returns the report. If there is a copy of the memory that was made after
    /// [`StaleSection::before_detach`], its unreachable blocks are included. Returns `None` if
    /// nothing was watched.
    pub fn report<O: Observer + Send>(
        &mut self,
        trace: &Trace<O>,
        memory: Option<&Snapshot>,
    ) -> Option<StaleReport> {
        // A process that has ended no longer has pages, so the last census is used.
        let last = self.last.take();
        let last = last.or_else(|| self.watching.summary(trace.session(), now_ms(trace), true));
        self.watching.end();
        let summary = last?;
        if let Some(snapshot) = memory {
            self.watching
                .join_reachability(snapshot, self.copied_ms, trace);
        }
        Some(self.watching.report(trace.session(), summary))
    }
}
