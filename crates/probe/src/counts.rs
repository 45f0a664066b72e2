//! Where the pads count.
//!
//! Each thread counts in a block of its own, so that no cache line is shared and no increment needs a lock prefix.
//! A thread finds its block by its thread pointer, in a table of private memory that a fork wipes
//! (`MADV_WIPEONFORK`): a forked process finds no block, and counts nothing. The blocks are in shared memory, so
//! that they outlive the process.
//!
//! ```text
//! table (private, wiped by a fork)          blocks (shared)
//!   4096 entries: thread pointer, block       +0    number of blocks taken
//!                                             256   how the code works that looks at arguments and stacks
//!   +64 KiB: 1 if this is no forked process   4096  block 0, for threads without one of their own
//!   +64 KiB + 8: address of the blocks              block 1: thread pointer, then a counter for each probe
//! ```

use crate::histogram::Histogram;
use memhook_abi::{ProbeThread, STACK_PLACES, VALUE_TABLE_BYTES};

/// The sizes of the counting memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountsLayout {
    /// Number of probes.
    pub probes: usize,
    /// True if blocks have room for entries that wait for their exits, and for histograms.
    pub has_latency: bool,
    /// Number of arguments of each function for which blocks have tables.
    pub arguments: usize,
    /// True if blocks have room for call stacks.
    pub has_stacks: bool,
}

/// Functions whose arguments or callers can be looked at at once.
pub const MOST_EVENTS: usize = 256;

/// Entries of the table.
const ENTRIES: u64 = 4096;
const ENTRY_BYTES: u64 = 16;
/// Blocks that exist, with that of the threads that have none.
const BLOCKS: u64 = 1024;
const PAGE_BYTES: u64 = 4096;

impl CountsLayout {
    /// Bytes of the entries; behind them are the words that follow here.
    pub const TABLE_ENTRY_BYTES: u64 = ENTRIES * ENTRY_BYTES;
    /// In the table: whether blocks may be used.
    pub const IS_LIVE: u64 = Self::TABLE_ENTRY_BYTES;
    /// In the table: where the blocks are.
    pub const BLOCKS_AT: u64 = Self::TABLE_ENTRY_BYTES + 8;
    /// Bytes of the table.
    pub const TABLE_BYTES: u64 = Self::TABLE_ENTRY_BYTES + PAGE_BYTES;
    /// In the shared memory: how many blocks were taken.
    pub const TAKEN: u64 = 0;
    /// In the shared memory: how the code is to work that pads call ([`memhook_abi::ProbeConfig`]).
    pub const CONFIG: u64 = 256;
    /// In the shared memory: where block 0 is.
    pub const FIRST_BLOCK: u64 = PAGE_BYTES;
    /// Bytes of an entry that waits for its exit: stack pointer, time, probe, nothing.
    pub(crate) const WAITING_ENTRY: u8 = 32;
    /// Bytes of all entries that can wait in a block.
    pub(crate) const WAITING_BYTES: u64 = 128 * Self::WAITING_ENTRY as u64;
    /// No block has this number or a higher one.
    pub const MOST_BLOCKS: u64 = BLOCKS;

    /// Bytes from one block to the next: whole pages, so that one thread's pages are its own.
    pub fn block_bytes(&self) -> u64 {
        self.used_bytes().next_multiple_of(PAGE_BYTES)
    }

    /// Returns true if pads call code that examines arguments or stacks.
    pub fn has_events(&self) -> bool {
        self.arguments > 0 || self.has_stacks
    }

    /// In a block: how many bytes the entries take that wait for their exits.
    pub(crate) fn depth(&self) -> u64 {
        8 + 8 * self.probes as u64
    }

    /// In a block: where these entries are.
    pub(crate) fn waiting(&self) -> u64 {
        self.depth() + 8
    }

    /// In a block: where the histogram of a probe is.
    pub fn histogram(&self, probe: usize) -> u64 {
        self.waiting() + Self::WAITING_BYTES + (probe * Histogram::WORDS * 8) as u64
    }

    /// Bytes of a block that count calls and latencies.
    pub fn counting_bytes(&self) -> u64 {
        if self.has_latency {
            self.histogram(self.probes)
        } else {
            self.depth()
        }
    }

    /// In a block: where the words of its thread are ([`memhook_abi::ProbeThread`]).
    pub fn thread(&self) -> u64 {
        self.counting_bytes().next_multiple_of(64)
    }

    /// In a block: where the tables of values are.
    pub fn values(&self) -> u64 {
        self.thread() + size_of::<ProbeThread>() as u64
    }

    /// In a block: where the table of the values of an argument is, by its place among those that were asked for.
    pub fn value_table(&self, probe: usize, argument: usize) -> u64 {
        self.values() + ((probe * self.arguments + argument) * VALUE_TABLE_BYTES) as u64
    }

    /// In a block: where the table of call stacks is.
    pub fn stacks(&self) -> u64 {
        self.value_table(self.probes, 0)
    }

    /// Bytes of a block that are of use.
    pub fn used_bytes(&self) -> u64 {
        match (self.has_events(), self.has_stacks) {
            (false, _) => self.counting_bytes(),
            (true, false) => self.stacks(),
            (true, true) => self.stacks() + (STACK_PLACES * 16) as u64,
        }
    }

    /// Bytes of a block that a thread touches which does nothing special: some of the places for call stacks, and one
    /// table of values in eight.
    pub fn likely_bytes(&self) -> u64 {
        let values = if self.has_events() {
            self.stacks() - self.values()
        } else {
            0
        };
        let stacks = if self.has_stacks { 16 * PAGE_BYTES } else { 0 };
        self.counting_bytes() + values / 8 + stacks
    }

    /// The histogram of a probe in the bytes of a block.
    pub fn histogram_words(&self, block: &[u8], probe: usize) -> Vec<u64> {
        let at = self.histogram(probe) as usize;
        let bytes = block.get(at..at + Histogram::WORDS * 8).unwrap_or_default();
        let words = bytes.as_chunks::<8>().0.iter();
        words.map(|word| u64::from_le_bytes(*word)).collect()
    }

    /// Bytes of the shared memory. Pages that nobody touches do not exist.
    pub fn shared_bytes(&self) -> u64 {
        Self::FIRST_BLOCK + BLOCKS * self.block_bytes()
    }

    /// Where a block is in the shared memory.
    pub fn block(&self, number: u64) -> u64 {
        Self::FIRST_BLOCK + number * self.block_bytes()
    }

    /// Where the counter of a probe is in a block.
    pub fn counter(probe: usize) -> u64 {
        8 + 8 * probe as u64
    }

    /// Returns the initial words behind the entries of the table; the rest is zero.
    pub fn table_words(shared_at: u64) -> [u8; 16] {
        let mut words = [0; 16];
        words[0] = 1;
        words[8..].copy_from_slice(&shared_at.to_le_bytes());
        words
    }

    /// Returns the initial words of the shared memory; the rest is zero. Block 0 counts as taken.
    pub fn shared_words() -> [u8; 8] {
        1u64.to_le_bytes()
    }

    /// Returns how many blocks there are to read, by the first word of the shared memory.
    pub fn blocks_to_read(taken: u64) -> u64 {
        taken.clamp(1, BLOCKS)
    }
}
