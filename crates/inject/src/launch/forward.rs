//! Signals that others send to us and mean for the program.

use std::sync::atomic::{AtomicI32, Ordering};

static PROGRAM: AtomicI32 = AtomicI32::new(0);

/// Those that end or control a program by convention; SIGKILL and SIGSTOP cannot be handled.
const SIGNALS: [i32; 6] = [
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGUSR1,
    libc::SIGUSR2,
];

extern "C" fn hand_on(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo_t to a handler installed with SA_SIGINFO.
    let code = unsafe { (*info).si_code };
    let pid = PROGRAM.load(Ordering::Relaxed);
    // What the terminal sends (Ctrl-C: SI_KERNEL) goes to the whole foreground process group: the
    // program has it already.
    if code <= 0 && pid > 0 {
        // SAFETY: kill is async-signal-safe (signal-safety(7)) and takes plain integers.
        unsafe { libc::kill(pid, signal) };
    }
}

/// From now on, signals that a process sends to us go to the program `pid`, and Ctrl-C does not end us
/// before it. A signal that we were started with ignored stays so.
pub fn forward_signals(pid: i32) {
    PROGRAM.store(pid, Ordering::Relaxed);
    for signal in SIGNALS {
        // SAFETY: sigaction is plain data; all-zero is valid: no flags, empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: both calls read or write one sigaction each; the handler is async-signal-safe.
        unsafe {
            libc::sigaction(signal, std::ptr::null(), &raw mut action);
            if action.sa_sigaction == libc::SIG_IGN {
                continue;
            }
            action.sa_sigaction = hand_on as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// The program has ended: its number may be another's now.
pub(super) fn stop_forwarding() {
    PROGRAM.store(0, Ordering::Relaxed);
}
