//! Synchronous signals that are pending when a thread is stopped.
//!
//! If a tracer interrupts a thread, the kernel stops the thread before the thread handles its signals (get_signal in
//! kernel/signal.c). So a signal raised by its last instruction or system call may still be pending: SIGSYS of a
//! seccomp filter that traps (browsers' sandboxes) or of syscall user dispatch (Wine), SIGTRAP of a breakpoint, SIGABRT
//! of raise(3). Such a signal refers to the current registers: a handler that runs later would handle a system call
//! that is over. Also, while we run code in the thread, the signal would look like a fault in our code.
//!
//! So the thread handles these signals first: their handlers start, and the thread is stopped again at a handler's
//! first instruction. Signals that the thread blocks, and process-directed signals, stay queued and blocked until the
//! thread is restored.

use std::io;

use crate::ptrace;
use memhook_process::blocked_by_thread;

/// Signals that the kernel forces on a thread because of what the thread does, and SIGABRT, which abort(3) raises.
pub(crate) const SYNCHRONOUS: [i32; 7] = [
    libc::SIGTRAP,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGSYS,
    libc::SIGABRT,
];

/// Returns a set of signals that contains only this signal.
pub(crate) fn only(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Returns the synchronous signals that are pending for a stopped thread, or for its whole process if `shared`.
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

/// Returns the synchronous signals that are pending for a stopped thread and for its whole process, including signals
/// that the thread blocks.
pub(crate) fn all_waiting(tid: i32) -> io::Result<u64> {
    Ok(waiting(tid, false)? | waiting(tid, true)?)
}

/// Returns true if a thread that was stopped by PTRACE_INTERRUPT must first handle a synchronous signal. When resumed,
/// the thread stops for that signal immediately: it was sent to the thread, it is not blocked, and no other thread can
/// take it.
pub(crate) fn comes_first(pid: i32, tid: i32) -> io::Result<bool> {
    let waiting = waiting(tid, false)?;
    Ok(waiting != 0 && blocked_by_thread(pid, tid).is_some_and(|blocked| waiting & !blocked != 0))
}

/// Makes a thread that has stopped for a signal handle that signal, and stops the thread again at the first instruction
/// of the handler.
pub(crate) fn take(tid: i32, signal: i32) -> io::Result<()> {
    ptrace::interrupt(tid)?;
    ptrace::resume(tid, signal)
}
