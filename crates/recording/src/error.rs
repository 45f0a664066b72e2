//! Errors of recordings.

use std::path::PathBuf;

/// Reason why a recording cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation on the file.
    #[error("cannot {action} {}: {cause}", path.display())]
    Io {
        /// Action that was tried: "open", "read", "create", ...
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason for the refusal.
        cause: std::io::Error,
    },
    /// The file cannot be created, because a file or a link already exists.
    #[error(transparent)]
    Output(#[from] memhook_foreign::OutputError),
    /// The file does not begin like a recording.
    #[error("not a recording of memhook-rs (the file begins with other bytes)")]
    NotARecording,
    /// The path is a directory.
    #[error("a directory, not a recording: name a file in it")]
    Directory,
    /// The path is a pipe, a device or a socket.
    #[error("not a regular file: use - and pass the recording on standard input")]
    Stream,
    /// The file has no bytes.
    #[error("the file is empty: nothing was recorded, or it was not copied")]
    NoBytes,
    /// The file was written by another version of the format.
    #[error(
        "the recording has format version {found}, this program reads version {expected}: use the memhook-rs that wrote it"
    )]
    Version {
        /// Version of the file.
        found: u32,
        /// The only version that this program reads.
        expected: u32,
    },
    /// The file ends before its first complete chunk.
    #[error("the recording is empty: it ends before its first complete chunk")]
    Empty,
    /// Bytes inside the file have changed since they were written.
    #[error("the recording is damaged{}: {what}", at(*offset))]
    Damaged {
        /// Offset of the chunk in the file, if known.
        offset: Option<u64>,
        /// Damaged part.
        what: &'static str,
    },
    /// The time window is empty.
    #[error(
        "there is nothing between {} and {}: the recording covers {} to {}",
        seconds(*from_ns), seconds(*to_ns), seconds(*start_ns), seconds(*end_ns)
    )]
    Window {
        /// Requested start in nanoseconds since the attach.
        from_ns: u64,
        /// Requested end in nanoseconds since the attach.
        to_ns: u64,
        /// First recorded moment.
        start_ns: u64,
        /// Last recorded moment.
        end_ns: u64,
    },
    /// The recording holds intervals instead of events, or vice versa.
    #[error("the recording holds {holds}, not {wanted}")]
    Mode {
        /// Contents of the recording.
        holds: &'static str,
        /// Requested contents.
        wanted: &'static str,
    },
    /// The recording lacks the data for scores.
    #[error("the recording {0}")]
    NoScores(WhyNoScores),
    /// The disk has too little free space to start.
    #[error(
        "only {free_bytes} bytes are free on the disk of {}, {needed_bytes} are needed", path.display()
    )]
    NoSpace {
        /// The file to write.
        path: PathBuf,
        /// Bytes free.
        free_bytes: u64,
        /// Required free bytes.
        needed_bytes: u64,
    },
}

/// Formats seconds for people. The maximum value means the end of the recording.
fn seconds(ns: u64) -> String {
    match ns {
        u64::MAX => "the end".to_owned(),
        _ => format!("{:.3} s", ns as f64 / 1e9),
    }
}

fn at(offset: Option<u64>) -> String {
    offset.map_or_else(String::new, |offset| format!(" at byte {offset}"))
}

impl Error {
    pub(crate) fn damaged(what: &'static str) -> Self {
        Error::Damaged { offset: None, what }
    }

    /// Adds the offset to an error about damage that has none.
    pub(crate) fn in_chunk_at(self, place: u64) -> Self {
        match self {
            Error::Damaged { offset: None, what } => Error::Damaged {
                offset: Some(place),
                what,
            },
            other => other,
        }
    }
}

/// Data that scores need and a recording lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WhyNoScores {
    /// The recording has only sums, and no single blocks.
    #[error("holds sums of intervals, not the lifetime of each block")]
    Sums,
    /// The recording has only samples, and not all blocks.
    #[error("holds samples of the allocations")]
    Samples,
    /// The recording has no reads and writes.
    #[error("does not say which bytes are read and written")]
    NoAccesses,
}
