//! Watches the accesses of a traced process. The live blocks of the process are counted
//! periodically. At the end, they are joined with the result of a search for unreachable blocks.

use super::naming::{Caught, Naming};
use memhook_access::{
    AGES_MS, EarlierBlocks, LiveBlock, Settings, Site, SiteAnswer, THRESHOLDS_MS, Watcher,
};
use memhook_attach::{DEPTH_OF_REPORTS, Session, Trace};
use memhook_heap::{MarkOptions, Scan, Snapshot};
use memhook_ledger::{LiveWalk, Observer};
use memhook_process::process_name;
use memhook_report::{StaleEvidence, StaleHistory, StalePoint, StaleReport, StaleTotals, Target};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::HashMap;
use std::time::Instant;

/// Time between two counts of the live blocks. The time is longer if counting takes long.
const CENSUS_MS: u32 = 1000;
/// Inverse of the share of our time that counts may take.
const CENSUS_SHARE: u32 = 10;

/// Result of a census, before it has names.
pub struct Summary {
    sites: Vec<(SiteAnswer, Option<Caught>)>,
    report: StaleReport,
    now_ms: u32,
}

/// Returns the time since the attach.
pub fn now_ms<O: Observer + Send>(trace: &Trace<O>) -> u32 {
    trace.consumer().elapsed().as_millis() as u32
}

/// Watch of one process.
pub struct Watching {
    pid: i32,
    name: String,
    settings: Settings,
    top: usize,
    watcher: Option<Watcher>,
    /// Blocks from before the attach.
    pub earlier: EarlierBlocks,
    naming: Naming,
    notes: Vec<String>,
    next_census_ms: u32,
    /// Unreachable bytes by site, if a search was made.
    unreachable: Option<FxHashMap<Site, u64>>,
}

impl Watching {
    /// Creates a watch that has not begun. `top` is the number of sites in a report.
    pub fn new(pid: i32, settings: Settings, top: usize) -> Watching {
        Watching {
            pid,
            name: process_name(pid),
            settings,
            top,
            watcher: None,
            earlier: EarlierBlocks::default(),
            naming: Naming::of(pid, DEPTH_OF_REPORTS as usize),
            notes: Vec::new(),
            next_census_ms: 0,
            unreachable: None,
        }
    }

    /// Returns the name of the process.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds a notice to the beginning of each report.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Begins to watch.
    ///
    /// # Errors
    /// Fails if neither pages nor words can be watched.
    pub fn begin(&mut self, now_ms: u32) -> Result<(), memhook_access::Error> {
        self.watcher = Some(Watcher::start(self.pid, self.settings, now_ms)?);
        Ok(())
    }

    /// Returns true if the watch has begun and not ended.
    pub fn is_on(&self) -> bool {
        self.watcher.is_some()
    }

    /// Removes all of our watches from the process.
    pub fn end(&mut self) {
        self.watcher = None;
    }

    /// Returns how long the process has been watched, in ms.
    pub fn watched_ms(&self, now_ms: u32) -> u32 {
        let watcher = self.watcher.as_ref();
        watcher.map_or(0, |watcher| watcher.watched_ms(now_ms))
    }

    /// Call this every few milliseconds. Returns true if the live blocks should be counted.
    pub fn turn(&mut self, now_ms: u32) -> bool {
        let Some(watcher) = &mut self.watcher else {
            return false;
        };
        watcher.turn(now_ms);
        now_ms >= self.next_census_ms
    }

    /// Reads the pages now, for the last count.
    pub fn look_again(&mut self, now_ms: u32) {
        if let Some(watcher) = &mut self.watcher {
            watcher.look_again(now_ms);
        }
    }

    /// Counts the live blocks.
    pub fn take_census<O: Observer + Send>(&mut self, trace: &Trace<O>) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        let begin = Instant::now();
        let earlier = &mut self.earlier;
        let now = now_ms(trace);
        watcher.census(now, |each| {
            each_block(trace, |block| {
                earlier.remove(block.address);
                each(block);
            });
            earlier.iter().for_each(each);
        });
        let took_ms = begin.elapsed().as_millis() as u32;
        self.next_census_ms = now + CENSUS_MS.max(took_ms * CENSUS_SHARE);
    }

    /// Adds up the unreachable blocks in a copy of the memory made at this moment.
    pub fn join_reachability<O: Observer + Send>(
        &mut self,
        snapshot: &Snapshot,
        copied_ms: u32,
        trace: &Trace<O>,
    ) {
        let options = MarkOptions {
            ignore_round: true,
            ..MarkOptions::default()
        };
        let scan = match Scan::of(snapshot, options) {
            Ok(scan) => scan,
            Err(error) => {
                self.note(format!("what reaches the blocks is not known: {error}"));
                return;
            }
        };
        let leaks = scan.leaks.iter();
        let leaked: FxHashSet<u64> = leaks
            .map(|leak| scan.heap.blocks.get(leak.block).address)
            .collect();
        let mut sums: FxHashMap<Site, u64> = FxHashMap::default();
        let mut count = |block: LiveBlock| {
            let was_there = block.allocated_ms.is_none_or(|at| at <= copied_ms);
            if was_there && leaked.contains(&block.address) {
                *sums.entry(block.site).or_default() += block.bytes;
            }
        };
        each_block(trace, &mut count);
        self.earlier.iter().for_each(count);
        self.unreachable = Some(sums);
    }

    /// Returns the untouched bytes of each call stack, as of the last census; `None` if nothing is
    /// watched.
    pub fn stale_bytes(&self, now: u32) -> Option<HashMap<u32, u64>> {
        let answers = self.watcher.as_ref()?.answers(now).into_iter();
        let of_stack = answers.filter_map(|answer| match answer.site {
            Site::Stack(stack) => Some((stack, answer.stale_bytes)),
            Site::Kind(_) | Site::Pages => None,
        });
        Some(of_stack.collect())
    }

    /// Returns the result of the last census; `None` if nothing is watched.
    pub fn summary(&self, session: &Session, now: u32, is_final: bool) -> Option<Summary> {
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
        let (clears, longest_clear) = watcher.clears();
        let evidence = StaleEvidence {
            pages: watcher.has_pages(),
            guarded_pages: controller.pages.guarded() as u64,
            all_pages: controller.pages.len() as u64,
            faults,
            fault_ns: controller.costs().fault_ns,
            clears,
            longest_clear_ms: longest_clear.as_secs_f64() * 1e3,
            contents: false,
            words: watcher.has_watchpoints(),
            traps,
            trap_ns: controller.costs().trap_ns,
            looks: answers.iter().map(|a| a.looks.0).sum(),
        };
        let mut notes = [self.notes.clone(), watcher.notes(now)].concat();
        let watched_ms = watcher.watched_ms(now);
        if watched_ms < self.settings.older_ms {
            notes.push(format!(
                "watched for {:.1} s, which is less than --older: no block can be called stale",
                f64::from(watched_ms) / 1e3
            ));
        }
        let report = StaleReport {
            schema: StaleReport::SCHEMA.into(),
            is_final,
            target: Target {
                pid: self.pid,
                name: self.name.clone(),
                exe: session
                    .modules()
                    .first()
                    .map_or(String::new(), |m| m.path.clone()),
            },
            older_s: f64::from(self.settings.older_ms) / 1e3,
            budget: self.settings.budget,
            cost: watcher.cost(now),
            watched_s: f64::from(watched_ms) / 1e3,
            evidence,
            totals,
            sites: Vec::new(),
            more_sites: answers.len().saturating_sub(self.top) as u64,
            notes,
            history: is_final.then(|| history(watcher)).flatten(),
            depth: DEPTH_OF_REPORTS,
        };
        let depth = self.naming.depth();
        let shown = answers.into_iter().take(self.top).map(|answer| {
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

    /// Returns the report of a census. The last report waits for names.
    pub fn report(&mut self, session: &Session, summary: Summary) -> StaleReport {
        let Summary {
            sites,
            mut report,
            now_ms,
        } = summary;
        let (earlier, is_final) = (&self.earlier, report.is_final);
        report.sites = self
            .naming
            .sites(session, earlier, &sites, now_ms, is_final);
        if let Some(unreachable) = &self.unreachable {
            for (row, (answer, _)) in report.sites.iter_mut().zip(&sites) {
                let bytes = unreachable.get(&answer.site).copied().unwrap_or(0);
                row.join_reachability(bytes);
            }
        }
        // Further notes may have been added since the census.
        for note in &self.notes {
            if !report.notes.contains(note) {
                report.notes.push(note.clone());
            }
        }
        report
    }
}

/// Returns the age of live bytes over time.
fn history(watcher: &Watcher) -> Option<StaleHistory> {
    let points = watcher.history();
    let seconds = |ms: u32| f64::from(ms) / 1e3;
    (!points.is_empty()).then(|| StaleHistory {
        ages_s: AGES_MS.map(seconds).to_vec(),
        thresholds_s: THRESHOLDS_MS.map(seconds).to_vec(),
        points: points
            .iter()
            .map(|point| StalePoint {
                at_s: seconds(point.at_ms),
                untouched_bytes: point.bytes.to_vec(),
                pages: point.pages.to_vec(),
            })
            .collect(),
    })
}

/// Passes each live block of a trace to a callback.
fn each_block<O: Observer + Send>(trace: &Trace<O>, mut each: impl FnMut(LiveBlock)) {
    let mut walk = LiveWalk::default();
    trace.consumer().in_slices(|state| {
        state.ledger.walk_blocks(&mut walk, |block| {
            each(LiveBlock {
                address: block.address,
                bytes: block.size,
                site: Site::Stack(block.stack),
                allocated_ms: Some((block.time_ns / 1_000_000) as u32),
            });
        })
    });
}
