//! Ring headers: owners, stack bounds, loss counters, recycling.

use crate::Region;
use crate::memory::tally;
use memhook_abi::{
    BOUNDS_OFFSET, BOUNDS_SHIFT, Control, LEAST_RING_BYTES, MAX_RINGS, Op, RING_PREFIX_BYTES,
    RawEvent, RingHeader, StackBounds, ring_state,
};
use std::mem::offset_of;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const EVENT_BYTES: u64 = size_of::<RawEvent>() as u64;

/// Losses of events, and statistics of backtraces. All counts only grow during an attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Events dropped because a ring was full.
    pub dropped: u64,
    /// Calls skipped because they came from a signal handler that had interrupted the hook.
    pub reentrant: u64,
    /// Backtraces cut short.
    pub truncated: u64,
    /// Events of threads that found no free ring.
    pub ringless: u64,
    /// Number of backtraces that were unwound because no remembered backtrace matched. This is not a loss.
    pub unwound: u64,
    /// Remembered backtraces that were verified by unwinding again.
    pub memo_checked: u64,
    /// Number of these backtraces that were wrong.
    pub memo_wrong: u64,
    /// Backtraces that did not fit into the stack table.
    pub stacks_dropped: u64,
    /// Libraries that the target opened and used before their slots were patched. Their calls may be missing.
    pub unwatched_libraries: u64,
}

impl Losses {
    /// Returns the number of events that were lost.
    pub fn events(&self) -> u64 {
        self.dropped + self.ringless
    }
}

/// A ring at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingView {
    /// Number of the ring.
    pub index: usize,
    /// Thread id of the owner, in the target's pid namespace; 0 while it is being claimed.
    pub tid: u32,
    /// State, one of [`memhook_abi::ring_state`].
    pub state: u32,
    /// Number of events to take.
    pub waiting: u64,
}

/// Mark of a thread inside a wrapper, from its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Number of the ring.
    pub ring: usize,
    /// Owner of the ring.
    pub tid: u32,
    /// The wrapper's frame (avma).
    pub frame: u64,
    /// True if the thread is running the hook's own code; false if it is running the called function.
    pub records: bool,
}

impl Region {
    /// Returns the number of rings that were ever claimed. All their indices are below this number.
    pub fn rings_used(&self) -> usize {
        let used = self.memory.u32(tally!(rings_used)).load(Acquire);
        (used as usize).min(MAX_RINGS)
    }

    /// Returns a value that identifies the owners of all rings at this moment; `None` if an event waits in a ring.
    pub fn owners_at_rest(&self) -> Option<u64> {
        let mut owners = 0u64;
        for ring in 0..self.rings_used() {
            let word = |field| self.ring64(ring, field);
            let tail = word(offset_of!(RingHeader, tail)).load(Relaxed);
            // If the ring is freed in the meantime, head and tail become 0, the head first. This check then fails, and
            // a later one succeeds.
            if word(offset_of!(RingHeader, head)).load(Acquire) != tail {
                return None;
            }
            let tid = self.ring32(ring, offset_of!(RingHeader, tid));
            // FNV-1a, word by word: the order matters.
            owners = (owners ^ u64::from(tid.load(Acquire)) ^ 1 << 32)
                .wrapping_mul(0x0000_0100_0000_01b3);
        }
        Some(owners)
    }

    /// Iterates over the rings that were ever claimed.
    pub fn rings(&self) -> impl Iterator<Item = RingView> + '_ {
        (0..self.rings_used()).map(|index| {
            let state = self
                .ring32(index, offset_of!(RingHeader, state))
                .load(Acquire);
            let head = self
                .ring64(index, offset_of!(RingHeader, head))
                .load(Acquire);
            let tail = self
                .ring64(index, offset_of!(RingHeader, tail))
                .load(Relaxed);
            RingView {
                index,
                tid: self
                    .ring32(index, offset_of!(RingHeader, tid))
                    .load(Acquire),
                state,
                waiting: head.wrapping_sub(tail),
            }
        })
    }

    /// Tells the hook the bounds of the stack of a ring's owner (`low..high`, avma).
    pub fn set_stack_bounds(&self, ring: usize, low: u64, high: u64) {
        self.set_stack_of(ring, low, high, 0);
    }

    /// Like [`Self::set_stack_bounds`], for a thread whose id the hook compares with its own.
    pub fn set_stack_of(&self, ring: usize, low: u64, high: u64, tid: u64) {
        // The hook reads without the kernel's help if low <= sp < high, so the range must never be larger than the
        // actual one: close the range, move one end, open it with the other.
        let at = bounds_offset(self.ring_offset(ring));
        let tell = |field: usize, value| self.memory.tell64(at + field, value, Release);
        tell(offset_of!(StackBounds, high), 0);
        tell(offset_of!(StackBounds, tid), tid);
        tell(offset_of!(StackBounds, low), low);
        tell(offset_of!(StackBounds, high), high);
        self.stacks_told().fetch_max(ring + 1, Relaxed);
    }

    /// Forgets all stacks.
    pub(crate) fn forget_stacks(&self) {
        for ring in 0..self.stacks_told().swap(0, Relaxed) {
            self.set_stack_bounds(ring, 0, 0);
        }
        self.stacks_told().store(0, Relaxed);
    }

    /// Returns the number of event slots, minus 1, that the ring's owner uses at this moment. It is never more than was
    /// granted. Read this after the head: the hook's `ring.hpp` explains why any later value is valid.
    #[inline]
    pub(crate) fn ring_mask(&self, ring: usize) -> u64 {
        let first = self.control64(offset_of!(Control, first_ring_bytes)) / EVENT_BYTES;
        let granted = match self.places[ring].load(Relaxed) {
            0 => first,
            places => places,
        };
        let places = self
            .ring64(ring, offset_of!(RingHeader, mask))
            .load(Relaxed);
        let places = places.wrapping_add(1).min(granted);
        let most = self.ring_bytes() as u64 / EVENT_BYTES;
        let least = LEAST_RING_BYTES as u64 / EVENT_BYTES;
        if places.is_power_of_two() {
            places.clamp(least, most) - 1
        } else {
            least - 1
        }
    }

    /// Returns the op of the event with this number, counted like heads and tails; `None` if it is not an event.
    pub(crate) fn event_op(&self, ring: usize, number: u64) -> Option<Op> {
        let place = number as usize & self.ring_mask(ring) as usize;
        let offset = self.ring_offset(ring) + RING_PREFIX_BYTES + place * size_of::<RawEvent>();
        let word0 = self.memory.u64(offset).load(Relaxed);
        Op::from_code(word0 >> 45 & 7)
    }

    /// Returns true if a thread is certainly inside a wrapper.
    pub fn awaits_threads(&self) -> bool {
        !self.marked_inside().is_empty()
    }

    /// Returns the marks of threads that are inside a wrapper, or have left a wrapper in a way that the hook does not
    /// see.
    pub fn marked_inside(&self) -> Vec<Mark> {
        let outer = |ring: &RingView| self.ring64(ring.index, offset_of!(RingHeader, outer));
        let mark = |ring: RingView| {
            let outer = outer(&ring).load(Acquire);
            Mark {
                ring: ring.index,
                tid: ring.tid,
                frame: outer & !1,
                records: outer & 1 != 0,
            }
        };
        let marks = self.rings().map(mark);
        marks.filter(|m| m.frame != 0 || m.records).collect()
    }

    /// Keeps a ring, in a region that was just cleared, for a thread that may still be inside the allocator's function.
    /// No other thread gets the ring. The thread finds no space in it and does not wait for any, because its ring
    /// belongs to another attach.
    pub(crate) fn retain(&self, mark: &Mark) {
        let state = self.ring32(mark.ring, offset_of!(RingHeader, state));
        state.store(ring_state::CLAIMED, Relaxed);
        self.ring32(mark.ring, offset_of!(RingHeader, tid))
            .store(mark.tid, Relaxed);
        self.ring64(mark.ring, offset_of!(RingHeader, outer))
            .store(mark.frame, Relaxed);
        self.memory
            .u32(tally!(rings_used))
            .fetch_max(mark.ring as u32 + 1, Release);
    }

    /// Clears the mark of a ring, because its owner is known not to be inside a wrapper.
    pub fn clear_mark(&self, ring: usize) {
        self.ring64(ring, offset_of!(RingHeader, outer))
            .store(0, Release);
    }

    /// Returns the stack pointer of the owner when it claimed the ring (avma); 0 if unclaimed.
    pub fn first_sp(&self, ring: usize) -> u64 {
        self.ring64(ring, offset_of!(RingHeader, first_sp))
            .load(Acquire)
    }

    /// Returns the thread pointer (fs base, avma) of the owner; 0 if the ring is unclaimed.
    pub fn thread_pointer(&self, ring: usize) -> u64 {
        self.ring64(ring, offset_of!(RingHeader, thread_pointer))
            .load(Acquire)
    }

    /// Returns the end of the stack that the hook received for this ring (avma); 0 if none.
    pub fn stack_high(&self, ring: usize) -> u64 {
        let at = bounds_offset(self.ring_offset(ring));
        self.memory.told64(at + offset_of!(StackBounds, high))
    }

    /// Makes a ring claimable again after its owner has ended. Returns false and does nothing if the ring is already
    /// free, or still has events, which the caller must drain first.
    ///
    /// Frees its memory. Adds its loss counters to a total of this `Region`, so that [`Region::losses`] never
    /// decreases.
    pub fn free_ring(&self, ring: usize) -> bool {
        let word = |field| self.ring64(ring, field);
        let state = self.ring32(ring, offset_of!(RingHeader, state));
        let (head, tail) = (
            word(offset_of!(RingHeader, head)),
            word(offset_of!(RingHeader, tail)),
        );
        if state.load(Acquire) == ring_state::FREE || head.load(Acquire) != tail.load(Relaxed) {
            return false;
        }
        self.freeing(|| self.put_back(ring));
        true
    }

    /// Resets a ring to its state before its first owner.
    fn put_back(&self, ring: usize) {
        let word = |field| self.ring64(ring, field);
        let state = self.ring32(ring, offset_of!(RingHeader, state));
        self.retire(ring);
        self.set_stack_bounds(ring, 0, 0);
        if self.empty_ring(ring) {
            return;
        }
        // The pages remain, and their words are reset one by one. A concurrent pass must not find the new tail with the
        // old head.
        word(offset_of!(RingHeader, head)).store(0, Relaxed);
        word(offset_of!(RingHeader, tail)).store(0, Release);
        for field in [
            offset_of!(RingHeader, limit),
            offset_of!(RingHeader, claimed),
            offset_of!(RingHeader, granted),
            offset_of!(RingHeader, granted_caches),
            offset_of!(RingHeader, folding),
            offset_of!(RingHeader, outer),
            offset_of!(RingHeader, last_tick),
            offset_of!(RingHeader, first_sp),
            offset_of!(RingHeader, thread_pointer),
        ] {
            word(field).store(0, Relaxed);
        }
        self.ring32(ring, offset_of!(RingHeader, tid))
            .store(0, Relaxed);
        // Release: the next owner, which claims with acquire, sees an empty ring.
        state.store(ring_state::FREE, Release);
    }

    /// Moves a ring's loss counters into the total of this `Region`.
    fn retire(&self, ring: usize) {
        for (total, field) in self.retired.iter().zip(LOSS_FIELDS) {
            total.fetch_add(self.ring64(ring, field).swap(0, Relaxed), Relaxed);
        }
    }

    /// Like [`Self::retire`], for all rings.
    pub(crate) fn retire_losses(&self) {
        for ring in 0..self.rings_used() {
            self.retire(ring);
        }
    }

    /// Returns the losses since the attach.
    pub fn losses(&self) -> Losses {
        let mut sums = [0u64; LOSS_FIELDS.len()];
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = self.retired[i].load(Relaxed);
            for ring in 0..self.rings_used() {
                *sum = sum.wrapping_add(self.ring64(ring, LOSS_FIELDS[i]).load(Relaxed));
            }
            *sum = believable(*sum);
        }
        Losses {
            dropped: sums[0],
            reentrant: sums[1],
            truncated: sums[2],
            ringless: self.counted(tally!(ringless_events)),
            unwound: sums[3],
            memo_checked: sums[4],
            memo_wrong: sums[5],
            stacks_dropped: self.counted(tally!(stacks_dropped)),
            unwatched_libraries: self.unwatched_libraries(),
        }
    }

    /// Returns [`Losses::unwatched_libraries`].
    pub fn unwatched_libraries(&self) -> u64 {
        self.counted(tally!(unwatched_libraries))
    }

    /// Returns a counter of the region.
    pub(crate) fn counted(&self, offset: usize) -> u64 {
        believable(self.reported64(offset))
    }

    #[inline]
    pub(crate) fn ring64(&self, ring: usize, field: usize) -> &std::sync::atomic::AtomicU64 {
        self.memory.u64(self.ring_offset(ring) + field)
    }

    #[inline]
    pub(crate) fn ring32(&self, ring: usize, field: usize) -> &std::sync::atomic::AtomicU32 {
        self.memory.u32(self.ring_offset(ring) + field)
    }
}

/// Returns the offset of the bounds of the owner's stack, for a ring at this offset.
pub(crate) const fn bounds_offset(ring_offset: usize) -> usize {
    BOUNDS_OFFSET + (ring_offset >> BOUNDS_SHIFT) * size_of::<StackBounds>()
}

/// Returns a count from the target, limited so that a sum of such counts, even over thousands of processes, never
/// overflows.
fn believable(count: u64) -> u64 {
    const MOST: u64 = 1 << 48;
    count.min(MOST)
}

/// Loss counters of a ring, in the order of `Region::retired`.
pub(crate) const LOSS_FIELDS: [usize; 6] = [
    offset_of!(RingHeader, dropped),
    offset_of!(RingHeader, reentrant),
    offset_of!(RingHeader, truncated),
    offset_of!(RingHeader, memo_misses),
    offset_of!(RingHeader, memo_checked),
    offset_of!(RingHeader, memo_wrong),
];
