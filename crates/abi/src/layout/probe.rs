//! What the code that pads of probes call is told, and what it keeps for each thread.

use super::shared_struct::shared_struct;
use std::sync::atomic::AtomicU64;

/// Arguments of a function that can be looked at: those that are passed in registers (System V psABI for x86-64,
/// "Parameter Passing").
pub const PROBE_ARGUMENTS: usize = 6;
/// Classes of the values of an argument: one for each number of bits, of values below zero and of the others.
pub const VALUE_CLASSES: usize = 128;
/// Words of a table of values in front of its classes: the highest value, the lowest one.
pub const VALUE_BOUNDS: usize = 2;
/// Values of an argument that a thread counts one by one.
pub const VALUE_PLACES: usize = 256;
/// Bytes of a table of values: bounds, classes, and places of two words (a value, and how often it was seen).
pub const VALUE_TABLE_BYTES: usize =
    ((VALUE_BOUNDS + VALUE_CLASSES + 2 * VALUE_PLACES) * 8).next_multiple_of(64);
/// Call stacks that a thread counts one by one, by function: places of two words (the number of the probe + 1 and the
/// id of the stack, and how often they were seen).
pub const STACK_PLACES: usize = 1 << 14;

shared_struct! {
    /// How the code is to work: written by the attacher before a pad leads to it.
    apart ProbeConfig {
        /// Where the region is that has unwind tables and call stacks; 0: no stacks are wanted.
        region: u64,
        /// Where the block is that threads share (avma).
        blocks: u64,
        /// Bytes from one block to the next.
        block_bytes: u64,
        /// In a block: where its [`ProbeThread`] is.
        thread: u64,
        /// In a block: where the tables of values are, in the order of probes, and then of arguments.
        values: u64,
        /// In a block: where the table of call stacks is.
        stacks: u64,
        /// The arguments that are looked at, a byte each, 0 for the first one.
        arguments: u64,
        /// How many there are.
        argument_count: u64,
        /// Where threads keep their tid, in bytes from the thread pointer.
        tid_offset: u64,
        /// Frames to collect.
        depth: u64,
    }
}

shared_struct! {
    /// What is kept for each thread.
    apart ProbeThread {
        /// Not 0 while the thread is at work here.
        busy: AtomicU64,
        /// The thread that the following is about.
        tid: AtomicU64,
        /// Not 0: it has the ring with the block's number, for what it remembers.
        ring: AtomicU64,
        /// Its stack pointer at the first call.
        first_sp: AtomicU64,
        /// Makes whole cache lines.
        rest: [u64; 4],
    }
}
