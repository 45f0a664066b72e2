//! The events of the last two passes before a checkpoint.
//!
//! A ledger uses sequence numbers to compare an arriving event with younger ones. A checkpoint does
//! not contain these numbers, but the events before it do.

use crate::file::decode::Visitor;
use memhook_abi::{Event, Op, sequence_before};
use rustc_hash::FxHashMap;

/// The latest event of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Latest {
    pub sequence: u32,
    pub is_release: bool,
    /// True if the event is from the last pass, and not from the one before.
    pub of_last_pass: bool,
    /// Collects passes and keeps the last two complete ones.
    pub stack: u32,
}

#[derive(Default)]
struct Pass {
    events: Vec<(usize, u32, Event)>,
}

/// Number of complete passes.
#[derive(Default)]
pub(crate) struct LastPasses {
    under_way: Pass,
    last: Pass,
    before_last: Pass,
    ring: (usize, u32),
    /// Passes completed.
    pub count: u64,
}

impl Visitor for LastPasses {
    fn begin_ring(&mut self, ring: usize, tid: u32) {
        self.ring = (ring, tid);
    }
    fn event(&mut self, event: Event, _size: u64, _time_ns: u64) {
        let (ring, tid) = self.ring;
        self.under_way.events.push((ring, tid, event));
    }
    fn end_pass(&mut self, _now_ns: u64, passes: u64) {
        self.count = self.count.saturating_add(passes);
        for _ in 0..passes.min(2) {
            let done = std::mem::take(&mut self.under_way);
            self.before_last = std::mem::replace(&mut self.last, done);
        }
    }
}

/// Contents of the last two passes.
#[derive(Default)]
pub(crate) struct Recent {
    pub latest: FxHashMap<u64, Latest>,
    /// Announced reallocations that are not applied yet: ring, thread, event.
    pub announced: Vec<(usize, u32, Event)>,
}

impl LastPasses {
    pub fn evaluate(self) -> Recent {
        let mut recent = Recent::default();
        // For each ring: thread, announcement, and true if it is from the last pass.
        let mut open: FxHashMap<usize, (u32, Event, bool)> = FxHashMap::default();
        for (pass, is_last) in [(self.before_last, false), (self.last, true)] {
            for (ring, tid, event) in pass.events {
                if let Some((_, announced, _)) = open.remove(&ring) {
                    let failed = event.op == Op::ReallocFailed;
                    if failed && event.address == announced.address {
                        continue;
                    }
                    recent.note(&announced, is_last);
                }
                match event.op {
                    Op::ReallocRelease => {
                        open.insert(ring, (tid, event, is_last));
                    }
                    Op::Allocation | Op::Release => recent.note(&event, is_last),
                    // An allocation paired with its release leaves no live block, and the other
                    // events do not concern blocks.
                    _ => {}
                }
            }
        }
        for (ring, (tid, event, is_last)) in open {
            if is_last {
                recent.announced.push((ring, tid, event));
            } else {
                recent.note(&event, is_last);
            }
        }
        recent
    }
}

impl Recent {
    fn note(&mut self, event: &Event, of_last_pass: bool) {
        let new = Latest {
            sequence: event.sequence,
            is_release: event.op != Op::Allocation,
            of_last_pass,
            stack: event.stack,
        };
        let latest = self.latest.entry(event.address).or_insert(new);
        // As in the ledger, an allocation with the same sequence number as a release comes after
        // it.
        let is_later = if new.is_release {
            sequence_before(latest.sequence, new.sequence)
        } else {
            !sequence_before(new.sequence, latest.sequence)
        };
        if is_later {
            *latest = new;
        }
    }
}
