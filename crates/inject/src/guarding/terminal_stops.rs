//! Delays Ctrl-Z and similar stops until the end of a hold.
//!
//! By default, such a signal stops the whole process, regardless of which thread gets it (signal(7)), and while we are
//! stopped, a held thread would stay stopped too. SIGSTOP cannot be delayed, so there is a watchdog.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

use crate::{continued, signals};

const SIGNALS: [i32; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// Number of our threads that hold a thread, and the signals for which the handler below is installed.
static HOLDS: Mutex<(u32, [bool; 3])> = Mutex::new((0, [false; 3]));
/// True if any thread holds a thread. The handler reads this flag, because a handler must not wait for a lock.
static HOLDING: AtomicBool = AtomicBool::new(false);
/// Signals that arrived during a hold, one bit per number.
static CAME: AtomicU32 = AtomicU32::new(0);

extern "C" fn note(signal: i32) {
    CAME.fetch_or(1 << signal, SeqCst);
    if !HOLDING.load(SeqCst) {
        // The signal arrived during the hold, but the handler ran late.
        stop();
    } else if signal != libc::SIGTSTP {
        // The kernel retries the access to the terminal immediately, and sends another signal.
        let time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        // SAFETY: nanosleep is async-signal-safe (signal-safety(7)) and reads one timespec. The handler restores errno,
        // because the code that the signal interrupted may be about to read it.
        unsafe {
            let errno = libc::__errno_location();
            let before = *errno;
            libc::nanosleep(&raw const time, std::ptr::null_mut());
            *errno = before;
        }
    }
}

/// Stops this process now if a stop was delayed. Call this after the default actions are restored.
fn stop() {
    let came = CAME.swap(0, SeqCst);
    let first = SIGNALS.into_iter().find(|signal| came & 1 << signal != 0);
    if let Some(signal) = first {
        // SAFETY: no pointers. The call cannot fail, so errno stays unchanged.
        unsafe { libc::kill(libc::getpid(), signal) };
    }
}

/// Cancels the delayed stops after another process has continued this process.
pub(super) fn take_back() {
    CAME.store(0, SeqCst);
}

#[cfg(test)]
pub(super) fn put_off(signal: i32) {
    CAME.fetch_or(1 << signal, SeqCst);
}

#[cfg(test)]
pub(super) fn waits() -> bool {
    CAME.load(SeqCst) != 0
}

/// Guard that delays the terminal's stop signals.
pub(crate) struct PutOff;

impl PutOff {
    pub(crate) fn begin() -> PutOff {
        let mut holds = HOLDS.lock().unwrap_or_else(PoisonError::into_inner);
        holds.0 += 1;
        if holds.0 == 1 {
            HOLDING.store(true, SeqCst);
            // Signals that are handled or ignored do not stop us.
            holds.1 = SIGNALS.map(|signal| signals::handler(signal) == libc::SIG_DFL);
            for signal in chosen(holds.1) {
                signals::set_handler(signal, note as *const () as usize);
            }
        }
        PutOff
    }
}

impl Drop for PutOff {
    fn drop(&mut self) {
        let mut holds = HOLDS.lock().unwrap_or_else(PoisonError::into_inner);
        holds.0 -= 1;
        if holds.0 > 0 {
            return;
        }
        for signal in chosen(holds.1) {
            // Another part of this process may have installed its own handler since.
            if signals::handler(signal) == note as *const () as usize {
                signals::set_handler(signal, libc::SIG_DFL);
            }
        }
        HOLDING.store(false, SeqCst);
        drop(holds);
        continued::let_handler_run(&CAME);
        stop();
    }
}

fn chosen(ours: [bool; 3]) -> impl Iterator<Item = i32> {
    SIGNALS
        .into_iter()
        .zip(ours)
        .filter_map(|(signal, ours)| ours.then_some(signal))
}
