//! System calls and function calls in a held thread.

use crate::{
    error::Error,
    hold::{Held, is_event_stop, wait_stop},
    memory, regs,
};

/// Memory of ours in the target: a guard page, a stack, a page with the call stub.
pub(crate) struct Scratch {
    base: u64,
}

const PAGE: u64 = 4096;
const STACK_BYTES: u64 = 256 * 1024;
const SCRATCH_BYTES: u64 = PAGE + STACK_BYTES + PAGE;
/// `call *%rax; int3`: the call is balanced by the function's `ret`, also for a shadow stack.
const STUB: [u8; 3] = [0xff, 0xd0, 0xcc];

impl Scratch {
    fn stub(&self) -> u64 {
        self.base + PAGE + STACK_BYTES
    }
    fn stack_top(&self) -> u64 {
        self.base + PAGE + STACK_BYTES
    }
}

impl Held {
    /// Lets the thread run until it traps at `rip`; other stops are dealt with on the way.
    fn run_until_trap(
        &mut self,
        request: u32,
        rip_wanted: Option<u64>,
        called: u64,
    ) -> Result<(), Error> {
        let mut request = request;
        loop {
            regs::ptrace(request, "PTRACE_CONT", self.tid, 0, 0)?;
            let Some(status) = wait_stop(self.tid) else {
                self.gone = true;
                return Err(Error::TargetGone { pid: self.pid });
            };
            if is_event_stop(status) {
                // A group stop began: the thread goes on for us, the kernel takes the stop up
                // again when we detach (ptrace(2), "Attaching and detaching").
                continue;
            }
            match libc::WSTOPSIG(status) {
                libc::SIGTRAP => {
                    let now = regs::general(self.tid)?;
                    if rip_wanted.is_none_or(|rip| rip == now.rip) {
                        return Ok(());
                    }
                    request = libc::PTRACE_CONT;
                }
                signal @ (libc::SIGSEGV
                | libc::SIGBUS
                | libc::SIGILL
                | libc::SIGFPE
                | libc::SIGABRT
                | libc::SIGSYS) => {
                    return Err(Error::RemoteFault {
                        pid: self.pid,
                        address: called,
                        signal,
                    });
                }
                // All others are blocked; one that still arrives was let through by the called
                // function itself. It is sent again, to be seen after the release.
                signal => {
                    // SAFETY: tgkill takes plain integers.
                    unsafe { libc::syscall(libc::SYS_tgkill, self.pid, self.tid, signal) };
                }
            }
        }
    }

    /// Makes a system call in the target; returns the kernel's result, negative errno included.
    pub fn syscall(&mut self, nr: i64, args: [u64; 6]) -> Result<i64, Error> {
        let mut now = self.saved;
        now.rip = self.syscall_instruction;
        now.rax = nr as u64;
        now.orig_rax = u64::MAX;
        [now.rdi, now.rsi, now.rdx, now.r10, now.r8, now.r9] = args;
        regs::set_general(self.tid, &now)?;
        // A single step ends after the `syscall` instruction, with the call done.
        let after = self.syscall_instruction + 2;
        self.run_until_trap(
            libc::PTRACE_SINGLESTEP,
            Some(after),
            self.syscall_instruction,
        )?;
        Ok(regs::general(self.tid)?.rax as i64)
    }

    /// [`Held::syscall`], with errors turned into [`Error::RemoteSyscall`].
    pub(crate) fn checked(
        &mut self,
        name: &'static str,
        nr: i64,
        args: [u64; 6],
    ) -> Result<u64, Error> {
        let result = self.syscall(nr, args)?;
        if (-4095..0).contains(&result) {
            return Err(Error::RemoteSyscall {
                name,
                pid: self.pid,
                source: std::io::Error::from_raw_os_error(-result as i32),
            });
        }
        Ok(result as u64)
    }

    fn scratch(&mut self) -> Result<&Scratch, Error> {
        if self.scratch.is_none() {
            let private = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
            let base = self.checked(
                "mmap",
                libc::SYS_mmap,
                [0, SCRATCH_BYTES, 0, private, u64::MAX, 0],
            )?;
            self.scratch = Some(Scratch { base });
            let writable = (libc::PROT_READ | libc::PROT_WRITE) as u64;
            let executable = (libc::PROT_READ | libc::PROT_EXEC) as u64;
            let args = [base + PAGE, STACK_BYTES, writable, 0, 0, 0];
            self.checked("mprotect", libc::SYS_mprotect, args)?;
            let args = [base + PAGE + STACK_BYTES, PAGE, executable, 0, 0, 0];
            self.checked("mprotect", libc::SYS_mprotect, args)?;
            memory::write_bytes(self.pid, base + PAGE + STACK_BYTES, &STUB)?;
        }
        Ok(self.scratch.as_ref().expect("made above"))
    }

    /// Lowest address of scratch memory that a remote system call may read (a page's worth),
    /// far below what a called function uses of the stack.
    pub(crate) fn scratch_data(&mut self) -> Result<u64, Error> {
        Ok(self.scratch()?.base + PAGE)
    }

    pub(crate) fn free_scratch(&mut self) {
        if let Some(scratch) = self.scratch.take() {
            let _ = self.syscall(libc::SYS_munmap, [scratch.base, SCRATCH_BYTES, 0, 0, 0, 0]);
        }
    }

    /// Calls a function in the target on a stack of ours; returns its `rax`.
    ///
    /// # Errors
    /// [`Error::RemoteFault`] if it died of a signal; the thread is then still ours, and the
    /// release puts it back where it was.
    pub fn call(&mut self, function: u64, args: &[u64]) -> Result<u64, Error> {
        let scratch = self.scratch()?;
        let (stub, top) = (scratch.stub(), scratch.stack_top());
        let mut now = self.saved;
        now.rip = stub;
        now.rax = function;
        now.rsp = top; // 16-byte aligned before the stub's call (psABI 3.2.2)
        now.rbp = 0;
        now.orig_rax = u64::MAX;
        now.eflags &= !0x400; // the direction flag is clear on entry (psABI 3.2.1)
        let mut registers = [0; 6];
        for (to, from) in registers.iter_mut().zip(args) {
            *to = *from;
        }
        [now.rdi, now.rsi, now.rdx, now.rcx, now.r8, now.r9] = registers;
        regs::set_general(self.tid, &now)?;
        let trap = stub + STUB.len() as u64;
        self.run_until_trap(libc::PTRACE_CONT, Some(trap), function)?;
        Ok(regs::general(self.tid)?.rax)
    }
}
