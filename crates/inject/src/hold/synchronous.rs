//! Synchronous signals that wait for a thread when it is stopped.
//!
//! The kernel stops a thread that a tracer interrupts before the thread takes its signals (get_signal in kernel/signal.c). So
//! the signal that its last instruction or system call has caused may still wait: SIGSYS of a seccomp filter that traps
//! (browsers' sandboxes) or of syscall user dispatch (Wine), SIGTRAP of a breakpoint, SIGABRT of raise(3). Such a signal
//! belongs to the registers of that moment: a handler that runs later answers a system call that is over. And while we
//! run code in the thread, it would look like a fault of ours.
//!
//! So a thread takes these signals before anything is done with it: their handlers start, and it is stopped again at the
//! first instruction. Those that it may not take, because it blocks them, and those of the whole process stay queued and
//! blocked until the thread is as it was.

use std::io;

use crate::ptrace;
use memhook_process::blocked_by_thread;

/// The signals that the kernel forces on a thread for what that does, and that of abort(3).
pub(crate) const SYNCHRONOUS: [i32; 7] = [
    libc::SIGTRAP,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGSYS,
    libc::SIGABRT,
];

/// A set of signals with one in it.
pub(crate) fn only(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The synchronous signals that wait for a stopped thread, or for its whole process (`shared`).
fn waiting(tid: i32, shared: bool) -> io::Result<u64> {
    let mut set = 0;
    let mut from = 0;
    loop {
        let signals = ptrace::pending_signals(tid, shared, from)?;
        if signals.is_empty() {
            return Ok(set);
        }
        from += signals.len() as u64;
        let numbers = signals.iter().map(|signal| signal.si_signo);
        set |= numbers
            .filter(|number| SYNCHRONOUS.contains(number))
            .fold(0, |set, number| set | only(number));
    }
}

/// Synchronous signals that wait for a stopped thread, with whatever it has to do before it takes them.
pub(crate) fn all_waiting(tid: i32) -> io::Result<u64> {
    Ok(waiting(tid, false)? | waiting(tid, true)?)
}

/// Returns true if a thread that an interrupt has stopped has to take a synchronous signal first. If it is resumed, it
/// stops for that at once: the signal is its own, it does not block it, and nobody else can take it.
pub(crate) fn comes_first(pid: i32, tid: i32) -> io::Result<bool> {
    let waiting = waiting(tid, false)?;
    Ok(waiting != 0 && blocked_by_thread(pid, tid).is_some_and(|blocked| waiting & !blocked != 0))
}

/// Lets a thread that has stopped for a signal take it, and stops it again at the first instruction of the handler.
pub(crate) fn take(tid: i32, signal: i32) -> io::Result<()> {
    ptrace::interrupt(tid)?;
    ptrace::resume(tid, signal)
}
