//! Errors of this crate.

/// Reason why a process cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is nothing to watch it with.
    #[error("it cannot be seen what process {pid} touches: {why}")]
    NoEvidence {
        /// Process id.
        pid: i32,
        /// Reason why neither pages nor words can be watched.
        why: String,
    },
}
