//! Looking ahead: with many live blocks nearly every event misses the cache at its block's place and
//! at its site. Events are collected, all their places are loaded, and only then are they applied:
//! the processor waits for the memory of many of them at once, instead of one after the other.
//!
//! While the table fits into the cache this would only cost time, so it is switched on by the number
//! of live blocks.

use crate::{Ledger, Observer};
use memhook_abi::{Event, Op};

/// The processor cannot keep track of more lines that are under way than this.
const BATCH: usize = 32;
/// From so many live blocks (24 bytes and more each) on.
const MANY_BLOCKS: usize = 100_000;

/// An event that is not applied yet. Its parts are written one by one: what is copied as a whole just after
/// it was put together waits for those stores.
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
    /// One event. `size` is the requested size in bytes, `time_ns` nanoseconds since the attach.
    ///
    /// Sums may lack the last events until the pass ends.
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
        // Of a release too, whose stack is none: nobody could predict a branch on the kind of the event.
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

    /// Applies what has been collected; before anything that is not an event.
    #[inline(never)]
    pub fn apply_batch(&mut self) {
        let mut events = std::mem::take(&mut self.batch.events);
        // By now most entries are there, and say which sites come next.
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

    /// At the end of a pass, with nothing collected.
    pub(crate) fn choose_batching(&mut self) {
        self.batch.is_on = self.map.live() > MANY_BLOCKS;
    }
}
