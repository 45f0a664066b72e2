//! A system call made by the held thread.
//!
//! The first ones, which make the scratch memory, and the last one, which removes it, run through
//! libc's own `syscall; ret` with rsp at the signal frame on the thread's stack: left alone, the
//! thread returns from the call into rt_sigreturn. The others run through the stub in the scratch
//! memory (`scratch.rs`).

use std::io;
use std::time::Instant;

use crate::held::{Held, STEP_DEADLINE};
use crate::remote_call::Outcome;
use crate::wait::Stop;
use crate::{Error, Registers, ptrace, regs};

/// Length of the `syscall` instruction.
const SYSCALL_BYTES: u64 = 2;

impl Held {
    /// Makes system call `nr` in the target and returns what the kernel returned, a negative
    /// errno included. Signals are blocked meanwhile.
    pub fn syscall(&mut self, nr: i64, args: [u64; 6]) -> Result<i64, Error> {
        let scratch = self.scratch()?;
        let mut registers = self.syscall_registers(nr, args);
        registers.rip = scratch.syscall_entry();
        registers.rsp = scratch.stack_top();
        match self.operate(&registers, STEP_DEADLINE)? {
            Outcome::Done(result) => Ok(result as i64),
            Outcome::Unfinished(_) => {
                self.back_out()?;
                let cause = io::Error::from_raw_os_error(libc::ETIMEDOUT);
                Err(Error::RemoteSyscall {
                    name: "syscall",
                    pid: self.pid,
                    cause,
                })
            }
        }
    }

    /// As [`Held::syscall`], with a negative result as an error under the call's name.
    pub(crate) fn checked_syscall(
        &mut self,
        name: &'static str,
        nr: i64,
        args: [u64; 6],
    ) -> Result<u64, Error> {
        let result = self.syscall(nr, args)?;
        self.checked(name, result)
    }

    pub(crate) fn checked(&self, name: &'static str, result: i64) -> Result<u64, Error> {
        if (-4095..0).contains(&result) {
            let cause = io::Error::from_raw_os_error(-result as i32);
            return Err(Error::RemoteSyscall {
                name,
                pid: self.pid,
                cause,
            });
        }
        Ok(result as u64)
    }

    pub(crate) fn syscall_registers(&self, nr: i64, args: [u64; 6]) -> Registers {
        let mut registers = self.saved;
        registers.rax = nr as u64;
        // No restart of the interrupted call of the target now.
        registers.orig_rax = u64::MAX;
        [
            registers.rdi,
            registers.rsi,
            registers.rdx,
            registers.r10,
            registers.r8,
            registers.r9,
        ] = args;
        registers.eflags &= !(regs::EFLAGS_DF | regs::EFLAGS_TF);
        registers
    }

    /// Makes a system call without memory of ours; for calls that do not wait. Ends in an event
    /// stop, like every operation. Left alone, the thread goes on into the signal frame at `frame`.
    ///
    /// A single step would end in SIGTRAP, which the kernel forces on the thread and which would
    /// reset a SIGTRAP disposition of the target that is ignored or blocked; so the thread stops
    /// at the entry of the call, and at the interrupt that was requested there.
    pub(crate) fn bare_syscall(
        &mut self,
        frame: u64,
        name: &'static str,
        nr: i64,
        args: [u64; 6],
    ) -> Result<u64, Error> {
        let gadgets = self.way_home()?.gadgets;
        let mut registers = self.syscall_registers(nr, args);
        registers.rip = gadgets.syscall;
        registers.rsp = frame;
        self.commit(&registers)?;

        let until = Instant::now() + STEP_DEADLINE;
        loop {
            let resumed = ptrace::resume_to_syscall(self.tid, 0);
            self.check("SYSCALL", resumed)?;
            match self.next_stop(until)? {
                Some(Stop::Syscall) => break,
                Some(Stop::Signal(signal)) => self.take_signal(signal)?,
                Some(Stop::Event(_) | Stop::Clone | Stop::Gone) => {}
                None => return Err(self.does_not_stop()),
            }
        }
        self.settle(until)?;
        let now = regs::read(self.tid);
        let now = self.check("GETREGSET NT_PRSTATUS", now)?;
        if now.rip != gadgets.syscall + SYSCALL_BYTES {
            return Err(self.does_not_stop());
        }
        self.checked(name, now.rax as i64)
    }
}
