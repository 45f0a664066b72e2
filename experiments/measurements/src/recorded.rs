//! Events of a recording in the format of the rings.

use crate::{Feeder, bind_to, placement};
use memhook_abi::{Accesses, Event, Op, RawEvent};
use memhook_recording::{Recording, Visitor};
use memhook_stream::{Drain, Region};
use std::path::Path;
use std::sync::Barrier;

/// Size in bytes of a ring in which events are published.
const RING_BYTES: usize = 1 << 20;

/// Events of one pass of the drain.
#[derive(Default)]
pub struct Pass {
    /// For each part of the pass: ring, thread, and number of events, in the order of [`Recorded::events`].
    pub parts: Vec<(usize, u32, usize)>,
    /// End of the pass in nanoseconds since the attach.
    pub now_ns: u64,
}

/// Events of a recording in the order in which they were drained, packed as in a ring.
#[derive(Default)]
pub struct Recorded {
    /// Events of all passes in order.
    pub events: Vec<RawEvent>,
    /// Passes in which the events were drained.
    pub passes: Vec<Pass>,
    /// Number of rings.
    pub rings: usize,
    pass: Pass,
    /// Number of events in the current pass.
    taken: usize,
    /// Time of the last event of each ring.
    times: Vec<u64>,
    most: usize,
    pass_events: usize,
}

impl Recorded {
    /// Reads a recording, and stops after the pass that reaches `most` events. A pass with fewer than `pass_events`
    /// events is joined with the next pass, to simulate a busy target that records more between two passes.
    pub fn read(
        path: &Path,
        most: usize,
        pass_events: usize,
    ) -> Result<Recorded, Box<dyn std::error::Error>> {
        let mut recorded = Recorded {
            most,
            pass_events,
            ..Recorded::default()
        };
        Recording::open(path)?.visit(&mut recorded)?;
        Ok(recorded)
    }

    fn is_full(&self) -> bool {
        self.events.len() >= self.most && self.pass.parts.is_empty()
    }

    fn push(&mut self, event: RawEvent) {
        if let Some((_, _, count)) = self.pass.parts.last_mut() {
            *count += 1;
            self.taken += 1;
            self.events.push(event);
        }
    }
}

impl Recorded {
    /// Publishes all events from another processor, pass by pass, and calls `take` on this thread for each pass with
    /// the time of the pass. The other processor is idle during the call.
    pub fn replay(&self, mut take: impl FnMut(&mut Drain, &Region, u64)) {
        let place = placement();
        let mut feeder = Feeder::with_rings(self.rings, RING_BYTES);
        let region = feeder.second_view();
        // If the events of a ring exceed its capacity, or a pass has several parts for the same ring, they become
        // separate passes.
        let (published, drained) = (Barrier::new(2), Barrier::new(2));
        let times = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let (published, drained, send) = (&published, &drained, times.0);
            scope.spawn(move || {
                bind_to(&place.target);
                let mut events = &self.events[..];
                let half = feeder.capacity() / 2;
                for pass in &self.passes {
                    for &(ring, tid, mut count) in &pass.parts {
                        while count > 0 {
                            let (now, later) = events.split_at(count.min(half));
                            feeder.set_tid(ring, tid);
                            feeder.publish_to(ring, now);
                            events = later;
                            count -= now.len();
                            if count > 0 {
                                let _ = send.send(pass.now_ns);
                                published.wait();
                                drained.wait();
                            }
                        }
                    }
                    let _ = send.send(pass.now_ns);
                    published.wait();
                    drained.wait();
                }
                drop(send);
                published.wait();
            });
            bind_to(&placement().rest);
            let mut drain = Drain::new();
            loop {
                published.wait();
                let Ok(now_ns) = times.1.recv() else { break };
                take(&mut drain, &region, now_ns);
                drained.wait();
            }
        });
    }
}

impl Visitor for Recorded {
    fn begin_ring(&mut self, ring: usize, tid: u32) {
        if !self.is_full() {
            self.rings = self.rings.max(ring + 1);
            self.times.resize(self.rings, 0);
            self.pass.parts.push((ring, tid, 0));
        }
    }

    fn access(&mut self, _: &Accesses) {}

    fn event(&mut self, event: Event, size: u64, time_ns: u64) {
        let Some(&(ring, _, _)) = self.pass.parts.last() else {
            return;
        };
        if self.times[ring] != time_ns {
            self.times[ring] = time_ns;
            self.push(RawEvent::pack_value(Op::Tick, time_ns));
        }
        if event.size == u32::MAX {
            self.push(RawEvent::pack_value(Op::SizeExtension, size));
        }
        let Event {
            op,
            address,
            sequence,
            size,
            stack,
            ..
        } = event;
        self.push(RawEvent::pack(op, address, sequence, size, stack));
    }

    fn end_pass(&mut self, now_ns: u64, _passes: u64) {
        if !self.is_full() && self.taken >= self.pass_events {
            self.taken = 0;
            self.pass.now_ns = now_ns;
            self.passes.push(std::mem::take(&mut self.pass));
        }
    }
}
