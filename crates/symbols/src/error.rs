//! Reasons why symbol files are not used.

use std::{io::ErrorKind, path::PathBuf};

/// Reason why a file was not used.
#[derive(Debug, thiserror::Error)]
pub enum SymbolError {
    /// The file could not be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error from the system.
        error: std::io::Error,
    },
    /// The file is not of the kind that belongs at its path.
    #[error("{}: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
    /// The file belongs to a different build than the mapped one.
    #[error("{} is from another build: its build-id is {found}, the mapped file has {expected}", path.display())]
    BuildId {
        /// The file.
        path: PathBuf,
        /// Build-id of the file, hexadecimal, or "none".
        found: String,
        /// Build-id of the mapped file.
        expected: String,
    },
    /// The contents do not match the checksum in `.gnu_debuglink`.
    #[error("{} is not the right debug file: its checksum is {found:08x}, expected {expected:08x}", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// CRC-32 of the file.
        found: u32,
        /// The CRC-32 in the link.
        expected: u32,
    },
    /// A server did not deliver the file.
    #[error("{url}: {reason}")]
    Download {
        /// Requested URL.
        url: String,
        /// Reason.
        reason: String,
    },
}

impl SymbolError {
    /// Returns true if the file does not exist.
    pub(crate) fn is_of_missing_file(&self) -> bool {
        matches!(self, SymbolError::Read { error, .. }
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory))
    }

    /// Returns the error with the user's name for the file.
    pub(crate) fn about(mut self, place: &str) -> SymbolError {
        match &mut self {
            SymbolError::Read { path, .. }
            | SymbolError::Format { path, .. }
            | SymbolError::BuildId { path, .. }
            | SymbolError::Checksum { path, .. } => *path = PathBuf::from(place),
            SymbolError::Download { url, .. } => *url = place.to_owned(),
        }
        self
    }
}
