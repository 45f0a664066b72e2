//! Renewing the marks of pages with recorded blocks, so that pages lose theirs when those blocks are gone: see the hook's
//! `recorded_pages.hpp`.

use crate::Region;
use memhook_abi::{Control, FILTER_COUNTERS, FILTER_OFFSET, RingHeader};
use std::mem::offset_of;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::{Duration, Instant};

/// Until then every thread that has begun to record before the phase changed is seen to record: what a processor has
/// stored is not on its way for milliseconds.
const STORES_ARRIVE: Duration = Duration::from_millis(10);
/// Passes after the one that has taken the last event: what looks impossible is held back for one.
const PASSES_BEHIND: u32 = 3;

/// How far a renewal has come.
#[derive(Clone, Debug, Default)]
enum Stage {
    #[default]
    AtRest,
    /// Other marks are set. Which rings have been seen without a recording since.
    Announced {
        at: Option<Instant>,
        ended: Vec<bool>,
    },
    /// All events below these heads are to be taken.
    Draining { heads: Vec<u64>, passes: u32 },
    /// All blocks that are live now get their marks.
    Marking,
}

/// Renews the marks of a region.
#[derive(Clone, Debug, Default)]
pub struct PageRenewal {
    phase: u64,
    stage: Stage,
}

impl PageRenewal {
    /// Whether none is under way.
    pub fn is_at_rest(&self) -> bool {
        matches!(self.stage, Stage::AtRest)
    }

    /// Begins one.
    pub fn begin(&mut self, region: &Region) {
        self.phase += 1;
        region.page_phase().store(self.phase, Release);
        let ended = vec![false; region.rings_used()];
        self.stage = Stage::Announced { at: None, ended };
    }

    /// To be called after each pass. Whether all blocks that are live now are to be marked.
    pub fn step(&mut self, region: &Region) -> bool {
        let word = |ring, offset| region.ring64(ring, offset).load(Acquire);
        let head = |ring| word(ring, offset_of!(RingHeader, head));
        match &mut self.stage {
            Stage::AtRest => {}
            Stage::Announced { at, ended } => {
                if at.get_or_insert_with(Instant::now).elapsed() < STORES_ARRIVE {
                    return false;
                }
                // A ring that was claimed when the phase was on its way, too: its owner may have read the one before.
                ended.resize(region.rings_used().max(ended.len()), false);
                for (ring, ended) in ended.iter_mut().enumerate() {
                    *ended |= word(ring, offset_of!(RingHeader, outer)) & 1 == 0;
                }
                if ended.iter().all(|&ended| ended) {
                    let heads = (0..ended.len()).map(head).collect();
                    self.stage = Stage::Draining { heads, passes: 0 };
                }
            }
            Stage::Draining { heads, passes } => {
                let is_taken = |(ring, &until): (usize, &u64)| {
                    let tail = word(ring, offset_of!(RingHeader, tail));
                    let head = head(ring);
                    // A ring with a new owner begins anew; two events that make one take back one place.
                    tail >= until || tail == head || head.saturating_add(2) < until
                };
                if *passes > 0 || heads.iter().enumerate().all(is_taken) {
                    *passes += 1;
                }
                if *passes > PASSES_BEHIND {
                    self.stage = Stage::Marking;
                }
            }
            Stage::Marking => return true,
        }
        false
    }

    /// Marks the page of a block.
    pub fn mark(&self, region: &Region, address: u64) {
        let page = ((address >> 12) ^ (address >> 26)) as usize & (FILTER_COUNTERS - 1);
        let word = &region.page_marks()[page / 8];
        let mark = mark_set_in(self.phase) << (8 * (page % 8));
        if word.load(Relaxed) & mark == 0 {
            word.fetch_or(mark, Relaxed);
        }
    }

    /// All live blocks have their marks: the others are cleared.
    pub fn finish(&mut self, region: &Region) {
        self.phase += 1;
        region.page_phase().store(self.phase, Release);
        let kept = EACH_PAGE * mark_set_in(self.phase);
        for word in region.page_marks() {
            if word.load(Relaxed) & !kept != 0 {
                // Release: whoever finds a page without this mark finds the other one.
                word.fetch_and(kept, Release);
            }
        }
        self.stage = Stage::AtRest;
    }
}

/// Which of the two marks of a page is set in a phase.
fn mark_set_in(phase: u64) -> u64 {
    1 << (phase.div_ceil(2) & 1)
}

/// A word with the first mark of each of its eight pages.
const EACH_PAGE: u64 = 0x0101_0101_0101_0101;

impl Region {
    fn page_phase(&self) -> &AtomicU64 {
        self.memory.u64(offset_of!(Control, page_phase))
    }

    /// The marks of eight pages in each word.
    fn page_marks(&self) -> &[AtomicU64] {
        self.memory.words(FILTER_OFFSET, FILTER_COUNTERS / 8)
    }

    /// As the first phase begins: until marks are renewed, nothing is known of any page.
    pub(crate) fn mark_all_pages(&self) {
        for word in self.page_marks() {
            word.store(EACH_PAGE * mark_set_in(0), Relaxed);
        }
    }
}
