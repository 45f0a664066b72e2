//! Early release of a target by its holder.
//!
//! ptrace requests must come from the thread that seized the target, so no other thread can release it. But a signal
//! makes the holder release the target in any situation: in an endless loop, waiting for a lock of another thread of
//! ours, or waiting for a processor behind sixty runnable processes. Each held thread has been prepared to resume its
//! own work (`way_home.rs`). So the effect is the same as if this process were killed at that moment, and the kill
//! tests cover this case too.
//!
//! The handler runs between two instructions of the holder. Work that it must not interrupt is done while a [`Kept`]
//! lives: a write into the memory of a held thread, which must not happen after the thread has resumed, and all work
//! while all threads are held. The handler does not interrupt such work; the end of the work then releases the target.
//!
//! [`Kept`]: super::Kept

use std::sync::atomic::Ordering::SeqCst;

use super::raw::{call, each_thread, each_thread_in};
use super::{Shared, own};
use crate::{restart, signals};

/// Signal, once it has been chosen; 0: none is free.
static SIGNAL: std::sync::OnceLock<i32> = std::sync::OnceLock::new();

/// Returns the signal that tells a holder to release, or 0 if no signal is free. Unblocks the signal in the calling
/// thread.
pub(super) fn signal() -> i32 {
    let signal = *SIGNAL.get_or_init(|| {
        let mut signals = (libc::SIGRTMIN()..=libc::SIGRTMAX()).rev();
        // The host program may use some of these signals itself.
        let free = signals.find(|&signal| signals::handler(signal) == libc::SIG_DFL);
        free.unwrap_or(0)
    });
    if signal != 0 {
        signals::handle(signal, signals::Handler::Plain(handler));
    }
    signal
}

extern "C" fn handler(_: i32) {
    // SAFETY: the handler restores this thread's errno, because the code that the signal interrupted may be about to
    // read it.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    if let Some(shared) = own() {
        let_go_if_asked(shared);
    }
    // SAFETY: as above.
    unsafe { *errno = before };
}

/// Releases the target if the watchdog has requested it and nothing prevents it. This function is async-signal-safe.
pub(super) fn let_go_if_asked(shared: &Shared) {
    let hold = shared.armed.load(SeqCst);
    if hold == 0 || shared.asked.load(SeqCst) != hold || shared.kept.load(SeqCst) != 0 {
        return;
    }
    // The release is recorded first, because the hold is over as soon as the first thread runs.
    shared.let_go.store(hold, SeqCst);
    match usize::try_from(shared.threads.load(SeqCst)) {
        Ok(directory) => each_thread_in(directory, let_thread_go),
        Err(_) => each_thread(shared.target.load(SeqCst), let_thread_go),
    }
}

/// Releases one thread, if this thread holds it. A running thread is told to stop, and is released at the next signal.
fn let_thread_go(tid: i32) {
    // SAFETY: siginfo_t is plain integers and padding; all-zero is valid.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let signal = match request(libc::PTRACE_GETSIGINFO, tid, 0, (&raw mut info).addr()) {
        // If the thread runs, or is not ours, this does nothing.
        Err(libc::ESRCH) => {
            let _ = request(libc::PTRACE_INTERRUPT, tid, 0, 0);
            return;
        }
        // The thread was not stopped by a signal.
        Err(_) => 0,
        Ok(()) => match of_stop(&info) {
            Some(signal) => signal,
            None => return,
        },
    };
    // The thread is in a system call that a stop must not end, and the thread has not been examined yet.
    restart::repeat_at_once(tid);
    let _ = request(libc::PTRACE_DETACH, tid, 0, signal as usize);
}

/// Returns the signal with which a stopped thread continues: the signal for which it has stopped. The kernel does the
/// same when a tracer ends. Returns `None` for a fault, which would kill the thread, and which the holder handles.
fn of_stop(info: &libc::siginfo_t) -> Option<i32> {
    const FAULTS: [i32; 6] = [
        libc::SIGTRAP,
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGILL,
        libc::SIGFPE,
        libc::SIGSYS,
    ];
    // An event has its number above the low byte, and a stop at a system call sets bit 7 (ptrace(2),
    // PTRACE_GETSIGINFO).
    let is_event = info.si_code >> 8 > 0;
    let is_call = info.si_signo == libc::SIGTRAP && info.si_code == libc::SIGTRAP | 0x80;
    if is_event || is_call {
        return Some(0);
    }
    let is_fault = info.si_code > 0 && FAULTS.contains(&info.si_signo);
    (!is_fault).then_some(info.si_signo)
}

/// Makes a ptrace request directly, not through `ptrace.rs`, which counts steps in tests.
fn request(kind: libc::c_uint, tid: i32, address: usize, data: usize) -> Result<(), i32> {
    let arguments = [kind as usize, tid as usize, address, data, 0, 0];
    // SAFETY: the callers pass what ptrace(2) requires; a pointer leads to a live siginfo_t.
    match unsafe { call(libc::SYS_ptrace, arguments) } {
        error if error < 0 => Err(-error as i32),
        _ => Ok(()),
    }
}

/// Sends the signal to a thread of ours. Used by the watchdog, which must not call libc.
pub(super) fn tell(shared: &Shared) {
    let arguments = [
        shared.pid as usize,
        shared.tid as usize,
        shared.signal as usize,
        0,
        0,
        0,
    ];
    // SAFETY: no pointers.
    unsafe { call(libc::SYS_tgkill, arguments) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_goes_on_with_the_signal_that_it_was_stopped_for() {
        let of = |signo, code| {
            // SAFETY: siginfo_t is plain integers and padding; all-zero is valid.
            let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
            (info.si_signo, info.si_code) = (signo, code);
            of_stop(&info)
        };
        assert_eq!(of(libc::SIGUSR1, libc::SI_USER), Some(libc::SIGUSR1));
        assert_eq!(of(libc::SIGURG, libc::SI_TKILL), Some(libc::SIGURG));
        assert_eq!(of(libc::SIGSEGV, libc::SI_USER), Some(libc::SIGSEGV));
        assert_eq!(of(libc::SIGSEGV, 1), None);
        assert_eq!(of(libc::SIGTRAP, libc::SI_KERNEL), None);
        let event = libc::SIGTRAP | libc::PTRACE_EVENT_STOP << 8;
        assert_eq!(of(libc::SIGTRAP, event), Some(0));
        let group = libc::SIGSTOP | libc::PTRACE_EVENT_STOP << 8;
        assert_eq!(of(libc::SIGSTOP, group), Some(0));
        assert_eq!(of(libc::SIGTRAP, libc::SIGTRAP | 0x80), Some(0));
    }
}
