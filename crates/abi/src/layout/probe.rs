//! Settings and per-thread data of the code that probe pads call.

use super::shared_struct::shared_struct;
use std::sync::atomic::AtomicU64;

/// Maximum number of arguments of a function that can be examined: the arguments in registers (System V psABI for
/// x86-64, "Parameter Passing").
pub const PROBE_ARGUMENTS: usize = 6;
/// Classes of the values of an argument: one for each number of bits, separately for negative and other values.
pub const VALUE_CLASSES: usize = 128;
/// Words before the classes of a table of values: the highest value and the lowest value.
pub const VALUE_BOUNDS: usize = 2;
/// Maximum number of distinct values of an argument that a thread counts.
pub const VALUE_PLACES: usize = 256;
/// Bytes of a table of values: bounds, classes, and places of two words (a value, and its count).
pub const VALUE_TABLE_BYTES: usize =
    ((VALUE_BOUNDS + VALUE_CLASSES + 2 * VALUE_PLACES) * 8).next_multiple_of(64);
/// Places for distinct call stacks that a thread counts, by function. A place has two words: the number of the probe +
/// 1 with the id of the stack, and their count.
pub const STACK_PLACES: usize = 1 << 14;

shared_struct! {
    /// Settings for the code that pads call. The attacher writes them before a pad leads to the code.
    apart ProbeConfig {
        /// Address of the region with unwind tables and call stacks; 0 if no stacks are wanted.
        region: u64,
        /// Address of the blocks of the threads (avma).
        blocks: u64,
        /// Bytes from one block to the next.
        block_bytes: u64,
        /// Offset in a block of its [`ProbeThread`].
        thread: u64,
        /// Offset in a block of the tables of values, in the order of probes, and then of arguments.
        values: u64,
        /// Offset in a block of the table of call stacks.
        stacks: u64,
        /// Examined arguments, a byte each; 0 is the first argument.
        arguments: u64,
        /// Number of examined arguments.
        argument_count: u64,
        /// Offset of the tid from the thread pointer, in bytes.
        tid_offset: u64,
        /// Frames to collect.
        depth: u64,
    }
}

shared_struct! {
    /// Data of each thread.
    apart ProbeThread {
        /// Not 0 while the thread runs this code.
        busy: AtomicU64,
        /// Thread of the following fields.
        tid: AtomicU64,
        /// Not 0: the thread uses the ring with the block's number for its remembered backtraces.
        ring: AtomicU64,
        /// Stack pointer of the thread at the first call.
        first_sp: AtomicU64,
        /// Fills up the cache lines.
        rest: [u64; 4],
    }
}
