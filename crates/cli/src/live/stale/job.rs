//! What `stale` does while it traces a process.

use super::departures::Departures;
use super::naming::{Caught, Naming};
use crate::live::signals::stop_requested;
use crate::tracing::DEPTH;
use memhook_access::{EarlierBlocks, LiveBlock, Policy, Settings, Site, SiteAnswer, Watcher};
use memhook_attach::{End, Job, Session, Trace, Turn, process_name};
use memhook_foreign::{visible, visible_json};
use memhook_heap::capture;
use memhook_ledger::LiveWalk;
use memhook_report::{
    Progress, StaleEvidence, StaleReport, StaleTotals, Style, Target, document, shown,
};
use std::io::Write;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Between two counts of the live blocks; longer where they take long.
const CENSUS_MS: u32 = 1000;
/// The share of our time that may go into them is one in so many.
const CENSUS_SHARE: u32 = 10;

/// What is written, and when.
pub struct Output {
    /// How long the process is watched.
    pub duration: Duration,
    /// Between two reports.
    pub interval: Option<Duration>,
    /// Sites in a report.
    pub top: usize,
    /// As JSON.
    pub is_json: bool,
    /// No status lines.
    pub is_quiet: bool,
    /// How text looks.
    pub style: Style,
}

/// What a census came to, before it has names.
struct Summary {
    sites: Vec<(SiteAnswer, Option<Caught>)>,
    report: StaleReport,
    now_ms: u32,
}

/// The job.
pub struct StaleJob {
    pid: i32,
    name: String,
    settings: Settings,
    output: Output,
    watcher: Option<Watcher>,
    earlier: EarlierBlocks,
    naming: Naming,
    notes: Vec<String>,
    next_census_ms: u32,
    next_report_ms: Option<u32>,
    /// What is to be reported at the end.
    last: Option<Summary>,
    /// Why it could not be done.
    pub failure: Option<anyhow::Error>,
}

fn now_ms(trace: &Trace<Departures>) -> u32 {
    trace.consumer().elapsed().as_millis() as u32
}

impl StaleJob {
    /// A job that has not begun.
    pub fn new(pid: i32, settings: Settings, output: Output) -> StaleJob {
        StaleJob {
            pid,
            name: process_name(pid),
            settings,
            output,
            watcher: None,
            earlier: EarlierBlocks::default(),
            naming: Naming::of(pid, DEPTH as usize),
            notes: Vec::new(),
            next_census_ms: 0,
            next_report_ms: None,
            last: None,
            failure: None,
        }
    }

    /// Finds the blocks that are there already, and begins to watch.
    fn begin_to_watch(&mut self, trace: &Trace<Departures>) -> anyhow::Result<()> {
        let captured = Progress::during("copying the memory", || capture(self.pid, None));
        let earlier = captured.and_then(|captured| EarlierBlocks::of(&captured));
        match earlier {
            Ok(earlier) => self.earlier = earlier,
            Err(error) => {
                self.earlier = EarlierBlocks::pages_of(self.pid);
                let instead = if self.earlier.are_pages() {
                    ", so its pages count in their place, whatever lives there"
                } else {
                    ""
                };
                self.notes.push(format!(
                    "blocks from before the attach are not known: {error}{instead}"
                ));
            }
        }
        let watcher = Watcher::start(self.pid, self.settings, now_ms(trace))?;
        if !self.output.is_quiet {
            eprintln!(
                "Watching {} ({}) for {:.0} s. Ctrl-C ends it with the report",
                self.pid,
                visible(&self.name),
                self.output.duration.as_secs_f64()
            );
        }
        let interval = self.output.interval;
        self.next_report_ms = interval.map(|time| now_ms(trace) + time.as_millis() as u32);
        self.watcher = Some(watcher);
        Ok(())
    }

    /// Counts the live blocks.
    fn take_census(&mut self, trace: &Trace<Departures>) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        let begin = Instant::now();
        let gone = trace.consumer().lock().ledger.observer_mut().take();
        gone.into_iter()
            .for_each(|address| self.earlier.remove(address));
        let earlier = &mut self.earlier;
        let now = now_ms(trace);
        watcher.census(now, |each| {
            let mut walk = LiveWalk::default();
            trace.consumer().in_slices(|state| {
                state.ledger.walk_blocks(&mut walk, |block| {
                    earlier.remove(block.address);
                    each(LiveBlock {
                        address: block.address,
                        bytes: block.size,
                        site: Site::Stack(block.stack),
                        allocated_ms: Some((block.time_ns / 1_000_000) as u32),
                    });
                })
            });
            earlier.iter().for_each(each);
        });
        let took_ms = begin.elapsed().as_millis() as u32;
        self.next_census_ms = now + CENSUS_MS.max(took_ms * CENSUS_SHARE);
    }

    /// What the last census came to.
    fn summary(&self, session: &Session, now: u32, is_final: bool) -> Option<Summary> {
        let watcher = self.watcher.as_ref()?;
        let answers = watcher.answers(now);
        let sum = |of: fn(&SiteAnswer) -> u64| answers.iter().map(of).sum();
        let totals = StaleTotals {
            live_bytes: sum(|a| a.live_bytes),
            live_blocks: sum(|a| a.live_blocks),
            stale_bytes: sum(|a| a.stale_bytes),
            stale_bytes_low: sum(|a| a.stale_bytes_low),
            stale_bytes_high: sum(|a| a.stale_bytes_high),
        };
        let controller = watcher.controller();
        let (faults, traps) = controller.counts();
        let evidence = StaleEvidence {
            pages: watcher.has_pages(),
            guarded_pages: controller.pages.guarded() as u64,
            all_pages: controller.pages.len() as u64,
            faults,
            fault_ns: controller.costs().fault_ns,
            words: watcher.has_watchpoints(),
            traps,
            trap_ns: controller.costs().trap_ns,
            looks: answers.iter().map(|a| a.looks.0).sum(),
        };
        let mut notes = [self.notes.clone(), watcher.notes()].concat();
        let watched_ms = watcher.watched_ms(now);
        if watched_ms < self.settings.older_ms {
            notes.push(format!(
                "watched for {:.1} s, which is less than --older: nothing can be said to be stale",
                f64::from(watched_ms) / 1e3
            ));
        }
        let report = StaleReport {
            schema: StaleReport::SCHEMA,
            is_final,
            target: Target {
                pid: self.pid,
                name: self.name.clone(),
                exe: session
                    .modules
                    .first()
                    .map_or(String::new(), |m| m.path.clone()),
            },
            older_s: f64::from(self.settings.older_ms) / 1e3,
            budget: self.settings.budget,
            cost: watcher.cost(now),
            policy: match self.settings.policy {
                Policy::Adaptive => "adaptive",
                Policy::Naive => "naive",
            },
            watched_s: f64::from(watched_ms) / 1e3,
            evidence,
            totals,
            sites: Vec::new(),
            more_sites: answers.len().saturating_sub(self.output.top) as u64,
            notes,
            depth: DEPTH,
        };
        let depth = self.naming.depth();
        let shown = answers.into_iter().take(self.output.top).map(|answer| {
            let seen = watcher.last_access(answer.site);
            let caught = seen.map(|seen| Caught::of(session, seen, depth));
            (answer, caught)
        });
        Some(Summary {
            sites: shown.collect(),
            report,
            now_ms: now,
        })
    }

    /// Writes a report; the last one waits for names.
    fn print(&mut self, session: &Session, summary: Summary) {
        let Summary {
            sites,
            mut report,
            now_ms,
        } = summary;
        let (earlier, is_final) = (&self.earlier, report.is_final);
        report.sites = self
            .naming
            .sites(session, earlier, &sites, now_ms, is_final);
        let Ok(text) = document(&report, self.output.is_json, self.output.style) else {
            return;
        };
        let text = if self.output.is_json {
            visible_json(&text).into_owned()
        } else {
            shown(&format!("{text}\n"), self.output.style).into_owned()
        };
        // A reader that went away is no error of ours.
        let _ = std::io::stdout().lock().write_all(text.as_bytes());
    }

    fn watch(&mut self, trace: &Trace<Departures>) -> anyhow::Result<ControlFlow<()>> {
        if self.watcher.is_none() {
            self.begin_to_watch(trace)?;
        }
        let now = now_ms(trace);
        let Some(watcher) = &mut self.watcher else {
            return Ok(ControlFlow::Break(()));
        };
        watcher.turn(now);
        if u128::from(watcher.watched_ms(now)) >= self.output.duration.as_millis() {
            return Ok(ControlFlow::Break(()));
        }
        if now >= self.next_census_ms {
            self.take_census(trace);
        }
        if let (Some(at), Some(interval)) = (self.next_report_ms, self.output.interval)
            && now >= at
        {
            self.next_report_ms = Some(now + interval.as_millis() as u32);
            if let Some(summary) = self.summary(trace.session(), now, false) {
                // Names may take their time; a dlopen of the target does not wait for them.
                self.print(trace.session(), summary);
            }
        }
        Ok(ControlFlow::Continue(()))
    }
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
        if let Some(watcher) = &mut self.watcher {
            watcher.look_again(now_ms(trace));
            self.take_census(trace);
            self.last = self.summary(trace.session(), now_ms(trace), true);
        }
    }

    fn end(&mut self, trace: &mut Trace<Departures>, _end: &End) {
        // A process that has ended has no pages any more: the last census counts.
        let last = self.last.take();
        let last = last.or_else(|| self.summary(trace.session(), now_ms(trace), true));
        // Before anything that may take long: nothing of ours stays in the process.
        self.watcher = None;
        if let Some(summary) = last {
            self.print(trace.session(), summary);
        }
    }

    fn notice(&mut self, text: &str) {
        eprintln!("memhook-rs: {text}");
    }
}
