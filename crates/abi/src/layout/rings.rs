//! Rings, and the stacks that their events name.

use super::shared_struct::{Address, shared_struct};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Values of [`RingHeader::state`].
pub mod ring_state {
    /// Can be claimed.
    pub const FREE: u32 = 0;
    /// Belongs to the thread [`super::RingHeader::tid`](crate::RingHeader).
    pub const CLAIMED: u32 = 1;
}

shared_struct! {
    /// Head of a ring. The producer's and the consumer's words keep 128 bytes apart: the adjacent
    /// line prefetcher pulls lines in pairs.
    report RingHeader {
        /// Events ever published; written by the owning thread with release order.
        head: AtomicU64,
        /// The producer need not look at `tail` as long as `head` stays so far below this that a
        /// record fits.
        limit: u64,
        /// The frame of the outermost wrapper of this thread, bit 0: while recording. 0: none.
        outer: u64,
        /// Time of the last tick written.
        last_tick: u64,
        /// Version of the module list that the caches were filled under, plus 1; 0: clear them.
        cache_version: u64,
        /// Places for events - 1; written by the owner, raised when [`RingHeader::granted`] is.
        mask: AtomicU64,
        /// Remembered backtraces - 1.
        memo_mask: u64,
        /// How the owner records, see the hook's `adapting.hpp`; 0: every allocation.
        sampling: u64,
        /// Entries of the PC cache - 1.
        pc_mask: u64,
        /// `head` + 1 while the owner may change the last two events, else 0.
        folding: AtomicU64,
        /// Bytes until the next sampled allocation, signed.
        sample_left: u64,
        /// State of the owner's random numbers; 0: not yet in use.
        random: u64,
        /// When the owner began to record every allocation again, or, while it samples, until when it
        /// does at least; by the clock word.
        sampling_turn_ns: u64,
        /// For how long the owner samples at least when its ring gets nearly full.
        sampling_ns: u64,
        /// Unwindings done because no remembered backtrace fitted.
        memo_misses: AtomicU64,
        /// `head` some unwindings ago << 1; bit 0: unwindings were many before that.
        memo_window: u64,
        /// Events dropped because the ring was full.
        dropped: AtomicU64,
        /// Calls passed by because they came from inside the hook (signal handlers).
        reentrant: AtomicU64,
        /// Stacks cut short.
        truncated: AtomicU64,
        /// The owner's thread pointer (fs base): the TCB is at the top of a thread's stack.
        thread_pointer: AtomicU64,
        /// Stack pointer at the claim, for the attacher to find the bounds.
        first_sp: AtomicU64,
        /// Remembered backtraces checked ([`flags::CHECK_MEMO`]).
        memo_checked: AtomicU64,
        /// Those found wrong.
        memo_wrong: AtomicU64,
        /// Calls passed by as part of the same outer one since `nested_head`.
        nested: u64,
        /// `head` when the first of them came.
        nested_head: u64,
        /// How long the owner has waited for room of late ([`flags::ADAPT_WHEN_FULL`]).
        waited_ns: u64,
        /// When that was reckoned, by the clock word.
        waited_at_ns: u64,
        /// Bytes to the next sample beyond `sample_left` ([`flags::BUDGET`]).
        sample_rest: u64,
        /// Intervals between samples are drawn for a mean of [`Control::sample_bytes`] and shifted right by this.
        sample_shift: u64,
        /// `head` at which the owner next looks at what is ordered, and has something timed; or draws an allocation.
        next_look: u64,
        /// By described heap: the frame of the call under way that allocates in it, see the hook's `described.hpp`.
        /// 0: none.
        described_frames: [u64; 8],
        /// By described heap: the block that this call replaces; 0: none.
        described_olds: [u64; 8],
        /// `head` at the event that was drawn for a look ([`flags::LOOKS`]).
        drawn_head: u64,
        /// The time stamp at the beginning of what is timed ([`flags::BUDGET`]); 0: nothing is.
        timed_from: u64,
        /// What that time stamp took.
        timed_stamp: u64,
        /// Allocations until one is timed from the call of the allocator to its return ([`flags::CALL_TIMES`]).
        calls_to_timed: u64,
        /// The time stamp before that call.
        call_from: u64,
        /// What a time stamp took right before it.
        call_stamp: u64,
        /// What the call took, until its event is written; 0: no call was timed.
        call_counts: u64,
        /// Keeps the consumer's line apart.
        producer_pad: [u64; 5],
        /// Events taken; written by the attacher.
        tail: AtomicU64,
        /// Events that the owner may not change any more; written by the attacher.
        claimed: AtomicU64,
        /// Places for events that the owner may use, a power of two; 0: those of the beginning.
        granted: AtomicU64,
        /// Not 0: the owner may use the whole room for what it remembers; 2: that of Python frames, too.
        granted_caches: AtomicU64,
        /// Keeps the state apart from the tail.
        consumer_pad: [u64; 15],
        /// [`ring_state`].
        state: AtomicU32,
        /// Kernel thread id of the owner, in the target's pid namespace.
        tid: AtomicU32,
    }
}

shared_struct! {
    /// Where the stack of a ring's owner is: between these, the hook loads what it needs without the kernel's help. Of
    /// the ring at `offset` in the region, it is number `offset >>` [`super::BOUNDS_SHIFT`].
    guide StackBounds {
        /// Lowest address; 0: not known.
        low: Address,
        /// One past the end; 0: not known.
        high: Address,
        /// The thread, as its ring names it.
        tid: u64,
        /// Not used.
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
        /// 1: cut short.
        truncated: u8,
        /// Frames.
        depth: u16,
    }
}
