//! What glibc's malloc counts as given out, beside what the trace knows to live: a second source for the sentence that
//! nothing was missed.

use crate::drain::consumer::Consumer;
use crate::session::Session;
use memhook_heap::{Footprint, GivenOut, given_out};
use memhook_ledger::{LiveWalk, Observer, Totals};
use std::time::{Duration, Instant};

/// How long events may take that happened before the heap was looked at.
const PATIENCE: Duration = Duration::from_millis(100);
/// Between two looks at whether they have come.
const PAUSE: Duration = Duration::from_millis(2);
/// Two passes later, everything that happened before has arrived.
const PASSES: u64 = 2;
/// What the C library allocates through no slot for a module that is loaded: its `link_map`, names and search path.
const MODULE_BYTES: u64 = 4096;
/// Differences below this are noise: buffers and names that the C library makes for itself.
const LEAST_BOUND: u64 = 32 << 10;

/// What malloc has given out at a moment, and what of that the trace knows.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeapBalance {
    given: GivenOut,
    known: Footprint,
    /// What was allocated and released while the two were looked at.
    meanwhile: u64,
    /// Releases of blocks that the trace did not know.
    unknown_releases: u64,
    modules: u64,
}

/// How malloc's own count and the trace's have moved between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Growth of what malloc has given out.
    pub grown_bytes: i64,
    /// Growth of what the trace knows to live, with the headers of its blocks.
    pub traced_bytes: i64,
    /// The two may differ by this though every call was seen.
    pub bound_bytes: u64,
    /// Blocks from before the attach were released, whose sizes nobody knows: so much less may malloc have given out.
    pub has_unknown_releases: bool,
}

impl HeapBalance {
    /// The balance at the first instruction of a program.
    pub fn of_beginning() -> HeapBalance {
        HeapBalance::default()
    }

    /// The balance at this moment; call it while the rings are drained. `None` where malloc is not glibc's, and where no
    /// look at its lists succeeds because they change all the time.
    pub fn take<O: Observer + Send>(
        session: &Session,
        consumer: &Consumer<O>,
    ) -> Option<HeapBalance> {
        if !session.heaps().is_empty() {
            // What the program's own allocators do with blocks of malloc is counted for itself.
            return None;
        }
        let before = consumer.lock().ledger.totals();
        let given = given_out(session.pid(), session.modules())?;
        if !events_have_come(consumer) {
            return None;
        }
        let (mut walk, mut known) = (LiveWalk::default(), Footprint::default());
        consumer.in_slices(|state| {
            state
                .ledger
                .walk_blocks(&mut walk, |block| known.add(block.address, block.size))
        });
        let after = consumer.lock().ledger.totals();
        Some(HeapBalance {
            given,
            known,
            meanwhile: moved(&before, &after),
            unknown_releases: after.unknown_releases,
            modules: session.modules().len() as u64,
        })
    }

    /// Bytes that malloc has given out and that the trace does not know: those from before the attach.
    pub fn earlier_bytes(&self) -> u64 {
        self.given.bytes.saturating_sub(self.known.bytes)
    }

    /// Compares two moments of one trace.
    pub fn since(&self, earlier: &HeapBalance) -> Comparison {
        let growth = |now: u64, before: u64| now as i64 - before as i64;
        let new_modules = self.modules.saturating_sub(earlier.modules);
        let bounds = [
            // Of two moments, a cache is empty at one and full at the other, or the reverse.
            self.given.cached_bytes.max(earlier.given.cached_bytes),
            self.given.mapped_surplus_bytes,
            self.given.spread_bytes + earlier.given.spread_bytes,
            (self.given.own_bytes).abs_diff(earlier.given.own_bytes),
            self.known.surplus_bytes + earlier.known.surplus_bytes,
            self.meanwhile + earlier.meanwhile,
            new_modules * MODULE_BYTES,
            LEAST_BOUND,
        ];
        Comparison {
            grown_bytes: growth(self.given.bytes, earlier.given.bytes),
            traced_bytes: growth(self.known.bytes, earlier.known.bytes),
            bound_bytes: bounds.into_iter().fold(0, u64::saturating_add),
            has_unknown_releases: self.unknown_releases > 0,
        }
    }
}

/// Waits for the events of what has happened until now. Returns false if they do not come.
fn events_have_come<O: Observer + Send>(consumer: &Consumer<O>) -> bool {
    let (passes, deadline) = (consumer.passes(), Instant::now() + PATIENCE);
    while consumer.passes() < passes + PASSES && !consumer.is_asleep() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}

/// What all calls between two sums may have changed, whatever their order.
fn moved(before: &Totals, after: &Totals) -> u64 {
    const HEADER_BYTES: u64 = 32;
    let calls = (after.allocations - before.allocations) + (after.releases - before.releases);
    let bytes = (after.allocated_bytes - before.allocated_bytes)
        + (after.released_bytes - before.released_bytes);
    bytes.saturating_add(calls.saturating_mul(HEADER_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn balance(given: u64, known: u64) -> HeapBalance {
        HeapBalance {
            given: GivenOut {
                bytes: given,
                ..GivenOut::default()
            },
            known: Footprint {
                bytes: known,
                ..Footprint::default()
            },
            ..HeapBalance::default()
        }
    }

    #[test]
    fn two_moments_are_compared_by_their_growth() {
        let earlier = balance(50 << 20, 1 << 20);
        let found = balance(61 << 20, 4 << 20).since(&earlier);
        assert_eq!((found.grown_bytes, found.traced_bytes), (11 << 20, 3 << 20));
        assert_eq!(found.bound_bytes, LEAST_BOUND);
        assert_eq!(earlier.earlier_bytes(), 49 << 20);
        let shrunk = balance(40 << 20, 0).since(&earlier);
        assert_eq!(
            (shrunk.grown_bytes, shrunk.traced_bytes),
            (-(10 << 20), -(1 << 20))
        );
    }

    #[test]
    fn what_happens_during_a_look_widens_the_bound() {
        let calm = Totals::default();
        let busy = Totals {
            allocations: 10,
            releases: 5,
            allocated_bytes: 1000,
            released_bytes: 500,
            ..Totals::default()
        };
        assert_eq!(moved(&calm, &busy), 1500 + 15 * 32);
        let mut now = balance(0, 0);
        now.meanwhile = moved(&calm, &busy);
        let bound = now.since(&HeapBalance::of_beginning()).bound_bytes;
        assert_eq!(bound, LEAST_BOUND + 1980);
    }
}
