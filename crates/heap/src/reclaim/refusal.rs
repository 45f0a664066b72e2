//! Reasons why no block of a heap may be released.

/// Doubt about a heap that rules out releasing any of its blocks. Its text is one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Blocks of the C library may be part of memory that another allocator manages.
    #[error("another allocator is loaded ({0}): glibc's blocks may be parts of its own")]
    OtherAllocator(String),
    /// The leaked blocks belong to an allocator whose `free` cannot be called safely.
    #[error(
        "{0} is part of the program: no thread can be kept out of its code, so its free() is not called"
    )]
    LinkedIn(String),
    /// `free` may call a function of the program.
    #[error("free() could call the program's own code, which could wait for a lock: {0}")]
    CallsBack(String),
    /// The allocator does not show whether a block was freed since the search.
    #[error("the structures of this {0} do not show whether a block was freed since the search")]
    NotShown(String),
    /// The heap was copied in the middle of a change.
    #[error("a thread stayed inside malloc, so the heap was in the middle of a change")]
    InMalloc,
    /// A part of the heap could not be parsed.
    #[error("part of the heap could not be parsed: at {address:#x}, {what}")]
    Unparsed {
        /// Address of the part.
        address: u64,
        /// Description of the damage.
        what: String,
    },
    /// The thread caches were not found, so the free blocks in them would appear to be in use, and
    /// leaked.
    #[error("no thread's malloc cache was found")]
    NoCaches,
    /// Large blocks are missing, or some were found that malloc does not count.
    #[error("the large blocks found are not those that malloc counts")]
    OtherCount,
    /// Pointers may be in memory that was not searched.
    #[error("{0} may hold pointers, and could not be searched")]
    Unsearched(String),
}
