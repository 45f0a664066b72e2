//! Signals that come to a thread during remote work.

use crate::held::Held;
use crate::synchronous::{SYNCHRONOUS, only};
use crate::{Error, Registers, ptrace};

impl Held {
    /// Returns the signals that are blocked during remote work.
    ///
    /// Synchronous signals stay unblocked. The kernel resets the handler of a *blocked* synchronous signal to the
    /// default when it must force the signal (force_sig_info_to_task), so a fault in our code would destroy a handler
    /// of the target; and abort(3) unblocks SIGABRT. Only synchronous signals that were already pending are blocked, so
    /// that they are not mistaken for ours.
    ///
    /// glibc's internal signals, which are invisible to programs, are handled separately. SIGSETXID comes from a thread
    /// that changes the credentials of all threads. That thread waits for every thread to react while it holds the lock
    /// of the list of stacks, so if our call needed this lock, it would wait for its own thread. The handler makes one
    /// system call and is harmless on any stack. SIGCANCEL stays blocked: before 2.41, it immediately cancels a thread
    /// inside a cancellation point, which would unwind our stack. The signal arrives when the thread is back in its own
    /// call.
    pub(crate) fn remote_mask(&self) -> u64 {
        let open = SYNCHRONOUS.iter().chain(&self.target.bell);
        !open.fold(0, |set, &signal| set | only(signal)) | self.saved.waiting
    }

    /// Returns the signal mask that applies while a function of the target runs.
    fn call_mask(&self) -> u64 {
        let answered = self.target.functions.answered;
        self.remote_mask() & !answered.map_or(0, only)
    }

    /// Lets the thread handle the signal for which other threads are waiting, or postpones it during our single system
    /// calls: these are short, and some of them run on the thread's own stack, which has room for only one signal
    /// frame.
    pub(crate) fn answer_signals(&mut self, answers: bool) -> Result<(), Error> {
        let mask = match answers {
            true => self.call_mask(),
            false => self.remote_mask(),
        };
        let set = ptrace::set_signal_mask(self.tid, mask);
        self.check("SETSIGMASK", set)
    }

    /// Returns the signal to inject when resuming a thread that has stopped for this signal: the handler runs
    /// immediately, or not at all.
    pub(crate) fn passed_on(&self, signal: i32) -> i32 {
        match self.target.functions.answered {
            Some(answered) if answered == signal => signal,
            _ => 0,
        }
    }

    /// Handles a signal during remote work. A fault in the code that we run becomes an error, and the signal is
    /// dropped. Any other signal is stored and sent again after the release.
    pub(crate) fn take_signal(&mut self, signal: i32) -> Result<(), Error> {
        let info = ptrace::signal_info(self.tid);
        let info = self.check("GETSIGINFO", info)?;
        let registers = self.read_registers()?;
        // si_code > 0: the kernel sent the signal for a fault. abort(3) sends SIGABRT to its own thread, which runs
        // none of the program's own code here. A signal from another thread belongs to the program.
        let is_fault = info.si_code > 0 && SYNCHRONOUS.contains(&signal);
        let own_abort = signal == libc::SIGABRT && info.si_code <= 0 && has_aborted(&registers);
        if is_fault && signal == libc::SIGSYS && info.si_code == SYS_USER_DISPATCH {
            let (pid, tid) = (self.pid, self.tid);
            return Err(Error::CallsDispatched { pid, tid });
        }
        if own_abort || is_fault {
            let rip = registers.rip;
            let mut address = 0;
            if !own_abort {
                // SAFETY: si_addr is set for the fault signals, which is checked above.
                address = unsafe { info.si_addr() } as u64;
            }
            // A general protection fault has no address. The program counter is more informative.
            let address = if address == 0 { rip } else { address };
            return Err(Error::RemoteFault {
                pid: self.pid,
                address,
                signal,
            });
        }
        // An interrupt has overtaken this bell.
        if self.target.bell == Some(signal) && info.si_code == libc::SI_TKILL {
            return Ok(());
        }
        self.work.taken.push((signal, info));
        Ok(())
    }

    /// Returns true if this signal stop ends the operation.
    pub(crate) fn is_bell(&mut self, signal: i32) -> Result<bool, Error> {
        if self.target.bell != Some(signal) {
            return Ok(false);
        }
        let rip = self.read_registers()?.rip;
        let scratch = self.work.scratch;
        Ok(scratch.is_some_and(|scratch| rip == scratch.rung().0))
    }
}

/// si_code of the SIGSYS of syscall user dispatch (asm-generic/siginfo.h).
const SYS_USER_DISPATCH: i32 = 2;

/// Returns true if a thread is in the system call with which it sent itself SIGABRT, as abort(3) does.
fn has_aborted(registers: &Registers) -> bool {
    let sent = match registers.orig_rax as i64 {
        libc::SYS_tgkill => registers.rdx,
        libc::SYS_tkill | libc::SYS_kill => registers.rsi,
        _ => return false,
    };
    sent as i32 == libc::SIGABRT
}
