//! Mappings of the process, as observed in calls of `mmap` and related functions.
//!
//! Each mapping is a block in a separate ledger. Unlike calls of malloc, these calls concern ranges of addresses: a
//! call may unmap the middle of a mapping, or several mappings. So the current pieces are stored by address, and a call
//! cuts the pieces that it overlaps. The remaining parts of a piece keep its call stack and its age.
//!
//! # Order
//!
//! The hook numbers each call that unmaps or replaces something, before it calls the kernel, and each new mapping gets
//! the number that is current when the kernel has returned (`mappings.hpp`). So a mapping with number *v* is younger
//! than the calls numbered up to *v*, and older than all others. Events come in passes: every event that happened
//! before an event of pass *k* has arrived by the end of pass *k + 1*. A new mapping is entered immediately, and
//! replaces older ones. An unmapping waits for one pass, until the mappings that it affects have arrived, and then cuts
//! those that are older. Because an unmapping is published after the call, it may arrive late. Mappings made there in
//! the meantime do not have a lower number, and are not cut.

use crate::{Ledger, LedgerOptions, Totals};
use memhook_abi::{Event, Op};
use std::collections::BTreeMap;
use std::ops::Range;

/// Memory whose contents the program has discarded, but which remains mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    /// Calls of madvise(2) with MADV_DONTNEED or MADV_FREE.
    pub calls: u64,
    /// Sum of the bytes in these calls.
    pub bytes: u64,
}

/// A change of the ledger's blocks, for recorders.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MappingChange {
    /// The thread (target's pid namespace).
    pub tid: u32,
    /// An allocation or a release.
    pub event: Event,
    /// Bytes.
    pub bytes: u64,
    /// Nanoseconds since the attach.
    pub time_ns: u64,
}

/// A remaining part of a mapping.
#[derive(Clone, Copy, Debug)]
struct Piece {
    end: u64,
    /// Start of the whole mapping.
    origin: u64,
    stack: u32,
    number: u32,
    time_ns: u64,
    tid: u32,
}

struct Unmapping {
    start: u64,
    /// Number of bytes. 0 stands for everything that was attached at `start` (shmdt(2)).
    bytes: u64,
    number: u32,
    tid: u32,
}

/// The current mappings, by call stack.
pub struct MappingLedger {
    ledger: Ledger,
    pieces: BTreeMap<u64, Piece>,
    /// Unmappings of the previous pass, and of this pass.
    waiting: [Vec<Unmapping>; 2],
    /// Counter of the ledger's events, which come in order.
    order: u32,
    tid: u32,
    /// Thread to which the ledger attributes the current events of this pass.
    told_tid: Option<u32>,
    sums: Totals,
    discarded: Discarded,
    changes: Option<Vec<MappingChange>>,
}

/// Returns true if number `a` is before `b`; numbers wrap around.
fn is_before(a: u32, b: u32) -> bool {
    (b.wrapping_sub(a) as i32) > 0
}

impl Default for MappingLedger {
    fn default() -> MappingLedger {
        MappingLedger {
            ledger: Ledger::new(LedgerOptions::default()),
            pieces: BTreeMap::new(),
            waiting: [Vec::new(), Vec::new()],
            order: 0,
            tid: 0,
            told_tid: None,
            sums: Totals::default(),
            discarded: Discarded::default(),
            changes: None,
        }
    }
}

impl MappingLedger {
    /// Keeps a list of changes from now on, for [`MappingLedger::take_changes`].
    pub fn keep_changes(&mut self) {
        self.changes.get_or_insert_default();
    }

    /// Returns and removes the changes since the last call.
    pub fn take_changes(&mut self) -> Vec<MappingChange> {
        self.changes
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Returns the mappings as the blocks of a ledger. Its sums count the remaining part of a cut mapping as another
    /// allocation; see [`MappingLedger::totals`].
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns the sums: calls that mapped and unmapped memory, and their bytes.
    pub fn totals(&self) -> Totals {
        let live = self.ledger.totals();
        Totals {
            live_bytes: live.live_bytes,
            live_blocks: live.live_blocks,
            peak_live_bytes: live.peak_live_bytes,
            ..self.sums
        }
    }

    /// Returns the discarded contents.
    pub fn discarded(&self) -> Discarded {
        self.discarded
    }

    /// Iterates over the mapped ranges with their call stacks, in address order.
    pub fn ranges(&self) -> impl Iterator<Item = (Range<u64>, u32)> + '_ {
        let pieces = self.pieces.iter();
        pieces.map(|(&start, piece)| (start..piece.end, piece.stack))
    }

    /// Begins the events of this thread.
    pub fn begin_ring(&mut self, tid: u32) {
        self.tid = tid;
    }

    /// Takes an event about a mapping.
    pub fn event(&mut self, event: Event, bytes: u64, time_ns: u64) {
        let Some(end) = event.address.checked_add(bytes) else {
            return; // no kernel maps that, and no hook writes it
        };
        if event.address == 0 {
            return;
        }
        match event.op {
            Op::Mapped if bytes > 0 => self.map(event.address..end, &event, time_ns),
            Op::Unmapped => self.waiting[1].push(Unmapping {
                start: event.address,
                bytes,
                number: event.sequence,
                tid: self.tid,
            }),
            Op::Discarded => {
                self.discarded.calls += 1;
                self.discarded.bytes = self.discarded.bytes.saturating_add(bytes);
            }
            _ => {}
        }
    }

    /// Ends a pass. `now_ns`: nanoseconds since the attach.
    pub fn end_pass(&mut self, now_ns: u64) {
        let due = std::mem::take(&mut self.waiting[0]);
        self.waiting.swap(0, 1);
        for unmapping in due {
            self.unmap(&unmapping, now_ns);
        }
        self.ledger.end_pass(now_ns);
        self.told_tid = None;
    }

    /// Ends the run.
    pub fn finish(&mut self, now_ns: u64) {
        self.end_pass(now_ns);
        self.end_pass(now_ns);
        self.ledger.finish();
    }

    fn map(&mut self, range: Range<u64>, event: &Event, time_ns: u64) {
        let bytes = range.end - range.start;
        let Some(allocated) = self.sums.allocated_bytes.checked_add(bytes) else {
            return; // more than any program can have mapped
        };
        self.sums.allocations += 1;
        self.sums.allocated_bytes = allocated;
        let number = event.sequence;
        let older = |piece: &Piece| !is_before(number, piece.number);
        self.cut(&range, time_ns, &older);
        // The pieces that remain in the range are younger: the event of another thread arrived first.
        let mut at = range.start;
        let younger: Vec<Range<u64>> = self.overlapping(&range);
        for hole in younger
            .iter()
            .cloned()
            .chain(std::iter::once(range.end..range.end))
        {
            if at < hole.start {
                let piece = Piece {
                    end: hole.start,
                    origin: range.start,
                    stack: event.stack,
                    number,
                    time_ns,
                    tid: self.tid,
                };
                self.insert(at, piece, time_ns);
            }
            at = at.max(hole.end);
        }
        let covered: u64 = younger
            .iter()
            .map(|hole| hole.end.min(range.end) - hole.start.max(range.start))
            .sum();
        self.sums.released_bytes += covered;
    }

    fn unmap(&mut self, unmapping: &Unmapping, now_ns: u64) {
        let number = unmapping.number;
        self.tid = unmapping.tid;
        let of_origin = |piece: &Piece| {
            is_before(piece.number, number)
                && (unmapping.bytes > 0 || piece.origin == unmapping.start)
        };
        let end = match unmapping.bytes {
            0 => self.end_of_origin(unmapping.start),
            bytes => unmapping.start.saturating_add(bytes),
        };
        self.sums.releases += 1;
        if !self.cut(&(unmapping.start..end), now_ns, &of_origin) {
            self.sums.unknown_releases += 1;
        }
    }

    fn end_of_origin(&self, origin: u64) -> u64 {
        let pieces = self.pieces.range(origin..);
        let of_origin = pieces.filter(|(_, piece)| piece.origin == origin);
        of_origin
            .map(|(_, piece)| piece.end)
            .max()
            .unwrap_or(origin)
    }

    /// Returns the parts of the pieces that are in a range.
    fn overlapping(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let before = self.pieces.range(..range.start).next_back();
        let before = before.filter(|(_, piece)| piece.end > range.start);
        let within = self.pieces.range(range.clone());
        before
            .into_iter()
            .chain(within)
            .map(|(&start, piece)| start..piece.end)
            .collect()
    }

    /// Cuts the range out of the pieces for which `is_meant` returns true. Returns true if there were any.
    fn cut(&mut self, range: &Range<u64>, now_ns: u64, is_meant: &dyn Fn(&Piece) -> bool) -> bool {
        let mut has_cut = false;
        for found in self.overlapping(range) {
            let Some(piece) = self.pieces.get(&found.start).copied() else {
                continue;
            };
            if !is_meant(&piece) {
                continue;
            }
            has_cut = true;
            self.remove(found.start, now_ns);
            let gone = found.start.max(range.start)..found.end.min(range.end);
            self.sums.released_bytes += gone.end - gone.start;
            if found.start < gone.start {
                let left = Piece {
                    end: gone.start,
                    ..piece
                };
                self.insert(found.start, left, now_ns);
            }
            if gone.end < found.end {
                self.insert(gone.end, piece, now_ns);
            }
        }
        has_cut
    }

    fn insert(&mut self, start: u64, piece: Piece, now_ns: u64) {
        self.pieces.insert(start, piece);
        let event = self.of_block(Op::Allocation, start, piece.stack);
        self.tell(event, piece.tid, piece.end - start, (piece.time_ns, now_ns));
    }

    fn remove(&mut self, start: u64, now_ns: u64) {
        self.pieces.remove(&start);
        self.order = self.order.wrapping_add(1);
        let event = self.of_block(Op::Release, start, 0);
        self.tell(event, self.tid, 0, (now_ns, now_ns));
    }

    fn of_block(&self, op: Op, address: u64, stack: u32) -> Event {
        Event {
            op,
            address,
            sequence: self.order & ((1 << memhook_abi::SEQUENCE_BITS) - 1),
            size: 0,
            stack,
            value: 0,
        }
    }

    /// Passes an event to the ledger. `times`: time of the mapping, and the current time.
    fn tell(&mut self, event: Event, tid: u32, bytes: u64, times: (u64, u64)) {
        if self.told_tid != Some(tid) {
            self.told_tid = Some(tid);
            self.ledger.begin_ring(0, tid);
        }
        self.ledger.event(event, bytes, times.0);
        if let Some(changes) = &mut self.changes {
            changes.push(MappingChange {
                tid,
                event,
                bytes,
                time_ns: times.1,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(op: Op, address: u64, number: u32, stack: u32) -> Event {
        Event {
            op,
            address,
            sequence: number,
            size: 0,
            stack,
            value: 0,
        }
    }

    fn live(ledger: &MappingLedger) -> Vec<(Range<u64>, u32)> {
        let ranges: Vec<_> = ledger.ranges().collect();
        let bytes: u64 = ranges
            .iter()
            .map(|(range, _)| range.end - range.start)
            .sum();
        let totals = ledger.totals();
        assert_eq!(
            (totals.live_bytes, totals.live_blocks),
            (bytes, ranges.len() as u64)
        );
        assert_eq!(totals.allocated_bytes - totals.released_bytes, bytes);
        ranges
    }

    #[test]
    fn the_middle_of_a_mapping_goes() {
        let mut ledger = MappingLedger::default();
        ledger.begin_ring(7);
        ledger.event(event(Op::Mapped, 0x1000, 0, 3), 0x9000, 5_000_000);
        ledger.event(event(Op::Unmapped, 0x3000, 1, 0), 0x2000, 0);
        ledger.end_pass(8_000_000);
        assert_eq!(live(&ledger), [(0x1000..0xa000, 3)]);
        ledger.end_pass(9_000_000);
        assert_eq!(live(&ledger), [(0x1000..0x3000, 3), (0x5000..0xa000, 3)]);
        let totals = ledger.totals();
        assert_eq!((totals.allocations, totals.releases), (1, 1));
        assert_eq!(
            (totals.allocated_bytes, totals.released_bytes),
            (0x9000, 0x2000)
        );
        // The remaining part is as old as the mapping.
        let mut ages = Vec::new();
        let mut walk = crate::LiveWalk::default();
        while ledger
            .ledger()
            .walk_blocks(&mut walk, |block| ages.push((block.time_ns, block.tid)))
        {}
        assert_eq!(ages, [(5_000_000, 7), (5_000_000, 7)]);
    }

    #[test]
    fn a_late_unmapping_leaves_the_next_owner_alone() {
        let mut ledger = MappingLedger::default();
        ledger.event(event(Op::Mapped, 0x1000, 0, 1), 0x4000, 0);
        // The kernel unmapped the range in a call of another thread, whose event arrives much later.
        ledger.event(event(Op::Mapped, 0x2000, 1, 2), 0x1000, 0);
        for _ in 0..5 {
            ledger.end_pass(0);
        }
        ledger.event(event(Op::Unmapped, 0x1000, 1, 0), 0x4000, 0);
        ledger.finish(0);
        assert_eq!(live(&ledger), [(0x2000..0x3000, 2)]);
    }

    #[test]
    fn an_older_mapping_that_comes_late_does_not_cover_a_younger_one() {
        let mut ledger = MappingLedger::default();
        ledger.event(event(Op::Mapped, 0x2000, 1, 2), 0x1000, 0);
        ledger.event(event(Op::Unmapped, 0x1000, 1, 0), 0x4000, 0);
        ledger.end_pass(0);
        ledger.event(event(Op::Mapped, 0x1000, 0, 1), 0x4000, 0);
        ledger.finish(0);
        assert_eq!(live(&ledger), [(0x2000..0x3000, 2)]);
    }

    #[test]
    fn a_segment_goes_as_a_whole() {
        let mut ledger = MappingLedger::default();
        ledger.event(event(Op::Mapped, 0x10000, 0, 1), 0x4000, 0);
        ledger.event(event(Op::Mapped, 0x14000, 0, 2), 0x4000, 0);
        ledger.event(event(Op::Unmapped, 0x11000, 1, 0), 0x1000, 0);
        ledger.event(event(Op::Unmapped, 0x10000, 2, 0), 0, 0);
        ledger.event(event(Op::Discarded, 0x14000, 2, 0), 0x2000, 0);
        ledger.finish(0);
        assert_eq!(live(&ledger), [(0x14000..0x18000, 2)]);
        let discarded = Discarded {
            calls: 1,
            bytes: 0x2000,
        };
        assert_eq!(ledger.discarded(), discarded);
    }

    proptest! {
        /// Compares with a kernel, page by page, for events of two threads that arrive up to one pass late.
        #[test]
        fn as_a_kernel_does_it(
            calls in prop::collection::vec((any::<bool>(), 1u64..40, 1u64..12, any::<bool>()), 1..60),
        ) {
            let mut pages = BTreeMap::new();
            let mut ledger = MappingLedger::default();
            let mut late: Vec<(Event, u64)> = Vec::new();
            let mut number = 0;
            for (index, (maps, page, count, is_late)) in calls.into_iter().enumerate() {
                let stack = index as u32 + 1;
                number += 1;
                let op = if maps { Op::Mapped } else { Op::Unmapped };
                for page in page..page + count {
                    match maps {
                        true => pages.insert(page, stack),
                        false => pages.remove(&page),
                    };
                }
                let this = (event(op, page << 12, number, stack), count << 12);
                for (event, bytes) in std::mem::take(&mut late) {
                    ledger.event(event, bytes, 0);
                }
                if is_late {
                    late.push(this);
                } else {
                    ledger.event(this.0, this.1, 0);
                }
                ledger.end_pass(0);
            }
            for (event, bytes) in late {
                ledger.event(event, bytes, 0);
            }
            ledger.finish(0);
            let found: BTreeMap<u64, u32> = live(&ledger)
                .into_iter()
                .flat_map(|(range, stack)| (range.start >> 12..range.end >> 12).map(move |page| (page, stack)))
                .collect();
            prop_assert_eq!(found, pages);
        }
    }
}
