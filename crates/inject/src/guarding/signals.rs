//! Signals that are sent to this process.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

static STOPS: AtomicU32 = AtomicU32::new(0);
static RELOADS: AtomicU32 = AtomicU32::new(0);

/// Signals that request the end of this process.
pub(crate) const STOPS_US: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

pub(crate) extern "C" fn count_stop(_: i32) {
    STOPS.fetch_add(1, Relaxed);
}

/// From now on, counts SIGINT, SIGTERM and SIGHUP instead of letting them end this process. An ignored SIGHUP stays
/// ignored, as nohup(1) requests.
pub fn catch_stops() {
    // A shell without job control starts background processes with SIGINT ignored. However, a SIGINT that is sent to
    // this process alone is intentional.
    for signal in [libc::SIGINT, libc::SIGTERM] {
        handle(signal, Handler::Plain(count_stop));
    }
    if !is_ignored(libc::SIGHUP) {
        handle(libc::SIGHUP, Handler::Plain(count_stop));
    }
}

extern "C" fn count_reload(_: i32) {
    RELOADS.fetch_add(1, Relaxed);
}

/// Like [`catch_stops`], for a service: SIGHUP makes it read its configuration again (daemon(7)).
pub fn catch_stops_and_reloads() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        handle(signal, Handler::Plain(count_stop));
    }
    handle(libc::SIGHUP, Handler::Plain(count_reload));
}

/// Returns the number of SIGHUPs since [`catch_stops_and_reloads`].
pub fn reloads() -> u32 {
    RELOADS.load(Relaxed)
}

/// Guard that disables the keys that interrupt, quit and suspend (termios(3), ISIG) for memhook-rs, while it runs a
/// program in the foreground of the terminal. The program still receives them as usual, because no signal is set to be
/// ignored (execve(2)).
pub struct LentKeys([(i32, libc::sighandler_t); 3]);

impl LentKeys {
    /// Disables the keys.
    #[expect(clippy::new_without_default)]
    pub fn new() -> LentKeys {
        let signals = [libc::SIGINT, libc::SIGQUIT, libc::SIGTSTP];
        LentKeys(signals.map(|signal| {
            let before = handler(signal);
            handle(signal, Handler::Plain(pass_over));
            (signal, before)
        }))
    }
}

extern "C" fn pass_over(_: i32) {}

impl Drop for LentKeys {
    fn drop(&mut self) {
        for (signal, before) in self.0 {
            set_handler(signal, before);
        }
    }
}

/// Returns the number of termination signals since [`catch_stops`].
pub fn stops() -> u32 {
    STOPS.load(Relaxed)
}

/// Action for a signal. It must be async-signal-safe and preserve `errno`.
#[derive(Clone, Copy)]
pub(crate) enum Handler {
    Plain(extern "C" fn(i32)),
    WithDetails(extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void)),
}

/// Installs a handler. Interrupted system calls are restarted. A process inherits blocked signals from its parent
/// (execve(2)), so the signal is unblocked in this thread too.
pub(crate) fn handle(signal: i32, handler: Handler) {
    let (handler, flags) = match handler {
        Handler::Plain(handler) => (handler as *const () as usize, 0),
        Handler::WithDetails(handler) => (handler as *const () as usize, libc::SA_SIGINFO),
    };
    install(signal, handler, flags | libc::SA_RESTART);
    unblock(signal);
}

/// Like [`handle`], but interrupted system calls fail with EINTR.
pub(crate) fn handle_and_interrupt(signal: i32, handler: extern "C" fn(i32)) {
    install(signal, handler as *const () as usize, 0);
    unblock(signal);
}

fn unblock(signal: i32) {
    let mut set = MaybeUninit::uninit();
    // SAFETY: each call reads or writes one live structure, and sigemptyset initializes `set`.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut());
    }
}

fn install(signal: i32, handler: libc::sighandler_t, flags: i32) {
    // SAFETY: sigaction is plain data; all-zero is valid: no flags, empty mask. The kernel reads one. A
    // handler is async-signal-safe, and takes the arguments that its flags announce.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigaction(signal, &raw const action, ptr::null_mut());
    }
}

/// Returns true if this process ignores a signal.
pub(crate) fn is_ignored(signal: i32) -> bool {
    handler(signal) == libc::SIG_IGN
}

/// Returns the handler of a signal, SIG_DFL or SIG_IGN.
pub(crate) fn handler(signal: i32) -> libc::sighandler_t {
    // SAFETY: as in `install`; the kernel writes one sigaction.
    let action: libc::sigaction = unsafe {
        let mut action = std::mem::zeroed();
        libc::sigaction(signal, ptr::null(), &raw mut action);
        action
    };
    action.sa_sigaction
}

/// Sets a handler that takes the signal's number, or SIG_DFL or SIG_IGN. Blocked signals stay blocked.
pub(crate) fn set_handler(signal: i32, handler: libc::sighandler_t) {
    install(signal, handler, libc::SA_RESTART);
}
