//! Forwards signals that other processes send to us but intend for the program.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::continued;
use crate::signals::{self, Handler};

static PROGRAM: AtomicI32 = AtomicI32::new(0);
/// Set if SIGCONT has arrived since the last [`HELD_OFF`] signal.
static CONTINUED: AtomicBool = AtomicBool::new(false);

/// Signals that end or control a program by convention. SIGKILL and SIGSTOP cannot be handled.
const SIGNALS: [i32; 7] = [
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGCONT,
];

/// Signals with which the terminal stops a process group. We stop only when the program has stopped: it may first have
/// to restore the screen, and signals for it pass through us.
const HELD_OFF: [i32; 2] = [libc::SIGTSTP, libc::SIGTTIN];

extern "C" fn hand_on(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo_t to a handler installed with SA_SIGINFO.
    let info = unsafe { &*info };
    let code = info.si_code;
    let pid = PROGRAM.load(Ordering::Relaxed);
    if signal == libc::SIGCONT {
        if !continued::is_meant(info) {
            return;
        }
        CONTINUED.store(true, Ordering::Relaxed);
    } else if pid == 0 && signals::STOPS_US.contains(&signal) {
        // The program has ended, so the signal is meant for us.
        signals::count_stop(signal);
    }
    // A signal from the terminal (Ctrl-C: SI_KERNEL) goes to the whole foreground process group, so the program already
    // has it.
    if code <= 0 && pid > 0 {
        // SAFETY: kill is async-signal-safe (signal-safety(7)) and takes plain integers. The handler restores errno,
        // because the code that the signal interrupted may be about to read it.
        unsafe {
            let errno = libc::__errno_location();
            let before = *errno;
            libc::kill(pid, signal);
            *errno = before;
        }
    }
}

extern "C" fn hold_off(_: i32) {
    CONTINUED.store(false, Ordering::Relaxed);
}

/// Stops this process after job control has stopped the program, because the shell that waits for us must see the stop.
/// SIGCONT goes to the whole process group, so both continue.
pub(super) fn stop_too(signal: i32) {
    let pid = PROGRAM.load(Ordering::Relaxed);
    let by_terminal = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal);
    // SAFETY: plain integers.
    let same_group = pid > 0 && unsafe { libc::getpgid(pid) == libc::getpgrp() };
    if by_terminal && same_group && !CONTINUED.load(Ordering::Relaxed) {
        // SAFETY: plain integers.
        unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
    }
    CONTINUED.store(false, Ordering::Relaxed);
}

/// Forwards to the program `pid` the signals that processes send to us, and prevents Ctrl-C from ending us before the
/// program. When the terminal stops the program, we stop too. A signal that was ignored when we were started stays
/// ignored.
pub fn forward_signals(pid: i32) {
    PROGRAM.store(pid, Ordering::Relaxed);
    let forwarded = SIGNALS.map(|signal| (signal, Handler::WithDetails(hand_on)));
    let held_off = HELD_OFF.map(|signal| (signal, Handler::Plain(hold_off)));
    for (signal, handler) in forwarded.into_iter().chain(held_off) {
        if !signals::is_ignored(signal) {
            signals::handle(signal, handler);
        }
    }
}

/// Ends the forwarding after the program has ended, because its id may be reused.
pub(super) fn stop_forwarding() {
    PROGRAM.store(0, Ordering::Relaxed);
}

/// Waits for the end of a program that memhook-rs started and that no longer has a tracer. Returns its wait status.
/// While we wait, we still stop when the terminal stops the program.
pub fn wait_for_program(pid: i32) -> io::Result<i32> {
    loop {
        let mut status = 0;
        // SAFETY: waitpid writes one int.
        if unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) } < 0 {
            match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::EINTR) => continue,
                error => return Err(error),
            }
        }
        if !libc::WIFSTOPPED(status) {
            stop_forwarding();
            return Ok(status);
        }
        stop_too(libc::WSTOPSIG(status));
    }
}

/// Ends this process with the signal that ended the program, so that Ctrl-C ends a script as it would without
/// memhook-rs. Returns if the signal is ignored or blocked.
pub fn end_by(signal: i32) {
    // SAFETY: plain integers; the default action runs no code of ours.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After the program has ended, Ctrl-C is meant for us.
    #[test]
    fn without_a_program_signals_are_ours() {
        forward_signals(0);
        let before = signals::stops();
        // SAFETY: a plain integer; a handler that only counts is installed for this signal.
        unsafe { libc::raise(libc::SIGTERM) };
        assert_eq!(signals::stops(), before + 1);
    }
}
