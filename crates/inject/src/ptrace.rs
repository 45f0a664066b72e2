//! The ptrace requests in use, as safe functions. nix lacks several of them, so all use `libc::ptrace`.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// System call stops are marked with bit 7 of the signal, and execve is reported. EXITKILL is never used.
const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC;
/// For a program that memhook-rs started: also seizes new threads, and stops each thread when it exits.
const OPTIONS_OF_CHILD: i32 = OPTIONS | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEEXIT;
/// Also seizes the processes that the program creates by fork or vfork.
const TRACE_FORKS: i32 = libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK;

/// Set if the kernel has refused PTRACE_O_SUSPEND_SECCOMP.
static NO_SUSPENSION: AtomicBool = AtomicBool::new(false);

/// Makes one raw request.
///
/// # Safety
/// `address` and `data` must be what ptrace(2) requires for this request; a pointer into this process must be valid for
/// the kernel's access.
pub(crate) unsafe fn request(
    request: libc::c_uint,
    tid: i32,
    address: usize,
    data: usize,
) -> io::Result<i64> {
    // SAFETY: the caller guarantees that the pointers are valid. The request itself affects only the tracee.
    let result = unsafe { libc::ptrace(request, tid, address, data) };
    crate::watchdog::step();
    #[cfg(test)]
    crate::steps::done();
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Makes a request without pointers.
fn plain(kind: libc::c_uint, tid: i32, data: i32) -> io::Result<()> {
    // SAFETY: the kernel follows no pointer for the requests below that use this function.
    unsafe { request(kind, tid, 0, data as usize) }.map(drop)
}

/// Becomes the tracer of `tid` without stopping it.
pub(crate) fn seize(tid: i32) -> io::Result<()> {
    plain(libc::PTRACE_SEIZE, tid, OPTIONS)
}

/// Asks a seized thread to stop; waitpid reports the stop as PTRACE_EVENT_STOP.
pub(crate) fn interrupt(tid: i32) -> io::Result<()> {
    plain(libc::PTRACE_INTERRUPT, tid, 0)
}

/// Resumes a stopped thread, delivering `signal` (0 for none).
pub(crate) fn resume(tid: i32, signal: i32) -> io::Result<()> {
    plain(libc::PTRACE_CONT, tid, signal)
}

/// Resumes a stopped thread up to its next system-call entry or exit, delivering `signal` (0 for none).
pub(crate) fn resume_to_syscall(tid: i32, signal: i32) -> io::Result<()> {
    plain(libc::PTRACE_SYSCALL, tid, signal)
}

/// Keeps a thread in its group-stop until SIGCONT.
pub(crate) fn listen(tid: i32) -> io::Result<()> {
    plain(libc::PTRACE_LISTEN, tid, 0)
}

/// Seizes all threads that a stopped thread starts from now on, and stops each of them when it exits. With `forks`,
/// also seizes the processes that it creates.
pub(crate) fn follow_threads(tid: i32, forks: bool) -> io::Result<()> {
    let forks = if forks { TRACE_FORKS } else { 0 };
    plain(libc::PTRACE_SETOPTIONS, tid, OPTIONS_OF_CHILD | forks)
}

/// Returns the value of the current event: the wait status of an exiting thread, or, for a clone, the child's id in our
/// namespace.
pub(crate) fn event_message(tid: i32) -> io::Result<u64> {
    let mut message = 0u64;
    // SAFETY: the kernel writes one unsigned long.
    unsafe {
        request(
            libc::PTRACE_GETEVENTMSG,
            tid,
            0,
            (&raw mut message) as usize,
        )?
    };
    Ok(message)
}

/// Sets the options of a stopped thread. Suspends the thread's seccomp filters while it is traced, because they might
/// refuse our calls in the thread, or kill the thread for making them. The kernel allows this only for a tracer with
/// CAP_SYS_ADMIN and without filters of its own (ptrace(2), PTRACE_O_SUSPEND_SECCOMP).
///
/// Returns true if the filters are suspended.
fn set_options(tid: i32, options: i32) -> io::Result<bool> {
    if !NO_SUSPENSION.load(Relaxed) {
        match plain(
            libc::PTRACE_SETOPTIONS,
            tid,
            options | libc::PTRACE_O_SUSPEND_SECCOMP,
        ) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EINVAL)) => {
                NO_SUSPENSION.store(true, Relaxed);
            }
            done => return done.map(|()| true),
        }
    }
    plain(libc::PTRACE_SETOPTIONS, tid, options).map(|()| false)
}

/// Suspends the seccomp filters of a stopped thread while it is held, if that is allowed. Returns true if they are
/// suspended.
pub(crate) fn suspend_filters(tid: i32) -> io::Result<bool> {
    set_options(tid, OPTIONS)
}

/// Detaches from a stopped thread, which continues.
pub(crate) fn detach(tid: i32) -> io::Result<()> {
    plain(libc::PTRACE_DETACH, tid, 0)
}

/// Returns the blocked signals. While a call such as ppoll has replaced the mask, this is the mask that the call will
/// restore (kernel/ptrace.c, PTRACE_GETSIGMASK).
pub(crate) fn signal_mask(tid: i32) -> io::Result<u64> {
    let mut mask = 0u64;
    // SAFETY: the kernel writes the 8 bytes that `address` announces.
    unsafe {
        request(
            libc::PTRACE_GETSIGMASK,
            tid,
            size_of::<u64>(),
            (&raw mut mask) as usize,
        )?
    };
    Ok(mask)
}

/// Sets the blocked signals.
pub(crate) fn set_signal_mask(tid: i32, mask: u64) -> io::Result<()> {
    let mut mask = mask;
    // SAFETY: the kernel reads the 8 bytes that `address` announces.
    unsafe {
        request(
            libc::PTRACE_SETSIGMASK,
            tid,
            size_of::<u64>(),
            (&raw mut mask) as usize,
        )
    }
    .map(drop)
}

/// Traces the children of a stopped thread too, from their first instruction.
pub(crate) fn follow_children(tid: i32) -> io::Result<()> {
    set_options(tid, OPTIONS | libc::PTRACE_O_TRACECLONE).map(drop)
}

/// Returns the siginfo of the current signal-delivery-stop.
pub(crate) fn signal_info(tid: i32) -> io::Result<libc::siginfo_t> {
    // SAFETY: siginfo_t is plain integers and padding; all-zero is valid.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one siginfo_t.
    unsafe { request(libc::PTRACE_GETSIGINFO, tid, 0, (&raw mut info) as usize)? };
    Ok(info)
}

/// Returns the pending signals of a stopped thread, or of its whole process (`shared`), starting with number `from`.
/// They stay queued.
pub(crate) fn pending_signals(
    tid: i32,
    shared: bool,
    from: u64,
) -> io::Result<Vec<libc::siginfo_t>> {
    const COUNT: usize = 64;
    let arguments = libc::ptrace_peeksiginfo_args {
        off: from,
        flags: if shared {
            libc::PTRACE_PEEKSIGINFO_SHARED
        } else {
            0
        },
        nr: COUNT as i32,
    };
    // SAFETY: siginfo_t is plain integers and padding; all-zero is valid.
    let mut found: Vec<libc::siginfo_t> = vec![unsafe { std::mem::zeroed() }; COUNT];
    let (address, data) = (&raw const arguments, found.as_mut_ptr());
    // SAFETY: the kernel reads the arguments, and writes at most `nr` of siginfo_t.
    let written = unsafe {
        request(
            libc::PTRACE_PEEKSIGINFO,
            tid,
            address as usize,
            data as usize,
        )?
    };
    found.truncate(usize::try_from(written).unwrap_or(0));
    Ok(found)
}

/// Returns true if the kernel passes the system calls of a stopped thread to a handler of the program (prctl(2),
/// PR_SET_SYSCALL_USER_DISPATCH). A kernel before 6.4 does not report this.
pub(crate) fn dispatches_calls(tid: i32) -> bool {
    // PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, and struct ptrace_sud_config { u64 mode, selector, offset, len; }
    // (linux/ptrace.h).
    const REQUEST: libc::c_uint = 0x4211;
    let mut configuration = [0u64; 4];
    let bytes = size_of_val(&configuration);
    // SAFETY: the kernel writes the 32 bytes that `address` announces, or nothing.
    let read = unsafe { request(REQUEST, tid, bytes, (&raw mut configuration) as usize) };
    read.is_ok() && configuration[0] != 0
}

/// Returns the address of the thread's `struct rseq`, or 0 if it has none or the kernel (before 5.13) does not report
/// it.
pub(crate) fn rseq_address(tid: i32) -> u64 {
    // struct ptrace_rseq_configuration { u64 pointer; u32 size, signature, flags, pad; }
    let mut configuration = [0u64; 3];
    let bytes = size_of_val(&configuration);
    let data = (&raw mut configuration) as usize;
    // SAFETY: the kernel writes at most the 24 bytes that `address` announces.
    match unsafe { request(libc::PTRACE_GET_RSEQ_CONFIGURATION, tid, bytes, data) } {
        Ok(_) => configuration[0],
        Err(_) => 0,
    }
}
