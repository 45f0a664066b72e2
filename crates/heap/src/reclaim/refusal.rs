//! Reasons why nothing of a heap may be released.

/// A doubt about a heap, for which all of its blocks are kept; one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Blocks of the C library's may be parts of what another allocator manages.
    #[error("another allocator is loaded ({0}): glibc's blocks may be parts of its own")]
    OtherAllocator(String),
    /// The leaked blocks are of an allocator whose `free` no thread can be made to call.
    #[error(
        "{0} is part of the program: no thread can be kept out of its code, so its free() is not called"
    )]
    LinkedIn(String),
    /// `free` may call something of the program's.
    #[error("free() could call the program's own code, which could wait for a lock: {0}")]
    CallsBack(String),
    /// The allocator does not show whether a block was freed since the search.
    #[error("the structures of this {0} do not show whether a block was freed since the search")]
    NotShown(String),
    /// The heap was copied in the middle of a change.
    #[error("a thread stayed inside malloc, so the heap was in the middle of a change")]
    InMalloc,
    /// Part of the heap makes no sense.
    #[error("part of the heap could not be parsed: at {address:#x}, {what}")]
    Unparsed {
        /// Where.
        address: u64,
        /// Contents at that place.
        what: String,
    },
    /// Free blocks in the caches would look used, and leaked.
    #[error("no thread's malloc cache was found")]
    NoCaches,
    /// Blocks are missing, or were found that malloc does not know.
    #[error("the large blocks found are not those that malloc counts")]
    OtherCount,
    /// Pointers may be where nobody has looked.
    #[error("{0} may hold pointers, and could not be searched")]
    Unsearched(String),
}
