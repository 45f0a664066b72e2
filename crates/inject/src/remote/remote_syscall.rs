//! A system call made by the held thread.
//!
//! The first calls, which create the scratch memory, and the last call, which removes it, run through libc's own
//! `syscall; ret` with rsp at the signal frame on the thread's stack: without intervention, the thread returns from the
//! call into rt_sigreturn. The other calls run through the stub in the scratch memory (`scratch.rs`).

use std::io;
use std::time::Instant;

use crate::audit::{self, Act};
use crate::descriptor::identity;
use crate::held::{Held, STEP_DEADLINE};
use crate::region::close_descriptor;
use crate::remote_call::Outcome;
use crate::scratch::word;
use crate::wait::Stop;
use crate::{Error, Registers, ptrace, restart};
use memhook_process::{RemoteAddress, has_seccomp_filter, proc_path};

impl Held {
    /// Makes system call `nr` in the target and returns the kernel's result, which may be a negative errno. Signals are
    /// blocked during the call.
    pub fn syscall(&mut self, nr: i64, args: [u64; 6]) -> Result<i64, Error> {
        let entry = self.scratch()?.syscall_entry();
        self.syscall_at(entry, nr, &args)
    }

    /// Like [`Held::checked_syscall`], for a call that opens a descriptor, which [`Held::close_opened`] closes. If we
    /// are killed before that, the thread closes it: a descriptor that stayed open would look like one of the target's
    /// own. At most one such descriptor is open at a time.
    ///
    /// After our death, the thread's seccomp filters see its calls. If they might kill the process for close(2) or
    /// fstat(2), the descriptor stays open.
    pub(crate) fn open_descriptor(
        &mut self,
        name: &'static str,
        nr: i64,
        args: &[u64],
    ) -> Result<u64, Error> {
        let may_close = || {
            let calls = [libc::SYS_close, libc::SYS_fstat];
            calls.iter().all(|&nr| self.may_call(nr) == Some(true))
        };
        let is_closed = !has_seccomp_filter(self.pid) || may_close();
        let scratch = self.scratch()?;
        let entry = match is_closed {
            true => scratch.open_entry(),
            false => scratch.syscall_entry(),
        };
        let result = self.syscall_at(entry, nr, args)?;
        let number = self.checked(name, result)?;
        match is_closed {
            true => self.work.opened = Some(number),
            false => self.work.unguarded = Some(number),
        }
        self.check_opened()?;
        Ok(number)
    }

    /// Checks that the descriptor is still open. A thread that was held for too long closes the descriptor before it
    /// resumes its own work, and another thread may then reuse the number for a file of the target. The result stays
    /// valid while the thread is stopped.
    pub(crate) fn check_opened(&self) -> Result<(), Error> {
        let Some(number) = self.work.opened else {
            return Ok(());
        };
        let mut opened = [0; 8];
        let is_open = self.work.scratch.is_some_and(|scratch| {
            let place = scratch.words() + word::OPENED;
            !self.work.went_home && self.target.read(place, &mut opened).is_ok()
        });
        if is_open && u64::from_le_bytes(opened) == number + 1 {
            return Ok(());
        }
        Err(self.has_gone_home())
    }

    /// Closes the descriptor that [`Held::open_descriptor`] has opened. If another thread has closed it, the descriptor
    /// number is no longer ours.
    pub(crate) fn close_opened(&mut self) -> Result<(), Error> {
        let object = self.work.object.take();
        if let Some(number) = self.work.unguarded.take() {
            return match object {
                Some(object) => self.close_if(number, object),
                None => close_descriptor(self, number),
            };
        }
        self.check_opened()?;
        let Some(number) = self.work.opened else {
            return Ok(());
        };
        // The object recorded directly after the call may already be a file of the target. The name shows whether the
        // descriptor is ours.
        if let Some(object) = object {
            self.write_object(object)?;
        }
        let closed = self.close_noted(number);
        self.work.opened = None;
        closed
    }

    /// Closes a descriptor of the target if it refers to the object with this device and inode. Otherwise another
    /// thread has reused the number.
    pub fn close_if(&mut self, number: u64, object: (u64, u64)) -> Result<(), Error> {
        let may_look =
            !has_seccomp_filter(self.pid) || self.may_call(libc::SYS_fstat) == Some(true);
        if may_look {
            self.write_object(object)?;
            return self.close_noted(number);
        }
        // A seccomp filter might kill the target if its thread made the check, so this process makes the check.
        if identity(&proc_path(self.pid, &format!("fd/{number}"))) != Some(object) {
            return Ok(());
        }
        close_descriptor(self, number)
    }

    fn write_object(&mut self, (device, inode): (u64, u64)) -> Result<(), Error> {
        let words = self.scratch()?.words();
        self.write(words + word::DEVICE, &device.to_le_bytes())?;
        self.write(words + word::INODE, &inode.to_le_bytes())
    }

    /// Closes a descriptor if it refers to the object whose device and inode these words contain.
    fn close_noted(&mut self, number: u64) -> Result<(), Error> {
        let entry = self.scratch()?.close_entry();
        let result = self.syscall_at(entry, libc::SYS_close, &[number])?;
        match self.checked("close", result) {
            Err(Error::RemoteSyscall { cause, .. })
                if cause.raw_os_error() == Some(libc::EBADF) =>
            {
                Ok(())
            }
            closed => closed.map(drop),
        }
    }

    fn syscall_at(&mut self, entry: RemoteAddress, nr: i64, args: &[u64]) -> Result<i64, Error> {
        let stack = self.scratch()?.stack_top();
        let registers = self.syscall_registers(entry, stack, nr, args);
        let outcome = match self.may_be_ended_for(nr, padded(args)) {
            true => self.operate_with_leave(&registers, STEP_DEADLINE),
            false => self.operate(&registers, STEP_DEADLINE),
        };
        match outcome? {
            Outcome::Done(result) => {
                self.note_system_call(nr, args, result as i64);
                Ok(result as i64)
            }
            Outcome::Unfinished(_) => {
                // None of our calls waits for anything, so either the thread or this process was not scheduled during
                // the whole wait.
                self.back_out()?;
                Err(self.has_gone_home())
            }
        }
    }

    /// Like [`Held::syscall`], but returns a negative result as an error under the call's name.
    pub(crate) fn checked_syscall(
        &mut self,
        name: &'static str,
        nr: i64,
        args: &[u64],
    ) -> Result<u64, Error> {
        let result = self.syscall(nr, padded(args))?;
        self.checked(name, result)
    }

    pub(crate) fn is_filtered(&self, call: &'static str) -> Error {
        let pid = self.pid;
        Error::CallIsFiltered { pid, call }
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

    pub(crate) fn syscall_registers(
        &self,
        entry: RemoteAddress,
        stack: RemoteAddress,
        nr: i64,
        args: &[u64],
    ) -> Registers {
        let mut registers = self.remote_registers(entry, stack);
        registers.rax = nr as u64;
        [
            registers.rdi,
            registers.rsi,
            registers.rdx,
            registers.r10,
            registers.r8,
            registers.r9,
        ] = padded(args);
        registers
    }

    /// Makes a system call without memory of ours, for calls that do not wait. Ends in an event stop, like every
    /// operation. Without intervention, the thread continues into the signal frame at `frame`.
    ///
    /// A single step would end in SIGTRAP, which the kernel forces on the thread, and which would reset a SIGTRAP
    /// disposition of the target that is ignored or blocked. So the thread stops at the entry of the call, and at the
    /// interrupt that was requested there.
    pub(crate) fn bare_syscall(
        &mut self,
        frame: RemoteAddress,
        name: &'static str,
        nr: i64,
        args: &[u64],
    ) -> Result<u64, Error> {
        let entry = self.way_home()?.gadgets.syscall;
        if self.may_be_ended_for(nr, padded(args)) {
            return Err(self.is_filtered(name));
        }
        self.commit(&self.syscall_registers(entry, frame, nr, args))?;

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
        let now = self.read_registers()?;
        if now.rip != (entry + restart::SYSCALL_BYTES).0 {
            return Err(self.does_not_stop());
        }
        self.note_system_call(nr, args, now.rax as i64);
        self.checked(name, now.rax as i64)
    }

    fn note_system_call(&self, number: i64, args: &[u64], result: i64) {
        audit::note_as(self.pid, || Act::SystemCall {
            number,
            arguments: padded(args),
            result,
        });
    }
}

/// Returns the arguments of a system call, padded with zeros.
fn padded(args: &[u64]) -> [u64; 6] {
    std::array::from_fn(|index| args.get(index).copied().unwrap_or(0))
}
