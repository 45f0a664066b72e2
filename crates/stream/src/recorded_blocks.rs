//! Renews the marks of pages with recorded blocks: enters the blocks into the live filter, and clears the marks of the
//! pages. See the hook's `recorded_blocks.hpp`.

use crate::Region;
use crate::memory::tally;
use memhook_abi::{
    Control, FILTER_HASH, FILTER_OFFSET, FILTER_PAGES, FILTER_TABLE_OFFSET, FILTER_WORDS,
    FIRST_ENTERED_MARK, FIRST_UNSURE_MARK, LEAST_FILTER_WORDS, RingHeader,
};
use std::mem::offset_of;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::{Duration, Instant};

/// Time after a change of phase. When it has passed, the threads that began to record before the change are known,
/// because a processor's stores become visible within milliseconds.
const STORES_ARRIVE: Duration = Duration::from_millis(10);
/// Number of additional passes after the one that took the last event. They are needed because the ledger holds back
/// apparent contradictions for one pass.
const PASSES_BEHIND: u32 = 3;

/// Stage of a renewal.
#[derive(Clone, Debug, Default)]
enum Stage {
    #[default]
    AtRest,
    /// The other kind of mark is in use. `ended`: rings seen outside of a recording since the change.
    Announced {
        at: Option<Instant>,
        ended: Vec<bool>,
    },
    /// All events below these heads must be taken.
    Draining { heads: Vec<u64>, passes: u32 },
    /// All live blocks are being entered.
    Entering,
}

/// Renewal of a region's marks.
#[derive(Clone, Debug, Default)]
pub struct MarkRenewal {
    phase: u64,
    stage: Stage,
}

impl MarkRenewal {
    /// Returns true if no renewal is in progress.
    pub fn is_at_rest(&self) -> bool {
        matches!(self.stage, Stage::AtRest)
    }

    /// Begins a renewal.
    pub fn begin(&mut self, region: &Region) {
        self.phase += 1;
        region.mark_phase().store(self.phase, Release);
        let ended = vec![false; region.rings_used()];
        self.stage = Stage::Announced { at: None, ended };
    }

    /// Advances the renewal. Call it after each pass. Returns true if the caller must now enter all live blocks.
    pub fn step(&mut self, region: &Region) -> bool {
        let word = |ring, offset| region.ring64(ring, offset).load(Acquire);
        let head = |ring| word(ring, offset_of!(RingHeader, head));
        match &mut self.stage {
            Stage::AtRest => {}
            Stage::Announced { at, ended } => {
                if at.get_or_insert_with(Instant::now).elapsed() < STORES_ARRIVE {
                    return false;
                }
                // The check covers rings claimed during the change of phase, whose owners may have read the previous
                // phase.
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
                    // A head far below `until` means that the ring has a new owner. Folding two events into one moves
                    // the head back by only one place.
                    tail >= until || tail == head || head.saturating_add(2) < until
                };
                if *passes > 0 || heads.iter().enumerate().all(is_taken) {
                    *passes += 1;
                }
                if *passes > PASSES_BEHIND {
                    self.stage = Stage::Entering;
                }
            }
            Stage::Entering => return true,
        }
        false
    }

    /// Enters a recorded block into the live filter.
    pub fn enter(&self, region: &Region, address: u64) {
        let first_mark = match region.enter_table(address) {
            true => FIRST_ENTERED_MARK,
            false => FIRST_UNSURE_MARK,
        };
        let page = (address >> 12) as usize & (FILTER_PAGES - 1);
        let (word, shift) = (&region.page_marks()[page / 8], 8 * (page % 8));
        let mark = marks_set_in(self.phase, first_mark) << shift;
        if word.load(Relaxed) & mark == 0 {
            word.fetch_or(mark, Relaxed);
        }
    }

    /// Ends the renewal when all live blocks are entered: clears the other marks.
    pub fn finish(&mut self, region: &Region) {
        self.phase += 1;
        region.mark_phase().store(self.phase, Release);
        let others =
            EACH_PAGE * marks_set_in(self.phase + 2, FIRST_ENTERED_MARK | FIRST_UNSURE_MARK);
        for word in region.page_marks() {
            if word.load(Relaxed) & others != 0 {
                // Release: a thread that sees a page without this mark also sees the other mark, and the table.
                word.fetch_and(!others, Release);
            }
        }
        self.stage = Stage::AtRest;
    }
}

/// Returns the marks that a phase sets, given the first mark of their kind.
fn marks_set_in(phase: u64, first: u8) -> u64 {
    u64::from(first) << (phase.div_ceil(2) & 1)
}

/// A word with the lowest bit set in each byte, one byte for each of eight pages.
const EACH_PAGE: u64 = 0x0101_0101_0101_0101;
/// Maximum number of attempts on a word that changes concurrently. A hostile process could change it forever.
const MOST_TRIES: u32 = 64;
/// Bits of a table word other than the bits of its blocks.
const TAG: u64 = !0 << 32;

impl Region {
    fn mark_phase(&self) -> &AtomicU64 {
        self.memory.u64(tally!(mark_phase))
    }

    /// Returns the marks. Each word contains the marks of eight pages.
    fn page_marks(&self) -> &[AtomicU64] {
        self.memory.words(FILTER_OFFSET, FILTER_PAGES / 8)
    }

    /// Enters a block in the same way as the hook does. Returns true if there was space.
    fn enter_table(&self, address: u64) -> bool {
        if address >> 48 != 0 {
            return false;
        }
        let line = address >> 8;
        let spread = (line >> 20).wrapping_mul(FILTER_HASH) >> 40;
        let index = (line ^ spread) as usize & (self.table_words() - 1);
        let tag = (line >> 9 << 1 | line & 1) << 32;
        let added = tag | 1 << (address >> 3 & 31);
        let enter = |word: &AtomicU64| {
            for _ in 0..MOST_TRIES {
                let found = word.load(Relaxed);
                if found != 0 && found & TAG != tag {
                    return false;
                }
                let exchanged = word.compare_exchange(found, found | added, Release, Relaxed);
                if exchanged.is_ok() {
                    return true;
                }
            }
            false
        };
        let words = self.memory.words(FILTER_TABLE_OFFSET, FILTER_WORDS);
        [index, index ^ 1].iter().any(|&i| enter(&words[i]))
    }

    /// Returns the number of table words in use.
    fn table_words(&self) -> usize {
        let mask = self.control64(offset_of!(Control, table_mask)) as usize;
        (mask & (FILTER_WORDS - 1) | (LEAST_FILTER_WORDS - 1)) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hook_and_the_attacher_set_the_same_marks() {
        // Like the hook's set_marks().
        for phase in 0..20u64 {
            let second = ((phase + 1) >> 1) & 1;
            assert_eq!(marks_set_in(phase, 1), 1 << second);
        }
    }
}
