//! Signals that were taken off a thread during remote work go back to it.

/// Sends a signal to the thread once more, or to the process if the thread has ended.
///
/// With its siginfo where the kernel allows it: for a foreign process only with negative si_code,
/// as of sigqueue(3) (rt_sigqueueinfo(2)).
pub(crate) fn send_again(pid: i32, tid: i32, signal: i32, info: &libc::siginfo_t) {
    if info.si_code < 0 && info.si_code != libc::SI_TKILL {
        let info: *const libc::siginfo_t = info;
        // SAFETY: the kernel reads one siginfo_t, which is live.
        let sent = unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, info) };
        if sent == 0 {
            return;
        }
    }
    // SAFETY: no pointers.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) };
    if sent != 0 {
        // SAFETY: no pointers.
        unsafe { libc::kill(pid, signal) };
    }
}
