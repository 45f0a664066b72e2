//! A holder lets its target go in the middle of its work.
//!
//! ptrace requests must come from the thread that seized, so nobody can do it in the holder's place. But a signal makes
//! the holder do it, wherever it is: in an endless loop, in a lock that another thread of ours has, behind sixty
//! processes that want to run. Each held thread has its way home prepared (`way_home.rs`), so what it comes to is what it
//! comes to when this process is killed at that moment, and the tests of that hold for this, too.
//!
//! The handler runs between two instructions of the holder. What may not be interrupted by it is done while a [`Kept`]
//! lives: a write into the memory of a held thread, which must not come when the thread runs again, and all that is done
//! while every thread is held. The handler leaves such work alone, and it is the work's own end that lets go then.
//!
//! [`Kept`]: super::Kept

use std::sync::atomic::Ordering::SeqCst;

use super::raw::{call, each_thread, each_thread_in};
use super::{Shared, own};
use crate::{regs, restart, signals};

/// The signal, once it has been chosen; 0: none is free.
static SIGNAL: std::sync::OnceLock<i32> = std::sync::OnceLock::new();

/// The signal by which a holder is told; 0: none is free. The calling thread takes it from now on.
pub(super) fn signal() -> i32 {
    let signal = *SIGNAL.get_or_init(|| {
        let mut signals = (libc::SIGRTMIN()..=libc::SIGRTMAX()).rev();
        // The program that we run in may have its own use for some.
        let free = signals.find(|&signal| signals::handler(signal) == libc::SIG_DFL);
        free.unwrap_or(0)
    });
    if signal != 0 {
        signals::handle(signal, signals::Handler::Plain(handler));
    }
    signal
}

extern "C" fn handler(_: i32) {
    // SAFETY: errno is this thread's, and the code that the signal interrupted may be about to read it.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    if let Some(shared) = own() {
        let_go_if_asked(shared);
    }
    // SAFETY: as above.
    unsafe { *errno = before };
}

/// Lets the target go if the watchdog wants that and nothing is in the way. Async-signal-safe.
pub(super) fn let_go_if_asked(shared: &Shared) {
    let hold = shared.armed.load(SeqCst);
    if hold == 0 || shared.asked.load(SeqCst) != hold || shared.kept.load(SeqCst) != 0 {
        return;
    }
    // First of all: from the first thread on that runs, the hold is over.
    shared.let_go.store(hold, SeqCst);
    match usize::try_from(shared.threads.load(SeqCst)) {
        Ok(directory) => each_thread_in(directory, let_thread_go),
        Err(_) => each_thread(shared.target.load(SeqCst), let_thread_go),
    }
}

/// Lets one thread go, if it is held by this one. One that runs is told to stop, and is let go at the next signal.
fn let_thread_go(tid: i32) {
    // SAFETY: siginfo_t is plain integers and padding; all-zero is valid.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let signal = match request(libc::PTRACE_GETSIGINFO, tid, 0, (&raw mut info).addr()) {
        // It runs, or is not ours: then this does nothing.
        Err(libc::ESRCH) => {
            let _ = request(libc::PTRACE_INTERRUPT, tid, 0, 0);
            return;
        }
        // No signal has stopped it.
        Err(_) => 0,
        Ok(()) => match of_stop(&info) {
            Some(signal) => signal,
            None => return,
        },
    };
    // A call that no stop may end, of a thread that has not been looked at yet.
    if let Ok(now) = regs::read(tid)
        && restart::must_be_repeated(&now)
    {
        let _ = regs::write(tid, &restart::repeat(&now, std::time::Duration::ZERO));
    }
    let _ = request(libc::PTRACE_DETACH, tid, 0, signal as usize);
}

/// The signal with which a thread goes on that has stopped: that for which it has stopped, as the kernel does it where the
/// tracer has ended. `None`: a fault, of which the thread would die, and with which the holder deals.
fn of_stop(info: &libc::siginfo_t) -> Option<i32> {
    const FAULTS: [i32; 6] = [
        libc::SIGTRAP,
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGILL,
        libc::SIGFPE,
        libc::SIGSYS,
    ];
    // An event has its number above the low byte, and the stop at a system call bit 7 (ptrace(2), PTRACE_GETSIGINFO).
    let is_event = info.si_code >> 8 > 0;
    let is_call = info.si_signo == libc::SIGTRAP && info.si_code == libc::SIGTRAP | 0x80;
    if is_event || is_call {
        return Some(0);
    }
    let is_fault = info.si_code > 0 && FAULTS.contains(&info.si_signo);
    (!is_fault).then_some(info.si_signo)
}

/// Past `ptrace.rs`, which counts steps in tests.
fn request(kind: libc::c_uint, tid: i32, address: usize, data: usize) -> Result<(), i32> {
    let arguments = [kind as usize, tid as usize, address, data, 0, 0];
    // SAFETY: the callers pass what ptrace(2) asks for; a pointer leads to a live siginfo_t.
    match unsafe { call(libc::SYS_ptrace, arguments) } {
        error if error < 0 => Err(-error as i32),
        _ => Ok(()),
    }
}

/// Sends the signal to a thread of ours; for the watchdog, which may not call libc.
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
