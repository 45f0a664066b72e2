//! Rings, and the stacks that their events refer to.

use super::shared_struct::{Address, shared_struct};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Values of [`RingHeader::state`].
pub mod ring_state {
    /// The ring can be claimed.
    pub const FREE: u32 = 0;
    /// The ring belongs to the thread [`super::RingHeader::tid`](crate::RingHeader).
    pub const CLAIMED: u32 = 1;
}

shared_struct! {
    /// Header of a ring. The producer's and the consumer's words are 128 bytes apart, because the adjacent-line
    /// prefetcher loads lines in pairs.
    report RingHeader {
        /// Number of events ever published. The owning thread writes it with release ordering.
        head: AtomicU64,
        /// While `head` is at least one record below this value, the producer need not read `tail`.
        limit: u64,
        /// Frame of the outermost wrapper of this thread, with bit 0 set while recording; 0: none.
        outer: u64,
        /// Time of the last tick written.
        last_tick: u64,
        /// Version of the module list under which the caches were filled, plus 1; 0 to clear them.
        cache_version: u64,
        /// Number of event slots - 1. The owner writes it, and raises it when [`RingHeader::granted`] is raised.
        mask: AtomicU64,
        /// Remembered backtraces - 1.
        memo_mask: u64,
        /// Sampling of the owner, see the hook's `adapting.hpp`; 0: every allocation is recorded.
        sampling: u64,
        /// Entries of the PC cache - 1.
        pc_mask: u64,
        /// `head` + 1 while the owner may change the last two events, otherwise 0.
        folding: AtomicU64,
        /// Bytes until the next sampled allocation, signed.
        sample_left: u64,
        /// State of the owner's random numbers; 0 before their first use.
        random: u64,
        /// Time by the clock word. While the owner samples: the earliest end of the sampling. Otherwise: when it began
        /// to record every allocation again.
        sampling_turn_ns: u64,
        /// Minimum time for which the owner samples after its ring was nearly full.
        sampling_ns: u64,
        /// Unwindings because no remembered backtrace matched.
        memo_misses: AtomicU64,
        /// Value of `head` some unwindings ago, << 1; bit 0: unwindings were frequent before that.
        memo_window: u64,
        /// Events dropped because the ring was full.
        dropped: AtomicU64,
        /// Calls skipped because they came from inside the hook (signal handlers).
        reentrant: AtomicU64,
        /// Stacks cut short.
        truncated: AtomicU64,
        /// The owner's thread pointer (fs base): the TCB is at the top of a thread's stack.
        thread_pointer: AtomicU64,
        /// Stack pointer at the claim, from which the attacher finds the bounds.
        first_sp: AtomicU64,
        /// Remembered backtraces checked ([`flags::CHECK_MEMO`]).
        memo_checked: AtomicU64,
        /// Number of these backtraces that were wrong.
        memo_wrong: AtomicU64,
        /// Calls that were skipped since `nested_head` as part of the same outer call.
        nested: u64,
        /// `head` at the first of these calls.
        nested_head: u64,
        /// Time that the owner has recently waited for space ([`flags::ADAPT_WHEN_FULL`]).
        waited_ns: u64,
        /// Time of that sum, by the clock word.
        waited_at_ns: u64,
        /// Number of bytes to the next sample, in addition to `sample_left` ([`flags::BUDGET`]).
        sample_rest: u64,
        /// Shift applied to intervals between samples, which are drawn for a mean of [`Control::sample_bytes`].
        sample_shift: u64,
        /// Value of `head` at which the owner next checks its orders and times a call, or draws an allocation.
        next_look: u64,
        /// For each described heap: the frame of the current call that allocates in it, see the hook's `described.hpp`;
        /// 0: none.
        described_frames: [u64; 8],
        /// For each described heap: the block that this call replaces; 0: none.
        described_olds: [u64; 8],
        /// Value of `head` at the event that was drawn for a look ([`flags::LOOKS`]).
        drawn_head: u64,
        /// Time stamp at the beginning of a timed part ([`flags::BUDGET`]); 0 if nothing is timed.
        timed_from: u64,
        /// Cost of that time stamp itself.
        timed_stamp: u64,
        /// Number of allocations before the next one whose allocator call is timed ([`flags::CALL_TIMES`]).
        calls_to_timed: u64,
        /// The time stamp before that call.
        call_from: u64,
        /// Cost of a time stamp, measured directly before it.
        call_stamp: u64,
        /// Time of the call, until its event is written; 0: no call was timed.
        call_counts: u64,
        /// Keeps the consumer's line apart.
        producer_pad: [u64; 5],
        /// Events taken; written by the attacher.
        tail: AtomicU64,
        /// Number of events that the owner may no longer change; written by the attacher.
        claimed: AtomicU64,
        /// Number of event slots that the owner may use, a power of two; 0 for the initial number.
        granted: AtomicU64,
        /// Not 0: the owner may use all of the space for remembered backtraces; 2: also the space for Python frames.
        granted_caches: AtomicU64,
        /// Keeps the state apart from the tail.
        consumer_pad: [u64; 15],
        /// State: see [`ring_state`].
        state: AtomicU32,
        /// Kernel thread id of the owner, in the target's pid namespace.
        tid: AtomicU32,
    }
}

shared_struct! {
    /// Bounds of the stack of a ring's owner, within which the hook loads words without the kernel's help. The ring at
    /// `offset` in the region has the entry `offset >>` [`super::BOUNDS_SHIFT`].
    guide StackBounds {
        /// Lowest address; 0 if unknown.
        low: Address,
        /// Address after the last byte; 0 if unknown.
        high: Address,
        /// Thread, by the id in its ring.
        tid: u64,
        /// Unused.
        unused: u64,
    }
}

shared_struct! {
    /// Header of an interned stack. The frames follow it (u64 avma return addresses, innermost first).
    report StackEntry {
        /// Hash of the frames.
        hash: u32,
        /// Function id of the allocation.
        function: u8,
        /// 1: the stack was cut short.
        truncated: u8,
        /// Number of frames.
        depth: u16,
    }
}
