//! Taking events out of the rings.

use crate::Region;
use memhook_abi::{Event, Op, RawEvent};
use std::sync::atomic::Ordering;

/// What receives the events.
pub trait Sink {
    /// The events that follow come from this ring.
    fn begin_ring(&mut self, ring: usize, tid: u32);
    /// One event, with the size resolved and the time of the last tick of its ring.
    fn event(&mut self, event: Event, size_bytes: u64, time_ns: u64);
    /// Everything that was published before the pass began has been delivered.
    fn end_pass(&mut self);
}

/// What a pass did.
#[derive(Clone, Copy, Debug, Default)]
pub struct PassStats {
    /// Events taken, ticks included.
    pub events: u64,
}

/// Events after which the tail is moved on, so that the producer of a full ring gets room early.
const BATCH: u64 = 4096;

/// The consumer's own state of each ring.
#[derive(Default)]
pub struct Drain {
    rings: Vec<RingState>,
}

#[derive(Clone, Copy, Default)]
struct RingState {
    time_ns: u64,
    large_size: u64,
}

impl Drain {
    /// A consumer that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// One pass: takes the heads of all rings first, then delivers everything up to them. What
    /// happened before an event of this pass is delivered by the end of the next one: it was
    /// published before the next pass takes its heads.
    pub fn pass(&mut self, region: &Region, sink: &mut impl Sink) -> PassStats {
        let used = region.rings_used();
        self.rings
            .resize(used.max(self.rings.len()), RingState::default());
        let capacity = (region.ring_bytes() / size_of::<RawEvent>()) as u64;
        let heads: Vec<u64> = (0..used)
            // Acquire pairs with the producer's release: the events below head are complete.
            .map(|i| region.ring(i).head.load(Ordering::Acquire))
            .collect();
        let mut stats = PassStats::default();
        for (index, &head) in heads.iter().enumerate() {
            let ring = region.ring(index);
            let mut tail = ring.tail.load(Ordering::Relaxed);
            // A head that no producer of ours can have written: leave the ring alone.
            if tail == head || head.wrapping_sub(tail) > capacity {
                continue;
            }
            sink.begin_ring(index, ring.tid.load(Ordering::Relaxed));
            let state = &mut self.rings[index];
            while tail != head {
                let end = head.min(tail.saturating_add(BATCH));
                stats.events += end - tail;
                while tail < end {
                    let slot = (tail & (capacity - 1)) as usize;
                    tail += 1;
                    let raw = RawEvent {
                        word0: region.event_word(index, slot, 0),
                        word1: region.event_word(index, slot, 1),
                    };
                    let Some(event) = raw.unpack() else { continue };
                    match event.op {
                        Op::Tick => state.time_ns = event.value,
                        Op::SizeExtension => state.large_size = event.value,
                        _ => {
                            let size = if event.size == u32::MAX {
                                state.large_size
                            } else {
                                u64::from(event.size)
                            };
                            sink.event(event, size, state.time_ns);
                        }
                    }
                }
                // Release: our reads of the events are done before the producer may overwrite.
                ring.tail.store(tail, Ordering::Release);
            }
        }
        sink.end_pass();
        stats
    }
}
