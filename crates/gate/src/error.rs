//! Errors in the files of a gate.

use std::path::Path;

/// A file that cannot be read, used or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A line of a suppression file is wrong.
    #[error("{file}:{line}: {problem}")]
    Suppression {
        /// The file's name as given.
        file: String,
        /// Line number; the first line is 1.
        line: usize,
        /// Mistake, and its correction.
        problem: String,
    },
    /// A baseline that cannot be read.
    #[error("{file} is not a baseline of memhook-rs ({problem})")]
    Baseline {
        /// The file's name as given.
        file: String,
        /// Mistake in the file.
        problem: String,
    },
    /// A file that cannot be read.
    #[error("cannot read {file}")]
    Read {
        /// The file's name as given.
        file: String,
        /// Error from the system.
        source: std::io::Error,
    },
    /// The verdict could not be written.
    #[error("cannot write the verdict")]
    Verdict(#[source] std::io::Error),
    /// The baseline could not be written.
    #[error("cannot write the baseline")]
    WriteBaseline(#[source] std::io::Error),
}

/// Returns the text of a file that people write.
pub(crate) fn text_of(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|source| Error::Read {
        file: path.display().to_string(),
        source,
    })
}
