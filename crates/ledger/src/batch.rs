//! Prefetching: with many live blocks, nearly every event misses the cache twice, for the entry of its block and for
//! its site. So events are collected, and everything that they need is prefetched before they are applied. The
//! processor then waits for many cache lines concurrently, instead of one after the other.
//!
//! While the table fits into the cache, prefetching would only cost time, so it is switched on by the number of live
//! blocks.

use crate::{Ledger, Observer};
use memhook_abi::{Event, Op};

/// Cache lines that a processor can load at the same time.
const BATCH: usize = 32;
/// Number of live blocks (at least 24 bytes each in the table) above which prefetching pays off.
const MANY_BLOCKS: usize = 100_000;

/// Event that has not been applied yet. Its fields are written one by one, because copying a whole event directly after
/// composing it would wait for those stores.
struct Collected {
    address: u64,
    size: u64,
    time_ns: u64,
    sequence: u32,
    low_size: u32,
    stack: u32,
    op: Op,
}

/// Events that are not applied yet.
#[derive(Default)]
pub(crate) struct Batch {
    is_on: bool,
    events: Vec<Collected>,
}

impl<O: Observer> Ledger<O> {
    /// Takes one event. `size` is the requested size in bytes, `time_ns` nanoseconds since the attach.
    ///
    /// Until the pass ends, the sums may lack the latest events.
    #[inline(always)]
    pub fn event(&mut self, event: Event, size: u64, time_ns: u64) {
        if self.batch.is_on {
            self.collect(event, size, time_ns);
        } else {
            self.apply_event(event, size, time_ns);
        }
    }

    #[inline(always)]
    fn collect(&mut self, event: Event, size: u64, time_ns: u64) {
        self.map.expect(event.address);
        // The site is prefetched even for a release, which has no stack, because a branch on the kind of the event
        // would be unpredictable.
        self.sites.expect_stack(event.stack);
        self.batch.events.push(Collected {
            address: event.address,
            size,
            time_ns,
            sequence: event.sequence,
            low_size: event.size,
            stack: event.stack,
            op: event.op,
        });
        if self.batch.events.len() == BATCH {
            self.apply_batch();
        }
    }

    /// Applies the collected events. Call this before anything that is not an event.
    #[inline(never)]
    pub fn apply_batch(&mut self) {
        let mut events = std::mem::take(&mut self.batch.events);
        // By now most entries are in the cache, and show which sites are needed next.
        for event in &events {
            self.sites.expect(self.map.first_look(event.address).site());
        }
        for event in events.drain(..) {
            let Collected { size, time_ns, .. } = event;
            let event = Event {
                op: event.op,
                address: event.address,
                sequence: event.sequence,
                size: event.low_size,
                value: 0, // what ticks and size extensions have, which never get here
                stack: event.stack,
            };
            self.apply_event(event, size, time_ns);
        }
        self.batch.events = events; // keeps its capacity
    }

    /// Decides whether to prefetch, at the end of a pass, when no events are collected.
    pub(crate) fn choose_batching(&mut self) {
        self.batch.is_on = self.map.live() > MANY_BLOCKS;
    }
}
