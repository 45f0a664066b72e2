//! For tests: ends or stops this process at a chosen step of remote work.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Environment variables: the step at which to die, and the delay after it in µs.
pub(crate) const STEP: &str = "MEMHOOK_TEST_STEP";
pub(crate) const DELAY_US: &str = "MEMHOOK_TEST_DELAY_US";
/// Alternatives to dying: the process sends itself a signal, freezes its cgroup (the value is its directory), or sleeps
/// (the value is the number of milliseconds).
pub(crate) const SIGNAL: &str = "MEMHOOK_TEST_SIGNAL";
pub(crate) const FREEZE: &str = "MEMHOOK_TEST_FREEZE";
pub(crate) const BLOCK: &str = "MEMHOOK_TEST_BLOCK";
/// Like `BLOCK`, but computes instead of sleeping.
pub(crate) const SPIN: &str = "MEMHOOK_TEST_SPIN";
/// Another alternative to dying: kill the process with this id, and continue.
pub(crate) const VICTIM: &str = "MEMHOOK_TEST_VICTIM";
/// Used with `SIGNAL`: SIGCONT follows.
pub(crate) const CONTINUE: &str = "MEMHOOK_TEST_CONTINUE";

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn die() {
    if let Ok(cgroup) = std::env::var(FREEZE) {
        std::fs::write(format!("{cgroup}/cgroup.freeze"), "1").expect("it can be frozen");
    }
    if let Some(milliseconds) = number(BLOCK) {
        std::thread::sleep(Duration::from_millis(milliseconds));
        return;
    }
    if let Some(milliseconds) = number(SPIN) {
        let until = Instant::now() + Duration::from_millis(milliseconds);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        return;
    }
    if let Some(victim) = number(VICTIM) {
        // SAFETY: no pointers.
        unsafe { libc::kill(victim as i32, libc::SIGKILL) };
        return;
    }
    let signal = number(SIGNAL).unwrap_or(libc::SIGKILL as u64);
    // SAFETY: no pointers.
    unsafe { libc::kill(libc::getpid(), signal as i32) };
    if std::env::var(CONTINUE).is_ok() {
        // Another thread may receive the first signal, and until then SIGCONT would discard it.
        for _ in 0..40 {
            std::thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: no pointers.
        unsafe { libc::kill(libc::getpid(), libc::SIGCONT) };
    }
}

static DONE: AtomicU64 = AtomicU64::new(0);

/// Returns the number of steps so far.
pub(crate) fn count() -> u64 {
    DONE.load(Ordering::Relaxed)
}

/// Called after each ptrace request, wait and access to the target's memory.
pub(crate) fn done() {
    static LAST: OnceLock<Option<u64>> = OnceLock::new();
    let Some(last) = *LAST.get_or_init(|| number(STEP)) else {
        return;
    };
    if DONE.fetch_add(1, Ordering::Relaxed) + 1 != last {
        return;
    }
    let Some(delay) = number(DELAY_US) else {
        return die();
    };
    // The work continues meanwhile.
    let until = Instant::now() + Duration::from_micros(delay);
    std::thread::spawn(move || {
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        die();
    });
}
