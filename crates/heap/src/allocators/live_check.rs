//! Checks in the structures of an allocator whether blocks of a running process are still live.
//!
//! The search sees no pointer to a leaked block, but the program may have hidden one. Between the last search and the
//! release, the program may free the block through this pointer, and the block's contents need not change. So directly
//! before a thread calls `free` for us, the allocator's structures are read while they are consistent: all threads are
//! stopped, and none is inside the allocator. A block that was freed before that moment is then in a free list or
//! marked by a bit, or its memory is gone.

use crate::blocks::Block;
use crate::live_memory::Memory;
use std::fmt::Debug;

/// A process with all threads stopped.
pub(crate) struct Standstill<'a> {
    /// The memory of the process.
    pub memory: &'a dyn Memory,
    /// The thread pointers of all threads.
    pub thread_pointers: Vec<u64>,
}

/// Distinguishes live blocks of an allocator from free ones.
pub(crate) trait LiveCheck: Debug + Send + Sync {
    /// Returns true if all threads have to be stopped outside the allocator. Returns `false` for an allocator whose
    /// free() marks a block before any other write, if the mark stays until the block is handed out again.
    fn needs_standstill(&self) -> bool {
        true
    }

    /// Returns for each of these blocks, which come from a dissection, whether it is live. The error names the fact
    /// that could not be determined.
    fn are_live(&self, still: &Standstill, blocks: &[Block]) -> Result<Vec<bool>, &'static str>;
}
