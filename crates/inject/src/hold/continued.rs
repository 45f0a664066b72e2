//! SIGCONT during a hold.
//!
//! A stop that comes while we hold is made up for after the hold, by us (`terminal_stops.rs`) or because the
//! watchdog has continued us meanwhile (`watchdog.rs`). Somebody who sends SIGCONT before that takes the stop back,
//! just as the kernel discards a stop signal that is pending when SIGCONT comes (signal(7)). For that we have to
//! know our watchdog's SIGCONT from everybody else's. One that comes in the moment between the watchdog's and the run
//! of the handler is still lost: a signal that is pending already is not queued again.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use super::{signals, terminal_stops, watchdog};

/// The time that the handler has to run before we stop after a hold.
const HANDLER_TIME: Duration = Duration::from_millis(10);

/// What the watchdog's SIGCONT carries as its value (`si_value`, sigqueue(3)).
pub(super) const OF_WATCHDOG: usize = 0x6d65_6d68_6f6f_6b77;

/// Installs a handler for SIGCONT unless there is one: the program that we run in may have its own, or ignore it.
pub(super) fn notice() {
    if signals::handler(libc::SIGCONT) == libc::SIG_DFL {
        signals::handle(libc::SIGCONT, signals::Handler::WithDetails(handler));
    }
}

extern "C" fn handler(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo_t to a handler installed with SA_SIGINFO.
    is_meant(unsafe { &*info });
}

/// What every handler of SIGCONT calls: notes that we are to go on, and returns true, unless the signal is from our
/// watchdog. It is async-signal-safe.
pub(crate) fn is_meant(info: &libc::siginfo_t) -> bool {
    // SAFETY: si_value is valid for SI_QUEUE (sigaction(2)).
    if info.si_code == libc::SI_QUEUE && unsafe { info.si_value() }.sival_ptr.addr() == OF_WATCHDOG
    {
        return false;
    }
    terminal_stops::take_back();
    watchdog::take_back_stops();
    true
}

/// To be called after a hold and before a stop is made up for, which `stop` says with a value other than zero: a
/// SIGCONT that has just been sent may have chosen another thread, which first has to wake up for its handler.
pub(super) fn let_handler_run(stop: &AtomicU32) {
    if stop.load(SeqCst) != 0 {
        std::thread::sleep(HANDLER_TIME);
    }
}
