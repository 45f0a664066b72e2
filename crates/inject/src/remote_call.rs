//! A function call made by the held thread, on a stack of our own.
//!
//! The scratch mapping, from low to high addresses:
//!
//! ```text
//! guard page (PROT_NONE) | stack, grows down | data page | code page (read and execute)
//! ```
//!
//! The call starts at the stub `call *%r11; int3` in the code page and ends in its int3, so that a
//! shadow stack (CET) sees the return address it expects.

use std::time::{Duration, Instant};

use crate::errno::SavedErrno;
use crate::held::Held;
use crate::wait::Stop;
use crate::{Error, procfs, ptrace, regs};

const PAGE_BYTES: u64 = 4096;
/// Room for dlopen and an allocator behind it; only touched pages cost memory.
const STACK_BYTES: u64 = 256 * 1024;

/// `call *%r11; int3`, padded with int3 to one word, lowest byte first.
const STUB: [u8; 8] = [0x41, 0xff, 0xd3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc];
/// rip after the int3 of the stub.
const STUB_END: u64 = 4;

/// A call that takes longer is stopped, and backed out of if it waits for a lock.
const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// A call that is not in a futex wait at the deadline is let run on up to this.
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// Memory of ours in the target, for the time of one hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scratch {
    pub start: u64,
}

impl Scratch {
    const BYTES: u64 = PAGE_BYTES + STACK_BYTES + 2 * PAGE_BYTES;

    fn stack_top(self) -> u64 {
        self.start + PAGE_BYTES + STACK_BYTES
    }

    /// A page for strings and structures.
    pub(crate) fn data(self) -> u64 {
        self.stack_top()
    }

    fn stub(self) -> u64 {
        self.data() + PAGE_BYTES
    }
}

/// The target's SIGTRAP action, kept when it ignores SIGTRAP: an int3 resets that to the default
/// (force_sig_info_to_task). `struct kernel_sigaction` is four words.
pub(crate) struct TrapAction([u8; 32]);

impl Held {
    /// Calls `function` (an address in the target) with up to six integer or pointer arguments
    /// and returns its rax.
    ///
    /// A call that has not returned after 5 s and waits for a lock is backed out of
    /// ([`Error::CallTimeout`]); one that is busy is given 30 s, because a function cannot be
    /// abandoned half-way without leaving behind the locks that it holds.
    pub fn call(&mut self, function: u64, args: &[u64]) -> Result<u64, Error> {
        if args.len() > 6 {
            return Err(Error::TooManyArguments { count: args.len() });
        }
        self.scratch()?;
        if self.errno.is_none()
            && let Some(location) = self.errno_function
        {
            let address = self.run(location, &[])?;
            let mut value = [0u8; 4];
            self.read(address, &mut value)?;
            self.errno = Some(SavedErrno { address, value });
        }
        self.run(function, args)
    }

    /// The scratch mapping, made on first use.
    pub(crate) fn scratch(&mut self) -> Result<Scratch, Error> {
        if let Some(scratch) = self.scratch {
            return Ok(scratch);
        }
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
        let read_write = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let no_fd = u64::MAX;
        let start = self.checked_syscall(
            "mmap",
            libc::SYS_mmap,
            [0, Scratch::BYTES, read_write, flags, no_fd, 0],
        )?;
        let scratch = Scratch { start };
        self.scratch = Some(scratch);
        // By mmap rather than mprotect, which sandboxes refuse more often.
        let fixed = flags | libc::MAP_FIXED as u64;
        let pages = [
            (start, libc::PROT_NONE),
            (scratch.stub(), libc::PROT_READ | libc::PROT_EXEC),
        ];
        for (page, protection) in pages {
            self.checked_syscall(
                "mmap",
                libc::SYS_mmap,
                [page, PAGE_BYTES, protection as u64, fixed, no_fd, 0],
            )?;
        }
        let poked = ptrace::poke(self.tid, scratch.stub(), u64::from_le_bytes(STUB));
        self.check("POKETEXT", poked)?;
        if procfs::signals(self.pid, self.tid).ignored & (1 << (libc::SIGTRAP - 1)) != 0 {
            let data = scratch.data();
            self.checked_syscall(
                "rt_sigaction",
                libc::SYS_rt_sigaction,
                [libc::SIGTRAP as u64, 0, data, 8, 0, 0],
            )?;
            let mut action = [0u8; 32];
            self.read(data, &mut action)?;
            self.trap_action = Some(TrapAction(action));
        }
        Ok(scratch)
    }

    /// Runs the stub to its int3.
    fn run(&mut self, function: u64, args: &[u64]) -> Result<u64, Error> {
        let scratch = self.scratch()?;
        let argument = |index: usize| args.get(index).copied().unwrap_or(0);
        let mut registers = self.saved;
        registers.rip = scratch.stub();
        registers.r11 = function;
        // 16-byte aligned before the call instruction (psABI 3.2.2).
        registers.rsp = scratch.stack_top();
        // End of the frame-pointer chain (psABI 3.4.1).
        registers.rbp = 0;
        registers.rdi = argument(0);
        registers.rsi = argument(1);
        registers.rdx = argument(2);
        registers.rcx = argument(3);
        registers.r8 = argument(4);
        registers.r9 = argument(5);
        // No vector arguments, for a variadic function.
        registers.rax = 0;
        registers.orig_rax = u64::MAX;
        registers.eflags &= !(regs::EFLAGS_DF | regs::EFLAGS_TF);
        self.prepare(&registers)?;

        let begin = Instant::now();
        let mut until = begin + CALL_DEADLINE;
        loop {
            let resumed = ptrace::resume(self.tid, 0);
            self.check("CONT", resumed)?;
            match self.next_stop(until)? {
                Some(Stop::Signal(libc::SIGTRAP)) => {
                    let now = regs::read(self.tid);
                    let now = self.check("GETREGSET NT_PRSTATUS", now)?;
                    if now.rip == scratch.stub() + STUB_END && self.signal_info()?.si_code > 0 {
                        return Ok(now.rax);
                    }
                    self.take_signal(libc::SIGTRAP)?;
                }
                Some(Stop::Signal(signal)) => self.take_signal(signal)?,
                Some(_) => {}
                None => {
                    self.give_up_waiting()?;
                    let now = regs::read(self.tid);
                    let now = self.check("GETREGSET NT_PRSTATUS", now)?;
                    let waits = now.orig_rax == libc::SYS_futex as u64;
                    let waited = begin.elapsed();
                    if waits || waited >= CALL_LIMIT {
                        return Err(Error::CallTimeout {
                            pid: self.pid,
                            function,
                            waited,
                        });
                    }
                    until = Instant::now() + Duration::from_millis(100);
                }
            }
        }
    }

    /// Removes what remote calls left: errno, the SIGTRAP action, the scratch mapping.
    pub(crate) fn undo_remote_work(&mut self) -> Result<(), Error> {
        let mut first = Ok(());
        if let Some(errno) = self.errno.take() {
            first = self.write(errno.address, &errno.value);
        }
        let Some(scratch) = self.scratch.take() else {
            return first;
        };
        if let Some(TrapAction(action)) = self.trap_action.take() {
            let restored = self.write(scratch.data(), &action).and_then(|()| {
                self.checked_syscall(
                    "rt_sigaction",
                    libc::SYS_rt_sigaction,
                    [libc::SIGTRAP as u64, scratch.data(), 0, 8, 0, 0],
                )
            });
            first = first.and(restored.map(drop));
        }
        let unmapped = self.checked_syscall(
            "munmap",
            libc::SYS_munmap,
            [scratch.start, Scratch::BYTES, 0, 0, 0, 0],
        );
        first.and(unmapped.map(drop))
    }
}
