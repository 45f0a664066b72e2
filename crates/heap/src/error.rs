//! What can go wrong in a scan.

/// Failure of a scan; one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process could not be looked at.
    #[error(transparent)]
    Process(#[from] memhook_process::Error),
    /// Its threads could not be held.
    #[error(transparent)]
    Inject(#[from] memhook_inject::Error),
    /// What the kernel tells of its memory could not be read.
    #[error("process {pid}: its smaps can't be read: {source}")]
    Unread {
        /// Process id.
        pid: i32,
        /// Why.
        source: std::io::Error,
    },
    /// No glibc, or none with a heap that we know.
    #[error("process {pid}: {reason}")]
    NoHeap {
        /// Process id.
        pid: i32,
        /// Why.
        reason: String,
    },
    /// A saved snapshot cannot be used.
    #[error("{file}: {reason}")]
    Saved {
        /// The file, or `-`.
        file: String,
        /// Why.
        reason: String,
    },
    /// A question about an address that is not in a block.
    #[error("{address:#x} is in no block of the heap{hint}")]
    NoBlock {
        /// The address.
        address: u64,
        /// What it is instead.
        hint: String,
    },
}
