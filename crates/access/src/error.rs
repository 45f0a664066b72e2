//! Errors of this crate.

/// Reason why a process cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither pages nor words can be watched.
    #[error("the accesses of process {pid} cannot be watched: {why}")]
    NoEvidence {
        /// Process id.
        pid: i32,
        /// Reason why neither can be watched.
        why: String,
    },
}
