//! Ctrl-C and SIGTERM ask for the detach; a second one skips the waiting for names, never the detach.

pub use memhook_inject::{catch_stops, stops};

/// Whether one has come.
pub fn stop_requested() -> bool {
    stops() > 0
}
