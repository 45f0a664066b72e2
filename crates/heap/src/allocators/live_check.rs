//! Check whether blocks of a running process are still live, by the structures of their allocator.
//!
//! What leaks has no pointer that a search can see, and a program may have hidden one. Between the last search and the
//! release, it may free the block by that one, and nothing in the block need show it. So right before a thread is made
//! to call `free`, the allocator's own structures are read, at a moment at which they are whole: while all threads
//! stand still, and none of them is inside the allocator. A block that was freed before that moment is in one of its
//! lists, or its bit is set, or its memory is gone.

use crate::blocks::Block;
use crate::live_memory::Memory;
use std::fmt::Debug;

/// A process at one moment.
pub(crate) struct Standstill<'a> {
    /// Its memory.
    pub memory: &'a dyn Memory,
    /// The thread pointers of all threads.
    pub thread_pointers: Vec<u64>,
}

/// Tells live blocks of one allocator from others.
pub(crate) trait LiveCheck: Debug + Send + Sync {
    /// Returns true if all threads have to stand still outside the allocator. `false`: what marks a freed block is
    /// written before anything else, and stays until the block is given out again.
    fn needs_standstill(&self) -> bool {
        true
    }

    /// Which of these blocks, as a dissection found them, are live. The error says what cannot be known.
    fn are_live(&self, still: &Standstill, blocks: &[Block]) -> Result<Vec<bool>, &'static str>;
}
