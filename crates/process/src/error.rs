//! Errors of looking at a process.

/// What could not be read, and why.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file under /proc could not be read.
    #[error("{path}: {cause}")]
    Proc {
        /// The file.
        path: String,
        /// errno.
        cause: std::io::Error,
    },
}
