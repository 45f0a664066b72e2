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
    /// Head of a ring. The producer's and the consumer's words keep 128 bytes apart, because the adjacent line
    /// prefetcher loads lines in pairs.
    report RingHeader {
        /// Events ever published; the owning thread writes it with release order.
        head: AtomicU64,
        /// Value of `head` up to which, minus a record, the producer need not read `tail`.
        limit: u64,
        /// Frame of the outermost wrapper of this thread, with bit 0 set while recording; 0: none.
        outer: u64,
        /// Time of the last tick written.
        last_tick: u64,
        /// Version of the module list under which the caches were filled, plus 1; 0 to clear them.
        cache_version: u64,
        /// Places for events - 1; written by the owner, raised when [`RingHeader::granted`] is raised.
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
        /// By the clock word: the time when the owner began to record every allocation again; or, while it samples, the
        /// earliest end of the sampling.
        sampling_turn_ns: u64,
        /// Shortest time for which the owner samples after its ring got nearly full.
        sampling_ns: u64,
        /// Unwindings because no remembered backtrace matched.
        memo_misses: AtomicU64,
        /// Earlier value of `head`, some unwindings ago, << 1; bit 0: unwindings were frequent before that.
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
        /// Bytes to the next sample beyond `sample_left` ([`flags::BUDGET`]).
        sample_rest: u64,
        /// Shift applied to intervals between samples, which are drawn for a mean of [`Control::sample_bytes`].
        sample_shift: u64,
        /// `head` at which the owner next checks its orders and times a call; or draws an allocation.
        next_look: u64,
        /// For each described heap: the frame of the current call that allocates in it, see the hook's `described.hpp`;
        /// 0: none.
        described_frames: [u64; 8],
        /// For each described heap: the block that this call replaces; 0: none.
        described_olds: [u64; 8],
        /// `head` at the event that was drawn for a look ([`flags::LOOKS`]).
        drawn_head: u64,
        /// Time stamp at the beginning of a timed part ([`flags::BUDGET`]); 0 if nothing is timed.
        timed_from: u64,
        /// Cost of that time stamp itself.
        timed_stamp: u64,
        /// Allocations until the next allocation whose allocator call is timed ([`flags::CALL_TIMES`]).
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
        /// Events that the owner may no longer change; written by the attacher.
        claimed: AtomicU64,
        /// Places for events that the owner may use, a power of two; 0 for the initial places.
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
    /// Head of an interned stack; its frames (u64 avma return addresses, innermost first) follow.
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
