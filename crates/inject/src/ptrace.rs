//! The ptrace requests used, as safe functions. Numbers are those of `<linux/ptrace.h>`; nix lacks
//! several of them, so all go through `libc::ptrace`.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

pub(crate) const GETREGSET: libc::c_uint = 0x4204;
pub(crate) const SETREGSET: libc::c_uint = 0x4205;
const CONT: libc::c_uint = 7;
const DETACH: libc::c_uint = 17;
const SYSCALL: libc::c_uint = 24;
const SETOPTIONS: libc::c_uint = 0x4200;
const GETEVENTMSG: libc::c_uint = 0x4201;
const GETSIGINFO: libc::c_uint = 0x4202;
const SEIZE: libc::c_uint = 0x4206;
const INTERRUPT: libc::c_uint = 0x4207;
const LISTEN: libc::c_uint = 0x4208;
const PEEKSIGINFO: libc::c_uint = 0x4209;
const GETSIGMASK: libc::c_uint = 0x420a;
const SETSIGMASK: libc::c_uint = 0x420b;
const GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;

/// Options: mark system-call stops with bit 7 of the signal; report execve. Never EXITKILL.
const OPTIONS: usize = 0x1 | 0x10;
/// For a program that was started here, also: seize new threads, stop each at its end.
const OPTIONS_OF_CHILD: usize = OPTIONS | 0x8 | 0x40;
/// Seize the processes that it makes, by fork or vfork.
const TRACE_FORKS: usize = 0x2 | 0x4;

/// The option to report clone, and to trace what it makes.
const TRACE_CLONE: usize = 0x8;

/// The option to let a tracee's system calls past its seccomp filters.
const SUSPEND_SECCOMP: usize = 0x20_0000;
/// Whether the kernel has refused that option.
static NO_SUSPENSION: AtomicBool = AtomicBool::new(false);

/// One raw request.
///
/// # Safety
/// `address` and `data` must be what ptrace(2) asks for with this request; where one is a pointer
/// into this process it must be valid for what the kernel reads or writes there.
pub(crate) unsafe fn request(
    request: libc::c_uint,
    tid: i32,
    address: usize,
    data: usize,
) -> io::Result<i64> {
    // SAFETY: the caller vouches for the pointers; the request itself affects only the tracee.
    let result = unsafe { libc::ptrace(request, tid, address, data) };
    #[cfg(test)]
    crate::steps::done();
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Becomes the tracer of `tid` without stopping it.
pub(crate) fn seize(tid: i32) -> io::Result<()> {
    // SAFETY: no pointers.
    unsafe { request(SEIZE, tid, 0, OPTIONS) }.map(drop)
}

/// Asks a seized thread to stop; the stop is reported by waitpid as PTRACE_EVENT_STOP.
pub(crate) fn interrupt(tid: i32) -> io::Result<()> {
    // SAFETY: no pointers.
    unsafe { request(INTERRUPT, tid, 0, 0) }.map(drop)
}

/// Resumes a stopped thread, delivering `signal` (0 for none).
pub(crate) fn resume(tid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no pointers.
    unsafe { request(CONT, tid, 0, signal as usize) }.map(drop)
}

/// Resumes a stopped thread up to its next system-call entry or exit, delivering `signal` (0 for none).
pub(crate) fn resume_to_syscall(tid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no pointers.
    unsafe { request(SYSCALL, tid, 0, signal as usize) }.map(drop)
}

/// Keeps a thread in its group-stop, to be woken by SIGCONT.
pub(crate) fn listen(tid: i32) -> io::Result<()> {
    // SAFETY: no pointers.
    unsafe { request(LISTEN, tid, 0, 0) }.map(drop)
}

/// From now on new threads of a stopped one are seized, and each stops at its end; with `forks`, new processes too.
pub(crate) fn follow_threads(tid: i32, forks: bool) -> io::Result<()> {
    let options = if forks {
        OPTIONS_OF_CHILD | TRACE_FORKS
    } else {
        OPTIONS_OF_CHILD
    };
    // SAFETY: no pointers.
    unsafe { request(SETOPTIONS, tid, 0, options) }.map(drop)
}

/// What the present event is about: of a thread at its end, its wait status.
pub(crate) fn event_message(tid: i32) -> io::Result<u64> {
    let mut message = 0u64;
    // SAFETY: the kernel writes one unsigned long.
    unsafe { request(GETEVENTMSG, tid, 0, (&raw mut message) as usize)? };
    Ok(message)
}

/// Sets the options of a stopped thread, and has its seccomp filters passed over as long as it is
/// traced: what we call in it would else be refused, or kill it. The kernel allows that to a tracer
/// with CAP_SYS_ADMIN and without filters of its own (ptrace(2), PTRACE_O_SUSPEND_SECCOMP).
///
/// Returns whether they are passed over.
fn set_options(tid: i32, options: usize) -> io::Result<bool> {
    if !NO_SUSPENSION.load(Relaxed) {
        // SAFETY: no pointers.
        match unsafe { request(SETOPTIONS, tid, 0, options | SUSPEND_SECCOMP) } {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EINVAL)) => {
                NO_SUSPENSION.store(true, Relaxed);
            }
            done => return done.map(|_| true),
        }
    }
    // SAFETY: no pointers.
    unsafe { request(SETOPTIONS, tid, 0, options) }.map(|_| false)
}

/// Has the seccomp filters of a stopped thread passed over while it is held, where that is allowed;
/// returns whether it is.
pub(crate) fn suspend_filters(tid: i32) -> io::Result<bool> {
    set_options(tid, OPTIONS)
}

/// Lets a stopped thread go.
pub(crate) fn detach(tid: i32) -> io::Result<()> {
    // SAFETY: no pointers.
    unsafe { request(DETACH, tid, 0, 0) }.map(drop)
}

/// The blocked signals; where a call such as ppoll replaced the mask for its duration, the mask
/// it will put back (kernel/ptrace.c, PTRACE_GETSIGMASK).
pub(crate) fn signal_mask(tid: i32) -> io::Result<u64> {
    let mut mask = 0u64;
    // SAFETY: the kernel writes the 8 bytes that `address` announces.
    unsafe { request(GETSIGMASK, tid, size_of::<u64>(), (&raw mut mask) as usize)? };
    Ok(mask)
}

/// Sets the blocked signals.
pub(crate) fn set_signal_mask(tid: i32, mask: u64) -> io::Result<()> {
    let mut mask = mask;
    // SAFETY: the kernel reads the 8 bytes that `address` announces.
    unsafe { request(SETSIGMASK, tid, size_of::<u64>(), (&raw mut mask) as usize) }.map(drop)
}

/// Has the children that a stopped thread makes traced by us too, from their first instruction on.
pub(crate) fn follow_children(tid: i32) -> io::Result<()> {
    set_options(tid, OPTIONS | TRACE_CLONE).map(drop)
}

/// The id, as this process sees it, of the child that a thread in a clone event stop has made.
pub(crate) fn new_child(tid: i32) -> io::Result<i32> {
    let mut id: libc::c_ulong = 0;
    // SAFETY: the kernel writes one unsigned long.
    unsafe { request(GETEVENTMSG, tid, 0, (&raw mut id) as usize)? };
    Ok(id as i32)
}

/// What is known about the signal of the current signal-delivery-stop.
pub(crate) fn signal_info(tid: i32) -> io::Result<libc::siginfo_t> {
    // SAFETY: siginfo_t is plain integers and padding; all-zero is valid.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one siginfo_t.
    unsafe { request(GETSIGINFO, tid, 0, (&raw mut info) as usize)? };
    Ok(info)
}

/// Signals that wait for a stopped thread, or for any of its process (`shared`), from the `from`th on.
/// They stay queued.
pub(crate) fn pending_signals(
    tid: i32,
    shared: bool,
    from: u64,
) -> io::Result<Vec<libc::siginfo_t>> {
    // struct ptrace_peeksiginfo_args { u64 off; u32 flags; s32 nr; }
    #[repr(C)]
    struct Arguments {
        from: u64,
        flags: u32,
        count: i32,
    }
    const PEEKSIGINFO_SHARED: u32 = 1;
    const COUNT: usize = 64;
    let arguments = Arguments {
        from,
        flags: if shared { PEEKSIGINFO_SHARED } else { 0 },
        count: COUNT as i32,
    };
    // SAFETY: siginfo_t is plain integers and padding; all-zero is valid.
    let mut found: Vec<libc::siginfo_t> = vec![unsafe { std::mem::zeroed() }; COUNT];
    let (address, data) = (&raw const arguments, found.as_mut_ptr());
    // SAFETY: the kernel reads the arguments, and writes at most `count` of siginfo_t.
    let written = unsafe { request(PEEKSIGINFO, tid, address as usize, data as usize)? };
    found.truncate(usize::try_from(written).unwrap_or(0));
    Ok(found)
}

/// Address of the thread's `struct rseq`, 0 if it has none or the kernel (before 5.13) can't say.
pub(crate) fn rseq_address(tid: i32) -> u64 {
    // struct ptrace_rseq_configuration { u64 pointer; u32 size, signature, flags, pad; }
    let mut configuration = [0u64; 3];
    let bytes = size_of_val(&configuration);
    let data = (&raw mut configuration) as usize;
    // SAFETY: the kernel writes at most the 24 bytes that `address` announces.
    match unsafe { request(GET_RSEQ_CONFIGURATION, tid, bytes, data) } {
        Ok(_) => configuration[0],
        Err(_) => 0,
    }
}
