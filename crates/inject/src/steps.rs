//! For tests: ends this process by SIGKILL at a chosen step of remote work.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Variables of the environment: the step to die at, and after how many µs more.
pub(crate) const STEP: &str = "MEMHOOK_TEST_STEP";
pub(crate) const DELAY_US: &str = "MEMHOOK_TEST_DELAY_US";

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn die() {
    // SAFETY: no pointers.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

/// Called after each ptrace request, wait and access to the target's memory.
pub(crate) fn done() {
    static LAST: OnceLock<Option<u64>> = OnceLock::new();
    static DONE: AtomicU64 = AtomicU64::new(0);
    let Some(last) = *LAST.get_or_init(|| number(STEP)) else {
        return;
    };
    if DONE.fetch_add(1, Ordering::Relaxed) + 1 != last {
        return;
    }
    let Some(delay) = number(DELAY_US) else {
        return die();
    };
    // Beside the work, which goes on meanwhile.
    let until = Instant::now() + Duration::from_micros(delay);
    std::thread::spawn(move || {
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        die();
    });
}
