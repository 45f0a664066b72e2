//! Restoring and releasing a held thread.

use std::time::{Duration, Instant};

use crate::held::{Held, STEP_DEADLINE};
use crate::scratch::Scratch;
use crate::{Error, Registers, late, memory, ptrace, regs, resend, restart, wait, watchdog};
use memhook_process::RemoteAddress;
use tracing::{debug, warn};

impl Held {
    /// Restores registers, vector state, signal mask, `errno` and the interrupted system call, and detaches. Returns
    /// the duration of the hold.
    pub fn release(mut self) -> Result<Duration, Error> {
        self.finish()?;
        let held = self.held_for();
        debug!(pid = self.pid, tid = self.tid, ?held, "a thread is let go");
        Ok(held)
    }

    fn finish(&mut self) -> Result<(), Error> {
        if self.finished {
            return Ok(());
        }
        self.finished = true;
        self.let_others_go();
        let restored = self.restore();
        if self.let_go || watchdog::has_let_go() {
            return self.leave_to_itself(restored);
        }
        if let Err(error) = &restored {
            warn!(pid = self.pid, tid = self.tid, %error, "a thread is not as it was");
        }
        if self.gone {
            self.collect();
            return Err(Error::TargetGone { pid: self.pid });
        }
        let mut detached = Ok(());
        if !self.stays_traced {
            let result = ptrace::detach(self.tid);
            detached = self.check("DETACH", result);
        }
        if self.gone {
            self.collect();
        }
        if self.let_go {
            return self.leave_to_itself(restored);
        }
        self.send_taken_again();
        restored.and(detached)
    }

    /// Handles a thread that was released early: it returns to its own code by itself, or has already returned if all
    /// of its state had been restored.
    fn leave_to_itself(&mut self, restored: Result<(), Error>) -> Result<(), Error> {
        let (pid, tid) = (self.pid, self.tid);
        warn!(
            pid,
            tid, "a thread was let go early: this process got no processor, or stood still"
        );
        // The thread may be running now, and must stop first.
        let _ = ptrace::interrupt(tid);
        late::let_go_later(pid, tid);
        late::let_late_threads_go();
        self.send_taken_again();
        restored.map_err(|_| self.has_gone_home())
    }

    /// Sends again the signals that arrived in the meantime.
    fn send_taken_again(&mut self) {
        for (signal, info) in std::mem::take(&mut self.work.taken) {
            resend::send_again(self.pid, self.tid, signal, &info);
        }
    }

    fn collect(&self) {
        if !self.stays_traced {
            wait::reap(self.pid, self.tid);
        }
    }

    /// Restores all state. Continues after a failure, and reports the first one.
    fn restore(&mut self) -> Result<(), Error> {
        let mut first = Ok(());
        if self.work.went_home {
            return self.repeat_interrupted();
        }
        if self.work.begun {
            first = self.undo_remote_work();
            if self.gone {
                return first;
            }
            let written = regs::write_extended(self.tid, &self.saved.extended);
            let written = self.check("SETREGSET NT_X86_XSTATE", written);
            first = first.and(written);
            let masked = ptrace::set_signal_mask(self.tid, self.saved.mask);
            let masked = self.check("SETSIGMASK", masked);
            first = first.and(masked);
        } else if !restart::must_be_repeated(&self.saved.registers) {
            return first;
        }
        // This step comes last: until here, the registers make the thread return through the signal frame.
        let lasted = self.saved.call_lasts();
        let mut registers = restart::resumed(&self.saved.registers, lasted);
        if restart::must_be_repeated(&self.saved.registers) {
            self.shorten_timeout(&mut registers, lasted);
        }
        let written = self.write_registers(&registers);
        if written.is_ok() {
            self.wipe_frames();
        }
        first.and(written)
    }

    /// Zeroes the used part of the stack again. If this fails, a later hold treats that part as in use.
    fn wipe_frames(&mut self) {
        if let Some((at, bytes)) = self.work.frames.take() {
            let _ = self.write(at, &vec![0; bytes]);
            if let Ok((place, mark)) = self.saved.room.as_ref().map(|room| room.mark(0, &[])) {
                let _ = self.write(RemoteAddress(place), &vec![0; mark.len()]);
            }
        }
    }

    /// Shortens a timeout in memory. The timeout belongs to the program and stays unchanged; the call gets a pointer to
    /// a shortened copy in the unused part of the thread's stack. The kernel reads that copy as soon as the thread
    /// runs, when the call begins.
    fn shorten_timeout(&mut self, registers: &mut Registers, lasted: Duration) {
        let Some(register) = restart::timeout_register(registers) else {
            return;
        };
        let mut bytes = [0; 16];
        let (Ok(()), Ok(room)) = (
            self.read(RemoteAddress(*register), &mut bytes),
            &self.saved.room,
        ) else {
            return;
        };
        let Some(left) = shortened(bytes, lasted) else {
            return;
        };
        let at = RemoteAddress(room.range.start);
        let Some(_kept) = watchdog::keep() else {
            return;
        };
        let written = match room.grows {
            true => self.write(at, &left),
            false => memory::write_writable(self.pid, at, &left),
        };
        if written.is_ok() {
            *register = at.0;
        }
    }

    /// Removes the remains of remote calls: errno and the scratch mapping. Ends in an event stop, which is inside the
    /// kernel's signal handling. Only there does the kernel check for a pending restart when it resumes the thread.
    fn undo_remote_work(&mut self) -> Result<(), Error> {
        let mut first = Ok(());
        if let Some((address, value)) = self.work.errno.take() {
            first = self.write(address, &value);
        }
        let undone = match self.work.scratch.take() {
            Some(Scratch { start }) => self.way_home().and_then(|way| {
                let arguments = [start.0, Scratch::BYTES];
                self.bare_syscall(way.home, "munmap", libc::SYS_munmap, &arguments)
                    .map(drop)
            }),
            None => Ok(()),
        };
        if undone.is_err() && !self.gone {
            let settled = self.settle(Instant::now() + STEP_DEADLINE);
            first = first.and(settled);
        }
        first.and(undone)
    }

    /// Handles a thread that returned to its own code and was stopped again, possibly in a system call that must be
    /// restarted.
    fn repeat_interrupted(&mut self) -> Result<(), Error> {
        let now = self.read_registers()?;
        if restart::must_be_repeated(&now) {
            self.write_registers(&restart::repeat(&now, Duration::ZERO))?;
        }
        Ok(())
    }
}

/// Returns the remaining time in a `struct timespec`; `None` if it contains no valid time.
fn shortened(timeout: [u8; 16], lasted: Duration) -> Option<[u8; 16]> {
    let [seconds, nanoseconds] = timeout.as_chunks::<8>().0 else {
        return None;
    };
    let (seconds, nanoseconds) = (
        i64::from_le_bytes(*seconds),
        i64::from_le_bytes(*nanoseconds),
    );
    let is_valid = (0..1_000_000_000).contains(&nanoseconds);
    let timeout = Duration::new(
        u64::try_from(seconds).ok()?,
        is_valid.then_some(nanoseconds as u32)?,
    );
    let left = timeout.saturating_sub(lasted);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&left.as_secs().to_le_bytes());
    bytes[8..].copy_from_slice(&u64::from(left.subsec_nanos()).to_le_bytes());
    Some(bytes)
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}
