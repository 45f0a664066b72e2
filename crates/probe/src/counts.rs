//! Memory in which the pads keep their counts.
//!
//! Each thread counts in its own block, so that no cache line is shared, and no increment needs a lock prefix. A thread
//! finds its block by its thread pointer, in a table of private memory that a fork wipes (`MADV_WIPEONFORK`). So a
//! forked process finds no block of its own, and counts nothing. The blocks are in shared memory, so that they outlive
//! the process.
//!
//! ```text
//! table (private, wiped by a fork)          blocks (shared)
//!   4096 entries: thread pointer, block       +0    number of blocks taken
//!                                             256   settings of the code that looks at arguments and stacks
//!   +64 KiB: 1 if this is no forked process   4096  block 0, for threads without one of their own
//!   +64 KiB + 8: address of the blocks              block 1: thread pointer, then a counter for each probe
//! ```

use crate::histogram::Histogram;
use memhook_abi::{ProbeThread, STACK_PLACES, VALUE_TABLE_BYTES};

/// Sizes of the counting memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountsLayout {
    /// Number of probes.
    pub probes: usize,
    /// True if blocks have space for entries that wait for their exits, and for histograms.
    pub has_latency: bool,
    /// Number of arguments per function for which blocks have tables.
    pub arguments: usize,
    /// True if blocks have space for call stacks.
    pub has_stacks: bool,
}

/// Maximum number of functions whose arguments or callers can be examined at the same time.
pub const MOST_EVENTS: usize = 256;

/// Number of entries in the table.
const ENTRIES: u64 = 4096;
const ENTRY_BYTES: u64 = 16;
/// Number of blocks, including the one for threads that have no block of their own.
const BLOCKS: u64 = 1024;
const PAGE_BYTES: u64 = 4096;

impl CountsLayout {
    /// Size of the entries in bytes; the words below follow them.
    pub const TABLE_ENTRY_BYTES: u64 = ENTRIES * ENTRY_BYTES;
    /// Offset in the table: 1 if blocks may be used.
    pub const IS_LIVE: u64 = Self::TABLE_ENTRY_BYTES;
    /// Offset in the table: address of the blocks.
    pub const BLOCKS_AT: u64 = Self::TABLE_ENTRY_BYTES + 8;
    /// Size of the table in bytes.
    pub const TABLE_BYTES: u64 = Self::TABLE_ENTRY_BYTES + PAGE_BYTES;
    /// Offset in the shared memory: number of blocks taken.
    pub const TAKEN: u64 = 0;
    /// Offset in the shared memory: settings for the code that pads call ([`memhook_abi::ProbeConfig`]).
    pub const CONFIG: u64 = 256;
    /// Offset in the shared memory: block 0.
    pub const FIRST_BLOCK: u64 = PAGE_BYTES;
    /// Size in bytes of an entry that waits for its exit: stack pointer, time, probe, and an unused word.
    pub(crate) const WAITING_ENTRY: u8 = 32;
    /// Size of all entries that can wait in a block, in bytes.
    pub(crate) const WAITING_BYTES: u64 = 128 * Self::WAITING_ENTRY as u64;
    /// Upper bound on the block numbers.
    pub const MOST_BLOCKS: u64 = BLOCKS;

    /// Returns the distance between consecutive blocks in bytes: whole pages, so that threads do not share pages.
    pub fn block_bytes(&self) -> u64 {
        self.used_bytes().next_multiple_of(PAGE_BYTES)
    }

    /// Returns true if pads call code that examines arguments or stacks.
    pub fn has_events(&self) -> bool {
        self.arguments > 0 || self.has_stacks
    }

    /// Returns the offset in a block of the total size of the waiting entries, in bytes.
    pub(crate) fn depth(&self) -> u64 {
        8 + 8 * self.probes as u64
    }

    /// Returns the offset of the waiting entries in a block.
    pub(crate) fn waiting(&self) -> u64 {
        self.depth() + 8
    }

    /// Returns the offset of a probe's histogram in a block.
    pub fn histogram(&self, probe: usize) -> u64 {
        self.waiting() + Self::WAITING_BYTES + (probe * Histogram::WORDS * 8) as u64
    }

    /// Returns the number of bytes of a block that count calls and latencies.
    pub fn counting_bytes(&self) -> u64 {
        if self.has_latency {
            self.histogram(self.probes)
        } else {
            self.depth()
        }
    }

    /// Returns the offset in a block of the words of its thread ([`memhook_abi::ProbeThread`]).
    pub fn thread(&self) -> u64 {
        self.counting_bytes().next_multiple_of(64)
    }

    /// Returns the offset of the tables of values in a block.
    pub fn values(&self) -> u64 {
        self.thread() + size_of::<ProbeThread>() as u64
    }

    /// Returns the offset in a block of the table with the values of an argument, given by its position among the
    /// requested arguments.
    pub fn value_table(&self, probe: usize, argument: usize) -> u64 {
        self.values() + ((probe * self.arguments + argument) * VALUE_TABLE_BYTES) as u64
    }

    /// Returns the offset of the table of call stacks in a block.
    pub fn stacks(&self) -> u64 {
        self.value_table(self.probes, 0)
    }

    /// Returns the number of bytes used in a block.
    pub fn used_bytes(&self) -> u64 {
        match (self.has_events(), self.has_stacks) {
            (false, _) => self.counting_bytes(),
            (true, false) => self.stacks(),
            (true, true) => self.stacks() + (STACK_PLACES * 16) as u64,
        }
    }

    /// Returns the number of bytes of a block that an ordinary thread touches. They include some of the entries for
    /// call stacks, and one in eight of the tables of values.
    pub fn likely_bytes(&self) -> u64 {
        let values = if self.has_events() {
            self.stacks() - self.values()
        } else {
            0
        };
        let stacks = if self.has_stacks { 16 * PAGE_BYTES } else { 0 };
        self.counting_bytes() + values / 8 + stacks
    }

    /// Returns the histogram of a probe from the bytes of a block.
    pub fn histogram_words(&self, block: &[u8], probe: usize) -> Vec<u64> {
        let at = self.histogram(probe) as usize;
        let bytes = block.get(at..at + Histogram::WORDS * 8).unwrap_or_default();
        let words = bytes.as_chunks::<8>().0.iter();
        words.map(|word| u64::from_le_bytes(*word)).collect()
    }

    /// Returns the size of the shared memory in bytes. Untouched pages occupy no memory.
    pub fn shared_bytes(&self) -> u64 {
        Self::FIRST_BLOCK + BLOCKS * self.block_bytes()
    }

    /// Returns the offset of a block in the shared memory.
    pub fn block(&self, number: u64) -> u64 {
        Self::FIRST_BLOCK + number * self.block_bytes()
    }

    /// Returns the offset of the counter of a probe in a block.
    pub fn counter(probe: usize) -> u64 {
        8 + 8 * probe as u64
    }

    /// Returns the initial words after the entries of the table; the remaining words are zero.
    pub fn table_words(shared_at: u64) -> [u8; 16] {
        let mut words = [0; 16];
        words[0] = 1;
        words[8..].copy_from_slice(&shared_at.to_le_bytes());
        words
    }

    /// Returns the initial words of the shared memory; the remaining words are zero. Block 0 counts as taken.
    pub fn shared_words() -> [u8; 8] {
        1u64.to_le_bytes()
    }

    /// Returns the number of blocks to read, from the first word of the shared memory.
    pub fn blocks_to_read(taken: u64) -> u64 {
        taken.clamp(1, BLOCKS)
    }
}
