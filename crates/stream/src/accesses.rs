//! Reads and writes of blocks, counted by the hook: for released blocks in ring words before the release, for live
//! blocks in records.

use crate::memory::tally;
use crate::{Region, TickTime};
use memhook_abi::{ACCESS_OFFSET, ACCESS_RECORDS, AccessRecord, Accesses, Control, Event, flags};
use std::mem::offset_of;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Number of records that are ready when a program begins, and are kept ready ahead of use.
const RECORDS_AHEAD: u64 = 32 << 10;
const RECORDS_OF_A_PAGE: u64 = 4096 / size_of::<AccessRecord>() as u64;
/// Flag next to the number of false shares.
const SEVERAL: u64 = 1 << 44;

/// Words about one block, in the order of arrival.
#[derive(Clone, Copy, Default)]
pub(crate) struct AccessWords {
    words: [(u64, u64); 4],
    next: usize,
}

impl AccessWords {
    /// Takes the next word. Returns the result after the last word of a block. Ignores words whose beginning is
    /// missing.
    pub fn take(&mut self, event: &Event, time: TickTime) -> Option<Accesses> {
        let index = event.access_word();
        if index != 0 && index != self.next {
            self.next = 0;
            return None;
        }
        self.words[index] = (event.access_small(), event.value);
        self.next = (index + 1) % self.words.len();
        if self.next != 0 {
            return None;
        }
        let [
            (granule, first),
            (shares, last),
            (low, reads),
            (high, writes),
        ] = self.words;
        let at = |ticks| if ticks == 0 { 0 } else { time.resolve(ticks) };
        Some(Accesses {
            address: granule << 3,
            first_ns: at(first),
            last_ns: at(last).max(at(first)),
            low: low.min(high),
            high,
            reads,
            writes,
            by_several: shares & SEVERAL != 0,
            false_shares: shares & (SEVERAL - 1),
        })
    }
}

impl Region {
    /// Returns true if reads and writes are counted.
    pub fn counts_accesses(&self) -> bool {
        self.flags() & flags::ACCESSES != 0
    }

    /// Returns the number of blocks whose reads and writes could not be counted.
    pub fn access_missed(&self) -> u64 {
        self.counted(tally!(access_missed))
    }

    /// Touches records ahead of use, as far as the allowance permits. If a program gets no record, it continues, and
    /// its block is not counted.
    pub(crate) fn grant_accesses(&self) {
        if !self.counts_accesses() {
            return;
        }
        let records = ACCESS_RECORDS as u64;
        let used = self.reported64(tally!(access_next)).min(records);
        let limit_word = offset_of!(Control, access_limit);
        let limit = self.control64(limit_word).min(records);
        if limit - limit.min(used) >= RECORDS_AHEAD.max(used / 2) && limit > 0 {
            return;
        }
        // The number is rounded to whole pages, and limited by the remaining room.
        let mut more = (used + RECORDS_AHEAD.max(used) * 2).min(records);
        more = more.saturating_sub(limit) / RECORDS_OF_A_PAGE * RECORDS_OF_A_PAGE;
        while more > 0 {
            let bytes = more as usize * size_of::<AccessRecord>();
            if self.spend_on_growth(bytes as u64) {
                let start = ACCESS_OFFSET + limit as usize * size_of::<AccessRecord>();
                self.memory.touch(start, bytes);
                // Release: a thread that sees the new limit also sees the pages.
                self.memory.tell64(limit_word, limit + more, Release);
                return;
            }
            more = more / 2 / RECORDS_OF_A_PAGE * RECORDS_OF_A_PAGE;
        }
    }

    /// Returns the counts of the live blocks. `time`: conversion of their times.
    pub fn live_accesses(&self, time: TickTime) -> Vec<Accesses> {
        if !self.counts_accesses() {
            return Vec::new();
        }
        let limit = self.control64(offset_of!(Control, access_limit));
        let next = self.reported64(tally!(access_next));
        let used = next.min(limit).min(ACCESS_RECORDS as u64);
        let record = |number: u64| {
            let start = ACCESS_OFFSET + number as usize * size_of::<AccessRecord>();
            let word = |offset: usize| self.memory.u64(start + offset);
            let address = word(offset_of!(AccessRecord, address)).load(Acquire);
            let value = |offset: usize| word(offset).load(Relaxed);
            let at = |ticks| if ticks == 0 { 0 } else { time.resolve(ticks) };
            let others = [
                value(offset_of!(AccessRecord, other_reads)),
                value(offset_of!(AccessRecord, other_writes)),
            ];
            let high = value(offset_of!(AccessRecord, high));
            let first_ns = at(value(offset_of!(AccessRecord, first)));
            (address != 0).then(|| Accesses {
                address,
                first_ns,
                last_ns: at(value(offset_of!(AccessRecord, last))).max(first_ns),
                low: value(offset_of!(AccessRecord, low)).min(high),
                high,
                reads: value(offset_of!(AccessRecord, reads)).saturating_add(others[0]),
                writes: value(offset_of!(AccessRecord, writes)).saturating_add(others[1]),
                by_several: others != [0, 0],
                false_shares: value(offset_of!(AccessRecord, false_shares)),
            })
        };
        (1..used).filter_map(record).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memhook_abi::RawEvent;

    #[test]
    fn words_say_what_was_counted() {
        let accesses = Accesses {
            address: 0x5555_5555_5550,
            first_ns: 5,
            last_ns: 9,
            low: 8,
            high: 1 << 40,
            reads: u64::MAX,
            writes: 2,
            by_several: true,
            false_shares: 77,
        };
        let mut words = AccessWords::default();
        let mut take = |word: RawEvent| words.take(&word.unpack().unwrap(), TickTime::Nanoseconds);
        let all = [
            RawEvent::pack_access(0, accesses.address >> 3, accesses.first_ns),
            RawEvent::pack_access(1, SEVERAL | accesses.false_shares, accesses.last_ns),
            RawEvent::pack_access(2, accesses.low, accesses.reads),
            RawEvent::pack_access(3, accesses.high, accesses.writes),
        ];
        // The beginning of another block's words; the rest of those words was lost.
        assert_eq!(take(all[0]), None);
        assert_eq!(take(all[1]), None);
        assert_eq!(all.map(&mut take), [None, None, None, Some(accesses)]);
        // Words without a beginning.
        assert_eq!(take(all[2]), None);
        assert_eq!(take(all[3]), None);
        assert_eq!(all.map(&mut take), [None, None, None, Some(accesses)]);
    }
}
