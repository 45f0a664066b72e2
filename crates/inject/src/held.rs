//! One thread, seized and stopped, and everything needed to put it back.

use std::fs::{File, OpenOptions};
use std::marker::PhantomData;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::errno::SavedErrno;
use crate::remote_call::{Scratch, TrapAction};
use crate::restart::Sleep;
use crate::wait::{self, Stop};
use crate::{Error, Registers, procfs, ptrace, regs, restart};

/// How long one remote system call, or the way back to a plain stop, may take.
pub(crate) const STEP_DEADLINE: Duration = Duration::from_secs(5);

/// Signals left unblocked during remote work. The kernel resets the handler of a *blocked*
/// synchronous signal to the default when it must force it (force_sig_info_to_task), so blocking
/// these would let a fault of ours destroy a handler of the target. SIGABRT: abort(3) unblocks it.
const SYNCHRONOUS: [i32; 7] = [
    libc::SIGTRAP,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGSYS,
    libc::SIGABRT,
];

/// One thread of the target, seized and stopped. Dropping it restores its state and lets it go.
pub struct Held {
    pub(crate) pid: i32,
    pub(crate) tid: i32,
    stopped_at: Instant,
    /// State at the first stop.
    pub(crate) saved: Registers,
    saved_extended: Vec<u8>,
    saved_mask: u64,
    /// What the interrupted system call was doing, if the kernel would not restart it.
    sleep: Sleep,
    /// Signals taken off the thread during remote work, to be sent again.
    taken: Vec<(i32, libc::siginfo_t)>,
    /// Whether anything ran in the thread since the stop.
    used: bool,
    gone: bool,
    finished: bool,
    /// /proc/PID/mem: bound to the address space at open, so a write after execve hits nothing.
    mem: File,
    pub(crate) syscall_instruction: Option<u64>,
    pub(crate) scratch: Option<Scratch>,
    pub(crate) errno_function: Option<u64>,
    pub(crate) errno: Option<SavedErrno>,
    pub(crate) trap_action: Option<TrapAction>,
    /// ptrace requests must come from the thread that seized.
    _not_send: PhantomData<*const ()>,
}

impl Held {
    /// Takes over a thread that is in an event stop; on failure the thread is let go.
    pub(crate) fn adopt(pid: i32, tid: i32, sleep: Sleep) -> Result<Held, Error> {
        let stopped_at = Instant::now();
        let fail = |request, source| Error::ptrace(pid, tid, request, source);
        let adopted = (|| {
            let path = format!("/proc/{pid}/mem");
            let mem = OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
                .map_err(|source| Error::File { path, source })?;
            Ok(Held {
                pid,
                tid,
                stopped_at,
                saved: regs::read(tid).map_err(|e| fail("GETREGSET NT_PRSTATUS", e))?,
                saved_extended: regs::read_extended(tid)
                    .map_err(|e| fail("GETREGSET NT_X86_XSTATE", e))?,
                saved_mask: ptrace::signal_mask(tid).map_err(|e| fail("GETSIGMASK", e))?,
                sleep,
                taken: Vec::new(),
                used: false,
                gone: false,
                finished: false,
                mem,
                syscall_instruction: None,
                scratch: None,
                errno_function: None,
                errno: None,
                trap_action: None,
                _not_send: PhantomData,
            })
        })();
        if adopted.is_err() {
            let _ = ptrace::detach(tid);
        }
        adopted
    }

    /// Id of the process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Id of the held thread.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// Time since the thread stopped.
    pub fn held_for(&self) -> Duration {
        self.stopped_at.elapsed()
    }

    /// Registers at the stop; they will be put back.
    pub fn registers(&self) -> &Registers {
        &self.saved
    }

    /// Restores registers, vector state, signal mask, `errno` and the interrupted system call and
    /// detaches. Returns how long the thread was held.
    pub fn release(mut self) -> Result<Duration, Error> {
        self.finish()?;
        Ok(self.stopped_at.elapsed())
    }

    /// Maps the failure of a ptrace request and notes when the target is gone.
    pub(crate) fn check<T>(
        &mut self,
        request: &'static str,
        result: std::io::Result<T>,
    ) -> Result<T, Error> {
        result.map_err(|source| {
            let error = Error::ptrace(self.pid, self.tid, request, source);
            self.gone |= matches!(error, Error::TargetGone { .. });
            error
        })
    }

    /// Sets the registers to run something; the first time also blocks the signals.
    pub(crate) fn prepare(&mut self, registers: &Registers) -> Result<(), Error> {
        if !self.used {
            self.used = true;
            let open = SYNCHRONOUS
                .iter()
                .fold(0u64, |set, &signal| set | 1 << (signal - 1));
            let set = ptrace::set_signal_mask(self.tid, !open);
            self.check("SETSIGMASK", set)?;
        }
        let set = regs::write(self.tid, registers);
        self.check("SETREGSET NT_PRSTATUS", set)
    }

    /// Next stop of the thread; `None` at the deadline.
    pub(crate) fn next_stop(&mut self, until: Instant) -> Result<Option<Stop>, Error> {
        match wait::wait_for_stop(self.pid, self.tid, until) {
            Some(Stop::Gone) => {
                self.gone = true;
                Err(Error::TargetGone { pid: self.pid })
            }
            other => Ok(other),
        }
    }

    /// Details of the signal of the current signal-delivery-stop.
    pub(crate) fn signal_info(&mut self) -> Result<libc::siginfo_t, Error> {
        let info = ptrace::signal_info(self.tid);
        self.check("GETSIGINFO", info)
    }

    /// Deals with a signal during remote work: a fault of the code we run becomes an error (and
    /// the signal vanishes), any other is kept to be sent again after the release.
    pub(crate) fn take_signal(&mut self, signal: i32) -> Result<(), Error> {
        let info = self.signal_info()?;
        // si_code > 0: made by the kernel for a fault. abort(3) sends SIGABRT to its own process.
        // SAFETY: si_pid is read only for a signal sent by a process (si_code <= 0).
        let own_abort =
            signal == libc::SIGABRT && info.si_code <= 0 && unsafe { info.si_pid() } == self.pid;
        if own_abort || (info.si_code > 0 && SYNCHRONOUS.contains(&signal)) {
            let registers = regs::read(self.tid);
            let rip = self.check("GETREGSET NT_PRSTATUS", registers)?.rip;
            let mut address = 0;
            if !own_abort {
                // SAFETY: si_addr is set for the fault signals, which is checked above.
                address = unsafe { info.si_addr() } as u64;
            }
            // A general protection fault has no address: the program counter says more.
            let address = if address == 0 { rip } else { address };
            return Err(Error::RemoteFault {
                pid: self.pid,
                address,
                signal,
            });
        }
        self.taken.push((signal, info));
        Ok(())
    }

    /// Reads the target's memory.
    pub(crate) fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let bytes = buffer.len();
        self.mem
            .read_exact_at(buffer, address)
            .map_err(|source| Error::Memory {
                action: "read",
                pid: self.pid,
                address,
                bytes,
                source,
            })
    }

    /// Writes the target's memory.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        self.mem
            .write_all_at(bytes, address)
            .map_err(|source| Error::Memory {
                action: "write",
                pid: self.pid,
                address,
                bytes: bytes.len(),
                source,
            })
    }

    /// Brings the thread into an event stop, which lies inside the kernel's signal handling: only
    /// from there does the kernel look at a pending restart when it resumes the thread. (A stop at
    /// a system-call exit is past that point.)
    pub(crate) fn settle(&mut self, until: Instant) -> Result<(), Error> {
        let interrupted = ptrace::interrupt(self.tid);
        self.check("INTERRUPT", interrupted)?;
        let resumed = ptrace::resume(self.tid, 0);
        self.check("CONT", resumed)?;
        self.wait_settled(until)
    }

    /// Waits for the event stop of an interrupt that was already requested.
    pub(crate) fn wait_settled(&mut self, until: Instant) -> Result<(), Error> {
        loop {
            match self.next_stop(until)? {
                Some(Stop::Event(_)) => return Ok(()),
                Some(Stop::Signal(signal)) => self.take_signal(signal)?,
                Some(_) => {}
                None => {
                    return Err(Error::DoesNotStop {
                        pid: self.pid,
                        tid: self.tid,
                    });
                }
            }
            let resumed = ptrace::resume(self.tid, 0);
            self.check("CONT", resumed)?;
        }
    }

    fn finish(&mut self) -> Result<(), Error> {
        if self.finished {
            return Ok(());
        }
        self.finished = true;
        let restored = self.restore();
        if self.gone {
            wait::reap(self.tid);
            return Err(Error::TargetGone { pid: self.pid });
        }
        let detached = ptrace::detach(self.tid);
        let detached = self.check("DETACH", detached);
        if self.gone {
            wait::reap(self.tid);
        }
        for (signal, info) in std::mem::take(&mut self.taken) {
            send_again(self.pid, self.tid, signal, &info);
        }
        restored.and(detached)
    }

    /// Puts everything back; goes on after a failure and reports the first.
    fn restore(&mut self) -> Result<(), Error> {
        let mut first = Ok(());
        if self.used {
            first = self.undo_remote_work();
            if self.gone {
                return first;
            }
            let settled = self.settle(Instant::now() + STEP_DEADLINE);
            first = first.and(settled);
            let written = regs::write_extended(self.tid, &self.saved_extended);
            let written = self.check("SETREGSET NT_X86_XSTATE", written);
            first = first.and(written);
            let masked = ptrace::set_signal_mask(self.tid, self.saved_mask);
            let masked = self.check("SETSIGMASK", masked);
            first = first.and(masked);
        }
        let registers = self.registers_to_resume();
        let written = regs::write(self.tid, &registers);
        let written = self.check("SETREGSET NT_PRSTATUS", written);
        first.and(written)
    }

    /// The saved registers, set to repeat an interrupted call that the kernel would fail.
    fn registers_to_resume(&self) -> Registers {
        if !restart::must_be_repeated(&self.saved) {
            return self.saved;
        }
        // A caught signal that waits would have ended the call with EINTR without us too.
        let signals = procfs::signals(self.pid, self.tid);
        if signals.pending & !self.saved_mask & signals.caught != 0 {
            return self.saved;
        }
        restart::repeat(&self.saved, &self.sleep, self.held_for())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

/// Sends a signal to the thread once more, with its siginfo where the kernel allows it: for a
/// foreign process only with negative si_code, as of sigqueue(3) (rt_sigqueueinfo(2)).
fn send_again(pid: i32, tid: i32, signal: i32, info: &libc::siginfo_t) {
    if info.si_code < 0 && info.si_code != libc::SI_TKILL {
        let info: *const libc::siginfo_t = info;
        // SAFETY: the kernel reads one siginfo_t, which is live.
        let sent = unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, info) };
        if sent == 0 {
            return;
        }
    }
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) };
}
