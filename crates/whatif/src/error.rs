//! Reasons why a recording is not replayed.

use std::io;

/// Reason why a recording is not replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The recording does not contain the data for a replay.
    #[error("it cannot be replayed: {0}")]
    Unfit(&'static str),
    /// There is not enough memory even for the calls.
    #[error("a replay needs about {needed}, and only {available} of memory are available")]
    NoMemory {
        /// Needed memory in words.
        needed: String,
        /// Available memory in words.
        available: String,
    },
    /// The recording is damaged.
    #[error("the recording cannot be replayed")]
    Recording(#[from] memhook_recording::Error),
    /// The program that makes the calls cannot be started.
    #[error("cannot start the program that replays calls")]
    Start(#[source] io::Error),
}
