//! Counts blocks that outlive requests, and all live blocks, by site and at equally spaced moments.
//! Growth is detected from these counts.

use crate::growth::{Course, Growth, LEAST_MOMENTS, courses_among, risen, shared};
use crate::growth_of_size::{Held, course_of_size, may_grow};
use crate::{Evidence, Sum};
use memhook_ledger::{Ledger, SiteWalk};
use memhook_report::{count, counted};
use std::{collections::HashMap, time::Duration};

/// Number of moments at which survivors are counted.
pub const MOMENTS: u32 = 60;
/// Number of pauses after which a block is old.
pub(crate) const AGE_IN_PAUSES: u32 = 4;

/// Counts of one site at each moment.
#[derive(Default)]
struct Series {
    old: Vec<Sum>,
    all: Vec<Sum>,
    /// Largest block so far.
    largest: u64,
}

impl Series {
    fn resize(&mut self, moments: usize) {
        self.old.resize(moments, Sum::default());
        self.all.resize(moments, Sum::default());
    }
}

/// For each backtrace, its old blocks and all of its live blocks at each moment.
#[derive(Default)]
pub struct Survivors {
    moments: usize,
    by_stack: HashMap<u32, Series>,
    /// Number of releases of blocks from before the attach, up to each moment.
    freed: Vec<u64>,
}

/// Verdicts drawn from the survivors.
#[derive(Default)]
pub struct Verdicts {
    /// Growing backtraces, with their growth since the first moment.
    pub grown: Vec<(u32, Growth, Sum)>,
    /// Reason why there is no verdict on the other sites; `None` if there is a verdict.
    pub unclear: Option<String>,
}

impl Survivors {
    /// Returns the walk over the blocks to be counted at a moment. `now` is the time since the
    /// attach, and `pause` is the time between two moments.
    pub fn walk(now: Duration, pause: Duration) -> SiteWalk {
        let before = now.saturating_sub(pause * AGE_IN_PAUSES);
        SiteWalk::new(Some(before.as_nanos() as u64))
    }

    /// Counts another moment in one go, for a ledger that no thread is waiting for.
    pub fn count(&mut self, ledger: &Ledger, now: Duration, pause: Duration) {
        let mut walk = Survivors::walk(now, pause);
        while ledger.walk_sites(&mut walk) {}
        self.count_walked(walk, ledger.totals().unknown_releases);
    }

    /// Counts another moment, given a finished walk over the live blocks and the current number of
    /// releases of pre-attach blocks.
    pub fn count_walked(&mut self, walk: SiteWalk, freed: u64) {
        self.freed.push(freed);
        for site in walk.into_sites() {
            let live_blocks = site.allocated_blocks.saturating_sub(site.released_blocks);
            let live_bytes = site.allocated_bytes.saturating_sub(site.released_bytes);
            if live_blocks == 0 && !self.by_stack.contains_key(&site.stack) {
                continue;
            }
            let series = self.by_stack.entry(site.stack).or_default();
            series.resize(self.moments);
            series.old.push(Sum {
                blocks: site.blocks,
                bytes: site.bytes,
            });
            series.all.push(Sum {
                blocks: live_blocks,
                bytes: live_bytes,
            });
            series.largest = site.max_size;
        }
        self.moments += 1;
        for series in self.by_stack.values_mut() {
            series.resize(self.moments);
        }
    }

    /// Returns the sums over all blocks of a site at each moment after the first `skipped` moments.
    fn held(&self, series: &Series, skipped: usize) -> Vec<Held> {
        let moments = series.all.iter().zip(&self.freed).skip(skipped);
        let held = moments.map(|(sum, &freed)| Held {
            blocks: sum.blocks as f64,
            bytes: sum.bytes as f64,
            largest: series.largest as f64,
            freed: freed as f64,
        });
        held.collect()
    }

    /// Returns the growing backtraces, and, if there may be others, the reason why.
    pub fn verdicts(&self, confidence: f64) -> Verdicts {
        // A block counts as old only this number of moments after its allocation, and thus after
        // the release of the block that it may have replaced.
        let age = AGE_IN_PAUSES as usize;
        let freed: Vec<f64> = self.freed.iter().map(|&n| n as f64).collect();
        let all: Vec<(&u32, &[Sum], Vec<Held>)> = self
            .by_stack
            .iter()
            .filter_map(|(stack, series)| {
                Some((stack, series.old.get(age..)?, self.held(series, age)))
            })
            .collect();
        let series: Vec<Vec<f64>> = all
            .iter()
            .map(|(_, sums, _)| sums.iter().map(|sum| sum.blocks as f64).collect())
            .collect();
        let larger = all.iter().filter(|(_, _, held)| may_grow(held)).count();
        let alpha = shared(confidence, risen(&series) + larger);
        let mut verdicts = Verdicts::default();
        let mut more_of = [(0, 0); 2];
        let courses = courses_among(larger, &series, &freed, confidence);
        for ((stack, sums, held), course) in all.iter().zip(courses) {
            let (Some(first), Some(last)) = (sums.first(), sums.last()) else {
                continue;
            };
            let mut more = Sum {
                blocks: last.blocks.saturating_sub(first.blocks),
                bytes: last.bytes.saturating_sub(first.bytes),
            };
            let mut course = course;
            if course == Course::Steady {
                course = course_of_size(held, alpha);
                more = larger_by(held);
            }
            let unclear = match course {
                Course::Steady => continue,
                Course::Growing(growth) => {
                    verdicts.grown.push((**stack, growth, more));
                    continue;
                }
                Course::Replacing => &mut more_of[0],
                Course::Levelling => &mut more_of[1],
            };
            *unclear = (unclear.0 + 1u64, unclear.1 + more.blocks);
        }
        let last = self.freed.len().saturating_sub(age + 1);
        let freed = self.freed.last().unwrap_or(&0) - self.freed.get(last / 2).unwrap_or(&0);
        let [replacing, levelling] = more_of;
        let mut words = Vec::new();
        if replacing.0 > 0 {
            words.push(format!(
                "{} with {} more, which may only replace the {} from before the attach that were freed in the second \
                 half",
                counted(replacing.0, "site"),
                counted(replacing.1, "block"),
                count(freed)
            ));
        }
        if levelling.0 > 0 {
            words.push(format!(
                "{} with {} more, ever more slowly",
                counted(levelling.0, "site"),
                counted(levelling.1, "block")
            ));
        }
        if !words.is_empty() {
            let what = words.join("; ");
            verdicts.unclear = Some(format!(
                "the run was too short to tell steady growth from growth that levels off: {what}; --duration should \
                 be at least twice as long as blocks live"
            ));
        }
        verdicts
    }

    /// Adds notes about the survivors to the evidence.
    pub fn complete(&self, evidence: &mut Evidence) {
        let moments = self.moments;
        evidence
            .notes
            .push(format!("survivors counted at {moments} moments"));
        let needed = LEAST_MOMENTS + AGE_IN_PAUSES as usize;
        if moments < needed {
            evidence.gaps.push(format!(
                "survivors were counted at {moments} moments only, {needed} are needed"
            ));
        }
    }
}

/// Returns the number of bytes that a site's blocks have gained since the beginning, and the number
/// of the site's blocks.
fn larger_by(held: &[Held]) -> Sum {
    let mut there = held.iter().filter(|m| m.blocks > 0.0);
    let first = there.next().copied().unwrap_or_default();
    let last = there.next_back().copied().unwrap_or(first);
    Sum {
        blocks: last.blocks as u64,
        bytes: (last.bytes - first.bytes).max(0.0) as u64,
    }
}
