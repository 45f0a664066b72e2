//! Ctrl-C and SIGTERM ask for the detach; a second one skips the waiting for names, never the detach.

use std::sync::atomic::{AtomicU32, Ordering};

static STOPS: AtomicU32 = AtomicU32::new(0);

extern "C" fn stop(_: i32) {
    STOPS.fetch_add(1, Ordering::Relaxed);
}

/// Installs the handlers, and ignores SIGPIPE so that a closed terminal cannot skip the detach.
pub fn install() {
    // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
    unsafe {
        libc::signal(libc::SIGINT, stop as *const () as usize);
        libc::signal(libc::SIGTERM, stop as *const () as usize);
        libc::signal(libc::SIGHUP, stop as *const () as usize);
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
    }
}

/// Whether one has come.
pub fn stop_requested() -> bool {
    stops() > 0
}

/// How many have come.
pub fn stops() -> u32 {
    STOPS.load(Ordering::Relaxed)
}
