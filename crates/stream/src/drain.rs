//! Emptying the rings.
//!
//! A pass reads the heads of all rings first, and then takes every event up to those heads. It never reads a head
//! twice: a consumer that follows the producer closely makes the ring's cache lines travel between the cores for every
//! event.
//!
//! For a ring that was emptied and has had no event since, a pass reads only the head. It must do that in every pass:
//! an event in the ring may have happened before an event in another ring, and must arrive at most one pass later. With
//! a ring per thread and most threads asleep, the heads are the main cost of a pass.
//!
//! If the hook folds pairs, it may change the last events of a ring as long as they have not been claimed (its
//! `folding.hpp` explains why that is safe). A pass then takes the events that the previous pass claimed, and claims
//! the new ones.

use crate::Region;
use crate::part::{Part, RingState, Span};
use memhook_abi::{Accesses, Event, Op, RingHeader, flags};
use std::mem::offset_of;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

/// Minimum time between claiming an event and taking it: longer than any store needs to become visible. See the hook's
/// `folding.hpp`.
const CLAIM_TO_TAKE: Duration = Duration::from_micros(50);

/// Number of rings ahead for which heads are prefetched. Each head is on a page of its own, and the pages are so
/// regularly spaced that most heads share a few cache sets.
const RINGS_AHEAD: usize = 8;

/// Receiver of the events of one pass.
pub trait Sink {
    /// Begins the events of this ring, published by the thread `tid` (target's pid namespace).
    fn begin_ring(&mut self, ring: usize, tid: u32);
    /// Sets the mean number of bytes between recorded allocations of this ring from here on; 0 if all are recorded
    /// ([`memhook_abi::flags::ADAPT_WHEN_FULL`], [`memhook_abi::flags::BUDGET`]). Every ring begins with all
    /// allocations recorded. The number comes from the target.
    fn set_sampling(&mut self, _mean_bytes: u64) {}
    /// Takes the reads and writes of the block whose release is the next event of this ring.
    fn access(&mut self, _accesses: Accesses) {}
    /// Takes the time that an allocation of `size` bytes spent in the allocator. The event of the allocation itself
    /// follows, or is lost. `counts`: ticks of the time stamp counter; `u32::MAX` also represents larger numbers. The
    /// numbers come from the target.
    fn call_time(&mut self, _stack: u32, _size: u64, _counts: u32) {}
    /// Takes one event. Ticks, size extensions, sampling changes, and events about mappings are not passed to this
    /// method. `size` is the requested size in bytes, including any extension; `time_ns` is the time of the ring's last
    /// tick.
    fn event(&mut self, event: Event, size: u64, time_ns: u64);
    /// Takes one event about a mapping. `bytes` is 0 for everything attached at the address, regardless of its size.
    fn mapping(&mut self, _event: Event, _bytes: u64, _time_ns: u64) {}
    /// Ends the pass.
    fn end_pass(&mut self);
}

/// Result of one pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassStats {
    /// Events passed to the sink.
    pub events: u64,
    /// Rings that had events.
    pub rings: usize,
    /// Damaged ring entries, and entries skipped because the ring's counters were damaged.
    pub damaged: u64,
    /// Level of the fullest ring, in thousandths.
    pub fullest: u32,
    /// Lower bound on the number of events that are left for the next pass.
    pub left: u64,
}

impl PassStats {
    /// Adds the result of other rings.
    pub fn and(self, other: PassStats) -> PassStats {
        PassStats {
            events: self.events + other.events,
            rings: self.rings + other.rings,
            damaged: self.damaged + other.damaged,
            fullest: self.fullest.max(other.fullest),
            left: self.left.saturating_add(other.left),
        }
    }
}

/// Conversion of tick values to times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TickTime {
    /// Nanoseconds since the attach (the coarse clock).
    Nanoseconds,
    /// Another counter (TSC, CLOCK_MONOTONIC): `(tick - origin) * scale` nanoseconds.
    Counter {
        /// The counter at the attach.
        origin: u64,
        /// Nanoseconds per count.
        scale: f64,
    },
    /// Ticks are ignored. Every event gets this time, which is in nanoseconds since the attach.
    Fixed(u64),
}

impl TickTime {
    pub(crate) fn resolve(self, tick: u64) -> u64 {
        match self {
            TickTime::Nanoseconds => tick,
            TickTime::Counter { origin, scale } => {
                (tick.saturating_sub(origin) as f64 * scale) as u64
            }
            TickTime::Fixed(now) => now,
        }
    }
}

/// Consumer of all rings.
pub struct Drain {
    tick_time: TickTime,
    states: Vec<RingState>,
    /// Head of each ring when it was last found or made empty. The ring has no events as long as its head stays the
    /// same.
    emptied: Vec<Option<u64>>,
    /// Number of freed rings when `emptied` was recorded. If a ring was freed since then, the same head value belongs
    /// to other events. `None` if a ring was being freed.
    freed: Option<u64>,
    /// Spans of the rings that had events in this pass.
    spans: Vec<Span>,
    /// Time of the last claim of events.
    claimed_at: Option<Instant>,
}

impl Default for Drain {
    fn default() -> Self {
        Self::new()
    }
}

impl Drain {
    /// Creates a consumer for a region that was just initialized.
    pub fn new() -> Self {
        Self {
            tick_time: TickTime::Nanoseconds,
            states: Vec::new(),
            emptied: Vec::new(),
            freed: None,
            spans: Vec::new(),
            claimed_at: None,
        }
    }

    /// Sets the conversion of ticks from the next pass on.
    pub fn set_tick_time(&mut self, tick_time: TickTime) {
        self.tick_time = tick_time;
    }

    /// Takes everything that was published before the pass began, and moves the tails accordingly. If the hook folds
    /// pairs, takes what was published before the previous pass began.
    pub fn pass(&mut self, region: &Region, sink: &mut impl Sink) -> PassStats {
        let left = self.look(region);
        self.take(region, sink, left)
    }

    /// Runs the last pass, when no thread records any more, and takes everything.
    pub fn last_pass(&mut self, region: &Region, sink: &mut impl Sink) -> PassStats {
        let left = self.look_at_rest(region);
        self.take(region, sink, left)
    }

    /// Iterates over the rings that had events when the last pass began, with their numbers.
    pub fn waiting(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let spans = self.spans.iter();
        spans.map(|span| (span.ring, span.head.wrapping_sub(span.tail)))
    }

    /// Returns the number of events that the pass takes.
    pub fn to_take(&self) -> u64 {
        self.spans.iter().map(Span::to_take).sum()
    }

    /// Begins a pass that several threads share: finds the events ([`Drain::pass`]). This method reads all heads, so
    /// that no part contains an event that was published after another part's heads were read. Returns the number of
    /// events that are left for the next pass.
    pub fn look(&mut self, region: &Region) -> u64 {
        let folds = region.flags() & flags::FOLD_PAIRS != 0;
        if let Some(rest) = self
            .claimed_at
            .and_then(|at| CLAIM_TO_TAKE.checked_sub(at.elapsed()))
        {
            std::thread::sleep(rest);
        }
        self.look_at_heads(region, folds)
    }

    /// Like [`Drain::look`], for the last pass.
    pub fn look_at_rest(&mut self, region: &Region) -> u64 {
        self.look_at_heads(region, false)
    }

    /// Divides the events into at most `count` parts of about the same size. Each part but the last has slightly more
    /// than an equal share.
    pub fn parts(&mut self, count: usize) -> impl Iterator<Item = Part<'_>> {
        let each = self.to_take() / count.max(1) as u64 + 1;
        let tick_time = self.tick_time;
        let mut left = &mut self.spans[..];
        std::iter::from_fn(move || {
            let (mut events, mut end) = (0, 0);
            while end < left.len() && events < each {
                events += left[end].to_take();
                end += 1;
            }
            let (spans, rest) = std::mem::take(&mut left).split_at_mut(end);
            left = rest;
            (end > 0).then_some(Part {
                spans,
                next: 0,
                tick_time,
            })
        })
    }

    /// Ends the pass, after all parts have been taken.
    pub fn end_parts(&mut self) {
        for span in &self.spans {
            self.states[span.ring] = span.state;
        }
    }

    fn take(&mut self, region: &Region, sink: &mut impl Sink, left: u64) -> PassStats {
        let mut stats = PassStats {
            left,
            ..PassStats::default()
        };
        let mut all = Part {
            spans: &mut self.spans,
            next: 0,
            tick_time: self.tick_time,
        };
        all.take(region, sink, &mut stats, u64::MAX);
        self.end_parts();
        sink.end_pass();
        stats
    }

    /// Returns a lower bound on the number of events that are left for the next pass.
    fn look_at_heads(&mut self, region: &Region, claims: bool) -> u64 {
        let used = region.rings_used();
        self.states
            .resize(used.max(self.states.len()), RingState::default());
        self.emptied.resize(used.max(self.emptied.len()), None);
        let freed = region.rings_freed();
        if freed.is_none() || freed != self.freed {
            self.emptied.fill(None);
        }
        self.freed = freed;
        self.spans.clear();
        let mut left = 0u64;
        for ring in 0..used {
            if ring + RINGS_AHEAD < used {
                let later = region.ring64(ring + RINGS_AHEAD, offset_of!(RingHeader, head));
                memhook_abi::prefetch(later);
            }
            let word = |offset| region.ring64(ring, offset);
            let head = word(offset_of!(RingHeader, head)).load(Acquire);
            if self.emptied[ring] == Some(head) {
                continue;
            }
            let (tail, head) = ends(region, ring);
            let mut end = head;
            if claims && head != tail {
                end = claimed_end(region, ring, tail, head);
                // Events beyond the ring's size are damage, which is counted when they are taken.
                left = left.saturating_add(head.wrapping_sub(end));
            }
            self.emptied[ring] = (end == head).then_some(head);
            if head != tail {
                self.spans.push(Span {
                    ring,
                    tail,
                    end,
                    head,
                    at: tail,
                    state: self.states[ring],
                });
            }
        }
        if left > 0 {
            self.claimed_at = Some(Instant::now());
        }
        left
    }
}

/// Returns the tail and head of a ring, both of the same owner: a ring without events may be freed at any time.
fn ends(region: &Region, ring: usize) -> (u64, u64) {
    /// Maximum number of attempts, because rings are not freed that often. A target that changes the tail itself harms
    /// only its own events: events beyond the ring's size are damage.
    const LOOKS: u32 = 100;
    let tail_word = region.ring64(ring, offset_of!(RingHeader, tail));
    let head_word = region.ring64(ring, offset_of!(RingHeader, head));
    let mut ends = (0, 0);
    for _ in 0..LOOKS {
        ends = (tail_word.load(Acquire), head_word.load(Acquire));
        // Only this process moves the tail. The exception is the code that frees a ring. It requires a ring without
        // events, and sets the head to 0 before the tail.
        if tail_word.load(Relaxed) == ends.0 {
            break;
        }
    }
    ends
}

/// Claims all events of a ring with events from `tail` to `head`, and returns the end of the events to take.
fn claimed_end(region: &Region, ring: usize, tail: u64, head: u64) -> u64 {
    // This must precede the claim, because events claimed now may still change.
    let claimed_word = region.ring64(ring, offset_of!(RingHeader, claimed));
    let claimed = claimed_word.load(Relaxed);
    let folding = region
        .ring64(ring, offset_of!(RingHeader, folding))
        .load(Acquire);
    claimed_word.store(head, Release);
    let waiting = head.wrapping_sub(tail);
    // The head may have moved back since the claim.
    let mut taken = claimed.wrapping_sub(tail).min(waiting);
    if claimed.wrapping_sub(tail) as i64 <= 0 {
        taken = 0;
    }
    // An owner that has continued since then has abandoned the fold: by longjmp out of a signal handler.
    let under_way = folding != 0 && head.wrapping_add(2).wrapping_sub(folding) <= 1;
    if under_way {
        // The allocation is the event before folding - 1; the event before the allocation changes only if it is a pair.
        let allocation = folding.wrapping_sub(2);
        let before = allocation.wrapping_sub(1);
        let first = match region.event_op(ring, before) {
            Some(Op::Pair) => before,
            _ => allocation,
        };
        let untouched = first.wrapping_sub(tail);
        // The end must not be below the tail: events that were taken had been claimed.
        taken = taken.min(if (untouched as i64) < 0 { 0 } else { untouched });
    }
    tail.wrapping_add(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each ring is in exactly one part, and there are no more parts than threads, regardless of the heads that a
    /// target has written.
    #[test]
    fn every_ring_is_in_a_part() {
        for ends in [[3, 0, 3, 0], [0; 4], [u64::MAX, u64::MAX / 2, 1 << 63, 5]] {
            for count in 1..6 {
                let mut drain = Drain::new();
                let spans = ends.iter().enumerate().map(|(ring, &end)| Span {
                    ring,
                    tail: 0,
                    end,
                    head: end,
                    at: 0,
                    state: RingState::default(),
                });
                drain.spans.extend(spans);
                let parts: Vec<_> = drain.parts(count).collect();
                assert!(parts.len() <= count, "{ends:?} in {count}");
                let rings: usize = parts.iter().map(|part| part.spans.len()).sum();
                assert_eq!(rings, ends.len(), "{ends:?} in {count}");
            }
        }
    }
}
