//! Reasons why an output cannot be created.

use std::{
    io::{Error, ErrorKind},
    path::{Path, PathBuf},
};

/// Reason why an output cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The file exists and may not be replaced.
    #[error("{} exists already", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The path is a symbolic link, perhaps planted by another user to redirect our output.
    #[error("{} is a symbolic link, which is not followed: name the file itself", path.display())]
    Link {
        /// The link.
        path: PathBuf,
    },
    /// The path is not writable, or belongs to another user.
    #[error("{} is {what}: choose another name", path.display())]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// Kind of the existing thing.
        what: &'static str,
    },
    /// The file is also an input, and would be lost.
    #[error("{} is the input: choose another name for the output", path.display())]
    IsInput {
        /// The file.
        path: PathBuf,
    },
    /// The file is executable.
    #[error("{} is a program: name another file, and put -- in front of a program to run", path.display())]
    Program {
        /// The file.
        path: PathBuf,
    },
    /// The operating system refused to create it.
    #[error("cannot write {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Error from the system.
        source: Error,
    },
}

impl OutputError {
    /// Converts the error to an `Error` of the closest kind, and keeps the text.
    pub fn into_io(self) -> Error {
        let kind = match &self {
            OutputError::Exists { .. } => ErrorKind::AlreadyExists,
            OutputError::Link { .. }
            | OutputError::NotOurs { .. }
            | OutputError::IsInput { .. }
            | OutputError::Program { .. } => ErrorKind::InvalidInput,
            OutputError::Io { source, .. } => source.kind(),
        };
        Error::new(kind, self)
    }
}

/// Returns the error for an existing file.
pub fn exists_already(path: &Path) -> OutputError {
    OutputError::Exists {
        path: path.to_owned(),
    }
}

pub(crate) fn failed(path: &Path) -> impl Fn(Error) -> OutputError + '_ {
    |source| OutputError::Io {
        path: path.to_owned(),
        source,
    }
}

pub(crate) fn not_ours(path: &Path, what: &'static str) -> OutputError {
    OutputError::NotOurs {
        path: path.to_owned(),
        what,
    }
}

pub(crate) fn link(path: &Path) -> OutputError {
    OutputError::Link {
        path: path.to_owned(),
    }
}
