//! Ctrl-C and SIGTERM ask for the detach; a second one changes nothing about it.

use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn stop(_: i32) {
    STOP.store(true, Ordering::Relaxed);
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
    STOP.load(Ordering::Relaxed)
}
