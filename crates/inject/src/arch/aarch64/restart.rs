//! System calls that our stop interrupted.
//!
//! The kernel prepares the restart of most calls before a tracer sees the stop: the program counter is back at the `svc`
//! instruction, and x0 has its argument again (`do_signal` of arch/arm64/kernel/signal.c). Some calls end with EINTR
//! after any stop.

use crate::Registers;

/// Missing in the libc crate.
const SYS_IO_PGETEVENTS: i64 = 292;

/// Returns true if a thread blocked in call `nr` must not be stopped, because a stop would end the call with EINTR
/// (signal(7), "Interruption of system calls by stop signals").
pub(crate) fn is_disturbed_by_a_stop(nr: i64) -> bool {
    matches!(
        nr,
        libc::SYS_epoll_pwait
            | libc::SYS_epoll_pwait2
            | libc::SYS_rt_sigtimedwait
            | libc::SYS_semop
            | libc::SYS_semtimedop
            | libc::SYS_msgsnd
            | libc::SYS_msgrcv
            | libc::SYS_io_getevents
            | SYS_IO_PGETEVENTS
            | libc::SYS_io_uring_enter
    )
}

/// Returns true if a stop has ended the call that the thread was in. The kernel has then forgotten which call that was,
/// but x8 still holds its number (`forget_syscall` of asm/processor.h).
pub(crate) fn is_cut_short(stopped: &Registers) -> bool {
    stopped.x[0] as i64 == -i64::from(libc::EINTR) && is_disturbed_by_a_stop(stopped.x[8] as i64)
}

/// Does nothing: no register of a thread is written on this processor, so threads in calls that would have to be repeated
/// are not stopped.
pub(crate) fn repeat_at_once(_: i32) {}
