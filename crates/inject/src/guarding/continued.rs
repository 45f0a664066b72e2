//! SIGCONT during a hold.
//!
//! A stop signal during a hold takes effect after the hold: we stop ourselves then (`terminal_stops.rs`), even if the
//! watchdog has continued us meanwhile (`watchdog.rs`). A SIGCONT from another process cancels the pending stop, just
//! as the kernel discards a pending stop signal on SIGCONT (signal(7)). So we must tell our watchdog's SIGCONT from any
//! other. The watchdog sends its SIGCONT to a single thread, so that it does not displace a SIGCONT that is already
//! pending for the process.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use super::{signals, terminal_stops, watchdog};

/// Time that the handler gets to run before we stop ourselves after a hold.
const HANDLER_TIME: Duration = Duration::from_millis(10);

/// Value of the watchdog's SIGCONT (`si_value`, sigqueue(3)).
pub(super) const OF_WATCHDOG: usize = 0x6d65_6d68_6f6f_6b77;

/// Installs a handler for SIGCONT, unless the host program has a handler or ignores the signal.
pub(super) fn notice() {
    if signals::handler(libc::SIGCONT) == libc::SIG_DFL {
        signals::handle(libc::SIGCONT, signals::Handler::WithDetails(handler));
    }
}

extern "C" fn handler(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo_t to a handler installed with SA_SIGINFO.
    is_meant(unsafe { &*info });
}

/// Called by every handler of SIGCONT. Records that we must continue and returns true, unless the signal is from our
/// watchdog. This function is async-signal-safe.
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

/// Gives the handler time to run after a hold if a stop is pending (`stop` is not zero). The kernel may have directed a
/// recent SIGCONT to another thread, which must wake up before it can run the handler.
pub(super) fn let_handler_run(stop: &AtomicU32) {
    if stop.load(SeqCst) != 0 {
        std::thread::sleep(HANDLER_TIME);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks or unblocks SIGCONT.
    fn mask(how: i32) {
        // SAFETY: sigset_t is integers; the set lives through the calls.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGCONT);
            libc::sigprocmask(how, &raw const set, std::ptr::null_mut());
        }
    }

    /// Runs in a separate process, so that no other thread can receive the signals.
    #[test]
    fn somebody_elses_is_not_lost_behind_the_watchdogs() {
        // SAFETY: the child makes system calls and uses atomic variables only, and ends by _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: plain integers.
            let own = unsafe { libc::getpid() };
            signals::handle(libc::SIGCONT, signals::Handler::WithDetails(handler));
            mask(libc::SIG_BLOCK);
            terminal_stops::put_off(libc::SIGTSTP);
            watchdog::continue_holder(own);
            mask(libc::SIG_UNBLOCK);
            let waited = terminal_stops::waits();
            mask(libc::SIG_BLOCK);
            watchdog::continue_holder(own);
            // SAFETY: plain integers.
            unsafe { libc::kill(own, libc::SIGCONT) };
            mask(libc::SIG_UNBLOCK);
            let status = i32::from(!waited) + 2 * i32::from(terminal_stops::waits());
            // SAFETY: it ends this process.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: the kernel writes one int.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        // Exit status 1: the watchdog's own signal cancelled the stop. 2: a foreign SIGCONT did not cancel it.
        assert_eq!(status, 0);
    }
}
