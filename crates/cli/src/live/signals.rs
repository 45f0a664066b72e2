//! Ctrl-C and SIGTERM. The first signal ends the trace. Another one ends the wait for names, but
//! never the detach.

pub use memhook_inject::{catch_stops, stops};
use std::time::{Duration, Instant};

/// Returns true if a stop signal has arrived.
pub fn stop_requested() -> bool {
    stops() > 0
}

/// The wait for names at the end of a trace.
pub struct NameWait {
    before: u32,
    begin: Instant,
}

/// Time limit for names. A file system that does not answer would otherwise delay the report
/// forever.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

impl NameWait {
    /// Starts the wait for the names of one of several processes. The first signal ends all traces,
    /// and does not affect the names of a process that has already ended.
    pub fn begin_beside_others() -> NameWait {
        NameWait {
            before: stops().max(1),
            begin: Instant::now(),
        }
    }

    /// Begins to wait.
    pub fn begin() -> NameWait {
        NameWait {
            before: stops(),
            begin: Instant::now(),
        }
    }

    /// Returns true if the wait is over: a signal requests the report with the names known so far
    /// (a signal during the wait, or a second one), or the wait has lasted too long.
    pub fn is_over(&self) -> bool {
        let now = stops();
        now > self.before || now > 1 || self.begin.elapsed() > LONGEST_WAIT
    }
}
