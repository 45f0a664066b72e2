//! Putting a held thread back and letting it go.

use std::time::{Duration, Instant};

use crate::held::{Held, STEP_DEADLINE};
use crate::restart::{self, Sleep};
use crate::scratch::Scratch;
use crate::{Error, ptrace, regs, resend, wait};

impl Held {
    /// Restores registers, vector state, signal mask, `errno` and the interrupted system call and
    /// detaches. Returns how long the thread was held.
    pub fn release(mut self) -> Result<Duration, Error> {
        self.finish()?;
        Ok(self.stopped_at.elapsed())
    }

    fn finish(&mut self) -> Result<(), Error> {
        if self.finished {
            return Ok(());
        }
        self.finished = true;
        let restored = self.restore();
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
        for (signal, info) in std::mem::take(&mut self.taken) {
            resend::send_again(self.pid, self.tid, signal, &info);
        }
        restored.and(detached)
    }

    fn collect(&self) {
        if !self.stays_traced {
            wait::reap(self.pid, self.tid);
        }
    }

    /// Puts everything back; goes on after a failure and reports the first.
    fn restore(&mut self) -> Result<(), Error> {
        let mut first = Ok(());
        if self.went_home {
            return self.repeat_interrupted();
        }
        if self.used {
            first = self.undo_remote_work();
            if self.gone {
                return first;
            }
            let written = regs::write_extended(self.tid, &self.saved_extended);
            let written = self.check("SETREGSET NT_X86_XSTATE", written);
            first = first.and(written);
            let masked = ptrace::set_signal_mask(self.tid, self.saved_mask);
            let masked = self.check("SETSIGMASK", masked);
            first = first.and(masked);
        } else if !restart::must_be_repeated(&self.saved) {
            return first;
        }
        // Last: until here the registers lead home through the signal frame.
        let registers = restart::resumed(&self.saved, &self.sleep, self.held_for());
        let written = regs::write(self.tid, &registers);
        let written = self.check("SETREGSET NT_PRSTATUS", written);
        first.and(written)
    }

    /// Removes what remote calls left: errno and the scratch mapping. Ends in an event stop, which
    /// lies inside the kernel's signal handling: only from there does the kernel look at a pending
    /// restart when it resumes the thread.
    fn undo_remote_work(&mut self) -> Result<(), Error> {
        let mut first = Ok(());
        if let Some((address, value)) = self.errno.take() {
            first = self.write(address, &value);
        }
        let undone = match self.scratch.take() {
            Some(Scratch { start }) => {
                let args = [start, Scratch::BYTES, 0, 0, 0, 0];
                let unmapped = self
                    .way_home()
                    .and_then(|way| self.bare_syscall(way.home, "munmap", libc::SYS_munmap, args));
                unmapped.map(drop)
            }
            None => Ok(()),
        };
        if undone.is_err() && !self.gone {
            let settled = self.settle(Instant::now() + STEP_DEADLINE);
            first = first.and(settled);
        }
        first.and(undone)
    }

    /// A thread that went home was stopped once more since, maybe in a call that must be repeated.
    fn repeat_interrupted(&mut self) -> Result<(), Error> {
        let now = regs::read(self.tid);
        let now = self.check("GETREGSET NT_PRSTATUS", now)?;
        if restart::must_be_repeated(&now) {
            let registers = restart::repeat(&now, &Sleep::default(), Duration::ZERO);
            let written = regs::write(self.tid, &registers);
            self.check("SETREGSET NT_PRSTATUS", written)?;
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}
