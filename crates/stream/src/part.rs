//! Takes events out of rings, up to the heads that a pass has found.

use crate::Region;
use crate::accesses::AccessWords;
use crate::drain::{PassStats, Sink, TickTime};
use memhook_abi::{Op, RING_PREFIX_BYTES, RawEvent, RingHeader};
use std::mem::offset_of;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Number of events taken before the tail moves. This allows a producer that waits for space to continue early, without
/// a write to the consumer's cache line for every event.
const BATCH_EVENTS: usize = 4096;

/// Distance, in events, at which cache lines of the ring are prefetched. The lines come from the core of the thread
/// that wrote them, and the processor's own prefetchers do not look that far ahead.
const EVENTS_AHEAD: usize = 64;
const EVENTS_OF_A_LINE: usize = 64 / size_of::<RawEvent>();

/// Events of a ring that a pass takes.
pub(crate) struct Span {
    pub ring: usize,
    pub tail: u64,
    pub end: u64,
    pub head: u64,
    /// Position up to which the ring's events have been taken.
    pub at: u64,
    pub state: RingState,
}

impl Span {
    /// Returns the number of events that the pass takes from the ring. The heads come from the target, so distances are
    /// limited to the size of a ring, and sums over all rings cannot overflow.
    pub fn to_take(&self) -> u64 {
        self.end.wrapping_sub(self.tail).min(u64::from(u32::MAX))
    }
}

/// Some rings of a pass, for one thread.
pub struct Part<'a> {
    pub(crate) spans: &'a mut [Span],
    /// First ring that is not in the part.
    pub(crate) next: usize,
    pub(crate) tick_time: TickTime,
}

impl Part<'_> {
    /// Passes about `most` events, or all remaining ones, to `sink`, and moves the tails. Does not end the pass. Adds
    /// to `stats`.
    pub fn take(
        &mut self,
        region: &Region,
        sink: &mut impl Sink,
        stats: &mut PassStats,
        most: u64,
    ) {
        let mut room = most;
        while room > 0
            && let Some(span) = self.spans.get_mut(self.next)
        {
            let capacity = region.ring_mask(span.ring) + 1;
            if span.at == span.tail {
                let waiting = span.head.wrapping_sub(span.tail).min(capacity);
                stats.fullest = stats.fullest.max((waiting * 1000 / capacity) as u32);
                stats.rings += usize::from(span.tail != span.end);
            }
            let left = span.end.wrapping_sub(span.at);
            let count = left.min(room);
            if count > 0 {
                drain_ring(region, span, count, self.tick_time, sink, stats);
            }
            if span.at != span.end {
                return;
            }
            room -= count;
            self.next += 1;
        }
    }

    /// Returns true if events remain.
    pub fn has_more(&self) -> bool {
        self.next < self.spans.len()
    }
}

#[derive(Clone, Copy, Default)]
pub(crate) struct RingState {
    /// Resolved time of the last tick.
    time_ns: u64,
    /// Size from an extension event whose allocation has not arrived yet.
    extension: Option<u64>,
    /// Mean number of bytes between the ring's samples; 0 if all allocations are recorded.
    mean_bytes: u64,
    /// Words about a block so far.
    accesses: AccessWords,
}

/// Takes the next `count` events of a ring.
fn drain_ring(
    region: &Region,
    span: &mut Span,
    count: u64,
    tick_time: TickTime,
    sink: &mut impl Sink,
    stats: &mut PassStats,
) {
    let &mut Span { ring, at, end, .. } = span;
    // This comes after the load of the head.
    let capacity = region.ring_mask(ring) as usize + 1;
    let tail_word = region.ring64(ring, offset_of!(RingHeader, tail));
    if end.wrapping_sub(at) > capacity as u64 {
        // Only a damaged ring, or a thread that was still writing when the region was cleared, can lead to such a
        // distance between head and tail. New and old events in the ring are indistinguishable, so all of them are
        // skipped.
        stats.damaged += 1;
        span.at = end;
        tail_word.store(end, Release);
        return;
    }
    if at == 0 {
        // A new owner: no state of the previous owner applies.
        span.state = RingState::default();
    }
    // The owner wrote its tid before its first head, so it is valid.
    sink.begin_ring(
        ring,
        region
            .ring32(ring, offset_of!(RingHeader, tid))
            .load(Relaxed),
    );
    let words = region
        .memory
        .words(region.ring_offset(ring) + RING_PREFIX_BYTES, capacity * 2);
    let mut state = span.state;
    if state.mean_bytes != 0 {
        sink.set_sampling(state.mean_bytes);
    }
    let mut next = at;
    let mut left = count as usize;
    while left > 0 {
        let start = (next as usize) & (capacity - 1);
        let count = left.min(BATCH_EVENTS).min(capacity - start);
        let batch = &words[start * 2..(start + count) * 2];
        take_batch(batch, tick_time, &mut state, sink, stats);
        left -= count;
        next = next.wrapping_add(count as u64);
        // Release: our reads of the events come before the owner may overwrite them.
        tail_word.store(next, Release);
    }
    span.at = next;
    span.state = state;
}

#[inline]
fn take_batch(
    words: &[AtomicU64],
    tick_time: TickTime,
    state: &mut RingState,
    sink: &mut impl Sink,
    stats: &mut PassStats,
) {
    let mut time_ns = match tick_time {
        TickTime::Fixed(now) => now,
        _ => state.time_ns,
    };
    let mut extension = state.extension;
    let mut events = 0;
    let (pairs, _) = words.as_chunks::<2>();
    for (i, [word0, word1]) in pairs.iter().enumerate() {
        if i % EVENTS_OF_A_LINE == 0
            && let Some(later) = pairs.get(i + EVENTS_AHEAD)
        {
            memhook_abi::prefetch(later);
        }
        let raw = RawEvent {
            word0: word0.load(Relaxed),
            word1: word1.load(Relaxed),
        };
        // Nearly all events are of these two kinds. Each kind has a separate call, in which the compiler knows the
        // kind. So the kind is tested once, and an event stays in registers.
        if raw.is(Op::Release) {
            let event = raw.unpack_as(Op::Release);
            sink.event(event, u64::from(event.size), time_ns);
            events += 1;
            continue;
        }
        if raw.is(Op::Allocation) {
            let event = raw.unpack_as(Op::Allocation);
            let mut size = u64::from(event.size);
            if event.size == u32::MAX {
                size = extension.take().unwrap_or(size);
            }
            sink.event(event, size, time_ns);
            events += 1;
            continue;
        }
        let Some(event) = raw.unpack() else {
            stats.damaged += 1;
            continue;
        };
        match event.op {
            Op::Tick => time_ns = tick_time.resolve(event.value),
            Op::SizeExtension => extension = Some(event.value),
            Op::SamplingChange => {
                state.mean_bytes = event.value;
                sink.set_sampling(state.mean_bytes);
            }
            Op::Access => {
                if let Some(accesses) = state.accesses.take(&event, tick_time) {
                    sink.access(accesses);
                }
            }
            Op::CallTime => sink.call_time(event.stack, event.value, event.sequence),
            Op::Mapped | Op::Unmapped | Op::Discarded => {
                sink.mapping(event, extension.take().unwrap_or(0), time_ns);
                events += 1;
            }
            _ => {
                sink.event(event, u64::from(event.size), time_ns);
                events += 1;
            }
        }
    }
    state.time_ns = time_ns;
    state.extension = extension;
    stats.events += events;
}
