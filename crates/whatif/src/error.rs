//! Reasons why a recording is not replayed.

use std::io;

/// Reason why there is no replay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The recording does not hold what a replay needs.
    #[error("it cannot be replayed: {0}")]
    Unfit(&'static str),
    /// Not even the calls can be kept.
    #[error("a replay needs about {needed}, and only {available} of memory are available")]
    NoMemory {
        /// In words.
        needed: String,
        /// In words.
        available: String,
    },
    /// The recording is damaged.
    #[error("the recording cannot be replayed")]
    Recording(#[from] memhook_recording::Error),
    /// The program that makes the calls cannot be started.
    #[error("cannot start the program that replays calls")]
    Start(#[source] io::Error),
}
