//! System calls that our stop interrupted.
//!
//! The kernel restarts most of them if the registers are restored with `orig_rax` and one of its internal codes in
//! `rax` (ERESTARTSYS and similar, signal(7)). Some calls end with EINTR after any stop. A program without handlers, or
//! whose handlers use SA_RESTART, does not expect that. So we set such a code for these calls too, and shorten their
//! timeout.

use std::time::Duration;

use super::regs;
use crate::Registers;

/// Length of the `syscall` instruction.
pub(crate) const SYSCALL_BYTES: u64 = 2;
const SYSCALL: [u8; SYSCALL_BYTES as usize] = [0x0f, 0x05];

/// ERESTART_RESTARTBLOCK (include/linux/errno.h), which a tracer sees in rax.
pub(crate) const RESTART_BY_BLOCK: i64 = -516;

/// Missing in the libc crate.
const SYS_IO_PGETEVENTS: i64 = 333;

/// Returns true if a result is a kernel code that leads to a restart: ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND,
/// ERESTART_RESTARTBLOCK (include/linux/errno.h).
pub(crate) fn is_restart_code(result: i64) -> bool {
    matches!(result, -512 | -513 | -514 | RESTART_BY_BLOCK)
}

/// Calls that the kernel ends with EINTR instead of restarting them (signal(7), "Interruption of system calls by stop
/// signals"). Each of them may be repeated as a whole, because a call that had already had an effect returns its
/// result, not EINTR. `close` is not included, because its descriptor is gone.
const NEVER_RESTARTED: &[i64] = &[
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_io_getevents,
    SYS_IO_PGETEVENTS,
    libc::SYS_io_uring_enter,
    // inotify before Linux 3.8
    libc::SYS_read,
    // sockets with SO_RCVTIMEO or SO_SNDTIMEO
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
];

/// Returns true if a thread blocked in call `nr` should not be chosen, because a stop would end the call. A listed call
/// that a stop ends only in some cases counts as restartable.
pub(crate) fn is_disturbed_by_a_stop(nr: i64) -> bool {
    matches!(
        nr,
        libc::SYS_epoll_wait
            | libc::SYS_epoll_pwait
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

/// ERESTARTNOHAND: the kernel repeats the call, or ends it with EINTR if a handler must run.
const RESTART_UNLESS_HANDLED: i64 = -514;

/// Returns true if the thread was stopped in restart_syscall(2), because an earlier stop had interrupted another call.
pub(crate) fn is_restarted(saved: &Registers) -> bool {
    saved.orig_rax as i64 == libc::SYS_restart_syscall && is_restart_code(saved.rax as i64)
}

/// Returns the registers that a thread on its way to restart_syscall(2) will have there, or `None` if it is not on its
/// way. The kernel sets the registers for that call before it leaves the interrupted call, and the thread may be
/// preempted or interrupted between the two. It is then at the `syscall` instruction, and `orig_rax` still has the
/// number of the first call, or none.
pub(crate) fn on_the_way(
    saved: &Registers,
    read: impl Fn(u64, &mut [u8]) -> bool,
) -> Option<Registers> {
    let mut code = [0; SYSCALL_BYTES as usize];
    let is_next = saved.rax as i64 == libc::SYS_restart_syscall
        && read(saved.rip, &mut code)
        && code == SYSCALL;
    is_next.then(|| Registers {
        rip: saved.rip.wrapping_add(SYSCALL_BYTES),
        orig_rax: libc::SYS_restart_syscall as u64,
        rax: RESTART_BY_BLOCK as u64,
        ..*saved
    })
}

/// Returns true if the thread was stopped in a call that is about to return EINTR but must not.
pub(crate) fn must_be_repeated(saved: &Registers) -> bool {
    saved.rax as i64 == -i64::from(libc::EINTR)
        && NEVER_RESTARTED.contains(&(saved.orig_rax as i64))
}

/// Makes a stopped thread repeat the call in which it was stopped, as if the call had just begun, if it must be
/// repeated.
pub(crate) fn repeat_at_once(tid: i32) {
    if let Ok(now) = regs::read(tid)
        && must_be_repeated(&now)
    {
        let _ = regs::write(tid, &repeat(&now, Duration::ZERO));
    }
}

/// Returns true if a stop has ended the call that the thread was in.
pub(crate) fn is_cut_short(stopped: &Registers) -> bool {
    stopped.orig_rax as i64 >= 0 && stopped.rax as i64 == -i64::from(libc::EINTR)
}

/// Returns true if a call that must be repeated has a timeout.
pub(crate) fn has_timeout(saved: &Registers) -> bool {
    match saved.orig_rax as i64 {
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => saved.r10 as i32 > 0,
        _ => timeout_register(&mut saved.clone()).is_some(),
    }
}

/// Returns the registers for an ordinary release of a thread whose call has lasted this long.
pub(crate) fn resumed(saved: &Registers, lasted: Duration) -> Registers {
    if must_be_repeated(saved) {
        repeat(saved, lasted)
    } else {
        *saved
    }
}

/// Returns the registers for a thread that resumes its own work through rt_sigreturn, after which the kernel restarts
/// no call (restore_sigcontext). They repeat the interrupted call. If that was restart_syscall, they repeat the call
/// that restart_syscall continues (`original`, if known). The call ends late, but never with EINTR.
pub(crate) fn unattended(saved: &Registers, lasted: Duration, original: Option<i64>) -> Registers {
    let mut registers = resumed(saved, lasted);
    if registers.orig_rax as i64 >= 0 && is_restart_code(registers.rax as i64) {
        registers.rip = saved.rip.wrapping_sub(SYSCALL_BYTES);
        registers.rax = original.map_or(saved.orig_rax, |number| number as u64);
        registers.orig_rax = u64::MAX;
    }
    registers
}

/// Returns registers that repeat the interrupted call, or end it with EINTR if a signal handler runs first. Without the
/// stop, such a signal would have ended the wait, and a program that waits for a flag set by its handler must not
/// continue to sleep. The kernel decides, because only the kernel sees a signal between our release and the call.
///
/// The timeout of epoll_wait and epoll_pwait is in a register (r10, milliseconds), from which the `lasted` time is
/// subtracted. For other calls, see [`timeout_register`].
pub(crate) fn repeat(saved: &Registers, lasted: Duration) -> Registers {
    let mut registers = *saved;
    registers.rax = RESTART_UNLESS_HANDLED as u64;
    if matches!(
        saved.orig_rax as i64,
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait
    ) {
        let timeout_ms = saved.r10 as i32;
        if timeout_ms > 0 {
            let timeout = Duration::from_millis(timeout_ms as u64);
            let left = timeout.saturating_sub(lasted);
            // The time is rounded up, because waking late is better than waking early.
            registers.r10 = left.as_nanos().div_ceil(1_000_000) as u64;
        }
    }
    registers
}

/// Returns the register that points to a call's timeout, a `struct timespec`. The call reads the timeout only when it
/// begins.
pub(crate) fn timeout_register(registers: &mut Registers) -> Option<&mut u64> {
    let register = match registers.orig_rax as i64 {
        libc::SYS_rt_sigtimedwait => &mut registers.rdx,
        libc::SYS_semtimedop | libc::SYS_epoll_pwait2 => &mut registers.r10,
        libc::SYS_io_getevents | SYS_IO_PGETEVENTS => &mut registers.r8,
        _ => return None,
    };
    (*register != 0).then_some(register)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoll(timeout_ms: i32) -> Registers {
        let mut registers = crate::regs::zeroed();
        registers.rip = 0x1002;
        registers.orig_rax = libc::SYS_epoll_wait as u64;
        registers.rax = -4i64 as u64;
        registers.r10 = timeout_ms as u32 as u64;
        registers
    }

    #[test]
    fn an_infinite_timeout_stays_infinite() {
        let saved = epoll(-1);
        assert!(must_be_repeated(&saved));
        let again = repeat(&saved, Duration::from_secs(9));
        assert_eq!(again.r10 as i32, -1);
        assert_eq!((again.rip, again.rax as i64), (0x1002, -514));
        assert_eq!(again.orig_rax, saved.orig_rax);
        let alone = unattended(&saved, Duration::ZERO, None);
        assert_eq!(
            (alone.rip, alone.rax),
            (0x1000, libc::SYS_epoll_wait as u64)
        );
    }

    #[test]
    fn the_elapsed_time_is_subtracted() {
        let left = |micros| repeat(&epoll(300), Duration::from_micros(micros)).r10;
        assert_eq!(left(0), 300);
        assert_eq!(left(900), 300, "late, not early");
        assert_eq!(left(102_000), 198);
        assert_eq!(left(300_000), 0);
        assert_eq!(left(400_000), 0);
    }

    #[test]
    fn the_way_to_a_restart_is_recognized() {
        let mut saved = epoll(-1);
        saved.rip = 0x1000;
        saved.rax = libc::SYS_restart_syscall as u64;
        let code = |code: &'static [u8]| {
            move |at: u64, into: &mut [u8]| {
                assert_eq!(at, 0x1000);
                into.copy_from_slice(code);
                true
            }
        };
        let entered = on_the_way(&saved, code(&[0x0f, 0x05])).expect("it is on its way");
        assert!(is_restarted(&entered));
        assert_eq!(entered.rip, 0x1002);
        let alone = unattended(&entered, Duration::ZERO, Some(libc::SYS_futex));
        assert_eq!((alone.rip, alone.rax as i64), (0x1000, libc::SYS_futex));
        assert_eq!(alone.orig_rax, u64::MAX);
        assert!(on_the_way(&saved, code(&[0x0f, 0x0b])).is_none());
        assert!(on_the_way(&saved, |_, _: &mut [u8]| false).is_none());
        saved.rax += 1;
        assert!(on_the_way(&saved, code(&[0x0f, 0x05])).is_none());
    }

    #[test]
    fn a_call_that_returned_is_left_alone() {
        let mut saved = epoll(300);
        saved.rax = 1;
        assert!(!must_be_repeated(&saved));
        saved.rax = -4i64 as u64;
        saved.orig_rax = libc::SYS_close as u64;
        assert!(!must_be_repeated(&saved));
    }
}
