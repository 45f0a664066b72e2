//! System calls that our stop interrupted.
//!
//! The kernel restarts most of them by itself once `orig_rax` and `rax` are back (signal(7),
//! "Interruption of system calls"). Some return EINTR even when no handler ran; those we begin
//! again, so that the program never learns of the stop.

use crate::regs::Registers;
use std::{fs, time::Duration};

const EINTR: i64 = -(libc::EINTR as i64);

/// Calls that end with EINTR after any stop (signal(7), last list; ptrace stops count too).
pub fn never_restarted(nr: i64) -> bool {
    matches!(
        nr,
        libc::SYS_epoll_wait
            | libc::SYS_epoll_pwait
            | libc::SYS_epoll_pwait2
            | libc::SYS_rt_sigtimedwait
            | libc::SYS_semop
            | libc::SYS_semtimedop
            | libc::SYS_io_getevents
            | libc::SYS_msgrcv
            | libc::SYS_msgsnd
    )
}

/// Whether the call that this thread is in (from `/proc/PID/task/TID/syscall`) has a finite
/// timeout that we could not renew exactly.
pub fn has_finite_timeout(nr: i64, args: &[u64; 6]) -> bool {
    match nr {
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => args[3] as i32 > 0,
        libc::SYS_epoll_pwait2 | libc::SYS_semtimedop => args[3] != 0,
        libc::SYS_rt_sigtimedwait => args[2] != 0,
        libc::SYS_io_getevents => args[4] != 0,
        _ => false,
    }
}

/// How long the thread has been asleep, in the scheduler's clock, if the kernel shows it
/// (`/proc/PID/task/TID/sched`, `se.exec_start`, milliseconds of the run queue clock, which runs
/// with CLOCK_MONOTONIC on machines with a stable TSC).
pub fn asleep_for(pid: i32, tid: i32) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/sched")).ok()?;
    let line = text.lines().find(|l| l.starts_with("se.exec_start"))?;
    let started_ms: f64 = line.rsplit(':').next()?.trim().parse().ok()?;
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid timespec for the kernel to fill.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let now_ms = now.tv_sec as f64 * 1e3 + now.tv_nsec as f64 / 1e6;
    (started_ms <= now_ms).then(|| Duration::from_secs_f64((now_ms - started_ms) / 1e3))
}

/// Changes the saved registers of a thread whose call was cut short by our stop, so that it begins
/// the call again when it runs on. `asleep`: how long it had already waited.
pub fn begin_again(regs: &mut Registers, asleep: Option<Duration>) {
    let nr = regs.orig_rax as i64;
    if nr < 0 || regs.rax as i64 != EINTR || !never_restarted(nr) {
        return;
    }
    if matches!(nr, libc::SYS_epoll_wait | libc::SYS_epoll_pwait) && regs.r10 as i32 > 0 {
        // The timeout is an argument in a register: renew it with what is left. If the elapsed
        // time is not known or not plausible, wait the full time again: late, never early.
        let timeout_ms = u64::from(regs.r10 as u32);
        if let Some(asleep) = asleep {
            let elapsed_ms = asleep.as_millis() as u64;
            if elapsed_ms <= timeout_ms {
                regs.r10 = timeout_ms - elapsed_ms;
            }
        }
    }
    regs.rax = regs.orig_rax;
    regs.rip -= 2; // onto the `syscall` instruction, two bytes long
    regs.orig_rax = u64::MAX; // nothing left for the kernel to restart
}
