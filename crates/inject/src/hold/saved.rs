//! State of a thread when it was stopped.

use std::io;
use std::time::{Duration, Instant};

use crate::native_stack::{self, Room};
use crate::slept::Sleep;
use crate::survey::Survey;
use crate::{Registers, ptrace, regs, restart, restarted, synchronous};
use memhook_process::RemoteAddress;

/// State of a thread at its first stop, to be restored on release.
pub(crate) struct Saved {
    pub stopped_at: Instant,
    pub registers: Registers,
    pub extended: Vec<u8>,
    /// Blocked signals.
    pub mask: u64,
    /// Pending synchronous signals that the thread could not handle first (`synchronous.rs`).
    pub waiting: u64,
    /// Start time of the thread's current system call, if the kernel would not restart the call.
    pub sleep: Sleep,
    /// Kernel function in which the thread waited, if it was in restart_syscall(2).
    pub waits_in: String,
    /// Space for the signal frames on the thread's own stack, or the reason why there is no such space.
    pub room: Result<Room, String>,
}

impl Saved {
    /// Reads the state of a thread that is in an event stop. An error names the ptrace request that failed.
    pub(crate) fn of(
        pid: i32,
        tid: i32,
        sleep: Sleep,
        survey: &Survey,
    ) -> Result<Saved, (&'static str, io::Error)> {
        let stopped_at = Instant::now();
        let registers = regs::read(tid).map_err(|e| ("GETREGSET NT_PRSTATUS", e))?;
        restarted::remember(tid, &registers);
        let sleep = set_to_repeat(pid, tid, &registers, sleep, stopped_at)
            .map_err(|e| ("SETREGSET NT_PRSTATUS", e))?;
        Ok(Saved {
            stopped_at,
            extended: regs::read_extended(tid).map_err(|e| ("GETREGSET NT_X86_XSTATE", e))?,
            mask: ptrace::signal_mask(tid).map_err(|e| ("GETSIGMASK", e))?,
            waiting: synchronous::all_waiting(tid).map_err(|e| ("PEEKSIGINFO", e))?,
            sleep,
            waits_in: String::new(),
            room: native_stack::room(&survey.mappings, tid, &registers, |address, into| {
                survey.target.read(RemoteAddress(address), into).is_ok()
            }),
            registers,
        })
    }

    /// Returns a lower bound on the duration of the interrupted call so far.
    pub(crate) fn call_lasts(&self) -> Duration {
        self.sleep.lasts(self.stopped_at)
    }
}

/// Sets the registers of a stopped thread so that a system call that must be restarted is restarted even if this
/// process is killed. Returns what is known about the call's duration.
pub(crate) fn set_to_repeat(
    pid: i32,
    tid: i32,
    registers: &Registers,
    sleep: Sleep,
    stopped_at: Instant,
) -> io::Result<Sleep> {
    if !restart::must_be_repeated(registers) {
        return Ok(sleep);
    }
    // The registers are set first, so that the program does not see EINTR if this process is killed from here on.
    regs::write(tid, &restart::repeat(registers, stopped_at.elapsed()))?;
    if !restart::has_timeout(registers) {
        return Ok(sleep);
    }
    let sleep = sleep.confirmed(pid, tid);
    regs::write(tid, &restart::repeat(registers, sleep.lasts(stopped_at)))?;
    Ok(sleep)
}
