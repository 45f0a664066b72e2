//! Errors of this library.

/// Reason for a failure. Unless the variant says otherwise, the process is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process could not be attached to.
    #[error("cannot attach to process {pid}: {why}")]
    Attach {
        /// The process.
        pid: i32,
        /// Cause and remedy.
        why: String,
    },
    /// The options contradict each other, or are out of range.
    #[error("{0}")]
    Options(String),
    /// A thread of this process could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// The trace is over: the process has ended or executed another program, or the library has detached.
    #[error("the trace of process {pid} is over")]
    Over {
        /// The process.
        pid: i32,
    },
    /// Accesses cannot be watched: hardware watchpoints do not exist, or may not be used.
    #[error("accesses of process {pid} cannot be watched: {why}")]
    NoWatchpoints {
        /// The process.
        pid: i32,
        /// Reason.
        why: String,
    },
    /// All watchpoints are in use; there are at most four.
    #[error("all watchpoints of process {pid} are in use")]
    WatchpointsInUse {
        /// The process.
        pid: i32,
    },
    /// The memory of the process could not be searched.
    #[error("the memory of process {pid} cannot be searched: {why}")]
    Search {
        /// The process.
        pid: i32,
        /// Reason.
        why: String,
    },
    /// A callback of the profiler panicked. No callback was called afterwards, and the library detached properly.
    #[error("a callback of the profiler panicked: {0}")]
    Panicked(String),
    /// The detach has failed. Some functions of the process may still lead to the hook, which passes calls through.
    /// Attaching and detaching again repairs that.
    #[error("process {pid} could not be left in order: {why}")]
    Detach {
        /// The process.
        pid: i32,
        /// Reason.
        why: String,
    },
}

impl Error {
    pub(crate) fn of_attach(pid: i32, error: &memhook_attach::Error) -> Error {
        let why = in_words(error);
        match error {
            memhook_attach::Error::Config(_) => Error::Options(why),
            _ => Error::Attach { pid, why },
        }
    }
}

/// Returns an error and its causes in one line.
pub(crate) fn in_words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        words = format!("{words}: {source}");
        next = source.source();
    }
    words
}
