//! Compares glibc malloc's own count of allocated bytes with the trace's live blocks, as independent evidence that the
//! trace is complete.

use crate::drain::consumer::Consumer;
use crate::session::Session;
use memhook_heap::{Footprint, GivenOut, given_out};
use memhook_ledger::{LiveWalk, Observer, Totals};
use std::time::{Duration, Instant};

/// Longest wait for events from before the heap was read.
const PATIENCE: Duration = Duration::from_millis(100);
/// Pause between two checks of their arrival.
const PAUSE: Duration = Duration::from_millis(2);
/// Number of passes after which all earlier events have arrived.
const PASSES: u64 = 2;
/// Bytes that the C library allocates for each loaded module without going through a hooked slot: its `link_map`, names
/// and search path.
const MODULE_BYTES: u64 = 4096;
/// Tolerated difference: buffers and names that the C library allocates for itself.
const LEAST_BOUND: u64 = 32 << 10;

/// Bytes allocated by malloc at one moment, and how many of them the trace accounts for.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeapBalance {
    given: GivenOut,
    known: Footprint,
    /// Bytes that were allocated and released while the two numbers were read.
    meanwhile: u64,
    /// Releases of blocks that the trace did not know.
    unknown_releases: u64,
    modules: u64,
}

/// Change of malloc's count and of the trace's between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Growth of malloc's allocated bytes.
    pub grown_bytes: i64,
    /// Growth of the trace's live blocks, including their headers.
    pub traced_bytes: i64,
    /// Largest difference between the two counts that a complete trace can explain.
    pub bound_bytes: u64,
    /// True if blocks from before the attach were released. Their sizes are unknown, and malloc's count has decreased
    /// by them.
    pub has_unknown_releases: bool,
}

impl HeapBalance {
    /// Returns the balance at a program's first instruction.
    pub fn of_beginning() -> HeapBalance {
        HeapBalance::default()
    }

    /// Returns the current balance, while the rings are being drained. `None` if malloc is not glibc's, or if its lists
    /// change too fast to be read.
    pub fn take<O: Observer + Send>(
        session: &Session,
        consumer: &Consumer<O>,
    ) -> Option<HeapBalance> {
        if !session.heaps().is_empty() {
            // Described allocators keep their own count of the blocks that they take from malloc.
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

    /// Returns the bytes in malloc's blocks that are older than the attach, and therefore missing from the trace.
    pub fn earlier_bytes(&self) -> u64 {
        self.given.bytes.saturating_sub(self.known.bytes)
    }

    /// Compares two moments of one trace.
    pub fn since(&self, earlier: &HeapBalance) -> Comparison {
        let growth = |now: u64, before: u64| now as i64 - before as i64;
        let new_modules = self.modules.saturating_sub(earlier.modules);
        let bounds = [
            // A cache may be empty at one moment and full at another.
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

/// Waits until the events of everything that has happened so far have arrived. Returns false if they do not arrive.
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

/// Upper bound on the bytes by which the calls between two sums may have changed them, in any order.
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
