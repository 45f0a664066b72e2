//! What can be wrong with files that people write.

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A line of a suppression file.
    #[error("{file}:{line}: {problem}")]
    Suppression {
        /// The file's name as it was given.
        file: String,
        /// Line number, from 1.
        line: usize,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// A baseline that cannot be read.
    #[error("{file} is no baseline of memhook-rs ({problem}): write one with --write-baseline")]
    Baseline {
        /// The file's name as it was given.
        file: String,
        /// What is wrong.
        problem: String,
    },
}
