//! A system call made by the held thread.
//!
//! Runs a `syscall` instruction that the target already has, between two system-call stops
//! (`PTRACE_SYSCALL`). A single step would end in SIGTRAP, which the kernel forces on the thread
//! and which would reset a SIGTRAP disposition of the target that is ignored or blocked.

use std::io;
use std::time::Instant;

use crate::held::{Held, STEP_DEADLINE};
use crate::wait::Stop;
use crate::{Error, maps, ptrace, regs};

/// Encoding of the `syscall` instruction.
const SYSCALL_CODE: [u8; 2] = [0x0f, 0x05];

/// Bytes of libc text searched at a time.
const SEARCH_BYTES: usize = 64 * 1024;

impl Held {
    /// Makes system call `nr` in the target and returns what the kernel returned, a negative
    /// errno included. Signals are blocked meanwhile.
    pub fn syscall(&mut self, nr: i64, args: [u64; 6]) -> Result<i64, Error> {
        let mut registers = self.saved;
        registers.rip = self.syscall_address()?;
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
        self.prepare(&registers)?;

        let until = Instant::now() + STEP_DEADLINE;
        let mut entered = false;
        loop {
            let resumed = ptrace::resume_to_syscall(self.tid);
            self.check("SYSCALL", resumed)?;
            match self.next_stop(until)? {
                Some(Stop::Syscall) if !entered => entered = true,
                Some(Stop::Syscall) => {
                    let registers = regs::read(self.tid);
                    let result = self.check("GETREGSET NT_PRSTATUS", registers)?.rax as i64;
                    if !crate::restart::is_restart_code(result) {
                        return Ok(result);
                    }
                    // A group-stop began: the kernel enters the call again by itself.
                    entered = false;
                }
                Some(Stop::Signal(signal)) => self.take_signal(signal)?,
                Some(_) => {}
                None => {
                    self.give_up_waiting()?;
                    let source = io::Error::from_raw_os_error(libc::ETIMEDOUT);
                    return Err(Error::RemoteSyscall {
                        name: "syscall",
                        pid: self.pid,
                        source,
                    });
                }
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
        if (-4095..0).contains(&result) {
            let source = io::Error::from_raw_os_error(-result as i32);
            return Err(Error::RemoteSyscall {
                name,
                pid: self.pid,
                source,
            });
        }
        Ok(result as u64)
    }

    /// Stops a thread that does not come back.
    pub(crate) fn give_up_waiting(&mut self) -> Result<(), Error> {
        let interrupted = ptrace::interrupt(self.tid);
        self.check("INTERRUPT", interrupted)?;
        self.wait_settled(Instant::now() + STEP_DEADLINE)
    }

    /// Address of a `syscall` instruction: in the vdso, else in libc, else anywhere executable.
    fn syscall_address(&mut self) -> Result<u64, Error> {
        if let Some(address) = self.syscall_instruction {
            return Ok(address);
        }
        let mut mappings = maps::read(self.pid)?;
        // `[vsyscall]` is not real code.
        mappings.retain(|mapping| mapping.executable && mapping.name != "[vsyscall]");
        mappings.sort_by_key(|mapping| match mapping.name.as_str() {
            "[vdso]" => 0,
            name if maps::is_libc(name) => 1,
            _ => 2,
        });
        for mapping in &mappings {
            let mut at = mapping.start_avma;
            while at < mapping.end_avma {
                let bytes = SEARCH_BYTES.min((mapping.end_avma - at) as usize);
                let mut code = vec![0u8; bytes];
                if self.read(at, &mut code).is_err() {
                    break;
                }
                if let Some(offset) = code.windows(2).position(|pair| pair == SYSCALL_CODE) {
                    self.syscall_instruction = Some(at + offset as u64);
                    return Ok(at + offset as u64);
                }
                at += bytes as u64;
            }
        }
        Err(Error::NoSyscallInstruction { pid: self.pid })
    }
}
