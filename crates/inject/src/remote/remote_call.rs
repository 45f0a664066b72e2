//! A function call made by the held thread on a stack of ours, and how any operation runs.

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::held::{Held, STEP_DEADLINE};
use crate::scratch::{self, PAGE_BYTES, SPIN, Scratch, word};
use crate::wait::{self, Stop};
use crate::way_home::WayHome;
use crate::{Error, Registers, ptrace, regs, signal_frame};

/// A call that takes longer is stopped, and backed out of if it waits for a lock.
const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// A call that is not in a futex wait at the deadline is let run on up to this.
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// Of the scratch memory.
const SCRATCH_FLAGS: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
/// Argument of mmap for memory without a file.
const NO_FILE: u64 = u64::MAX;
/// How many places are tried for it that somebody else takes first.
const PLACE_TRIES: u32 = 8;

/// From then on the result is looked for in memory too: a seccomp filter may refuse the bell. Well
/// below the time that the stub spins.
const BELL_LIMIT: Duration = Duration::from_millis(if cfg!(test) { 5 } else { 50 });

/// How an operation ended.
pub(crate) enum Outcome {
    /// With this rax.
    Done(u64),
    /// Not at all: the thread was stopped in the middle, with these registers.
    Unfinished(Box<Registers>),
}

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
        self.prepare_calls()?;
        self.run(function, args)
    }

    /// The guard page, and `errno` remembered.
    pub(crate) fn prepare_calls(&mut self) -> Result<(), Error> {
        let scratch = self.scratch()?;
        if !self.guarded {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            let protection = libc::PROT_NONE as u64;
            self.checked_syscall(
                "mmap",
                libc::SYS_mmap,
                [
                    scratch.start,
                    PAGE_BYTES,
                    protection,
                    flags as u64,
                    u64::MAX,
                    0,
                ],
            )?;
            self.guarded = true;
        }
        if self.errno.is_none()
            && let Some(location) = self.functions.errno_location
        {
            let address = self.run(location, &[])?;
            let mut value = [0u8; 4];
            self.read(address, &mut value)?;
            let mut words = [0u8; 16];
            words[..8].copy_from_slice(&address.to_le_bytes());
            words[8..12].copy_from_slice(&value);
            self.write(scratch.words() + word::ERRNO_ADDRESS, &words)?;
            self.errno = Some((address, value));
        }
        Ok(())
    }

    /// The scratch mapping, made on first use.
    pub(crate) fn scratch(&mut self) -> Result<Scratch, Error> {
        if self.went_home {
            return Err(self.has_gone_home());
        }
        if let Some(scratch) = self.scratch {
            return Ok(scratch);
        }
        let way = self.way_home()?;
        let counts = self.clock.rate() * SPIN.as_millis() as u64;
        let scratch = self.map_scratch(way)?;
        self.scratch = Some(scratch);
        self.check_processor(way)?;
        // By mmap rather than mprotect, which sandboxes refuse more often.
        let read_execute = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        let fixed = SCRATCH_FLAGS | libc::MAP_FIXED as u64;
        let code = [scratch.code(), PAGE_BYTES, read_execute, fixed, NO_FILE, 0];
        self.bare_syscall(way.unmapping, "mmap", libc::SYS_mmap, code)?;
        self.write(scratch.code(), scratch::stub())?;
        let mut words = [0u8; word::END as usize];
        for (at, value) in [
            (word::COUNTS, counts),
            (word::FRAME, way.home),
            (word::GADGET, way.gadgets.syscall),
            (word::START, scratch.start),
            (word::BYTES, Scratch::BYTES),
            (word::BELL, self.bell.unwrap_or(0) as u64),
        ] {
            words[at as usize..][..8].copy_from_slice(&value.to_le_bytes());
        }
        self.write(scratch.words(), &words)?;
        Ok(scratch)
    }

    /// Maps the scratch memory at the place that the way home unmaps.
    fn map_scratch(&mut self, way: WayHome) -> Result<Scratch, Error> {
        let read_write = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        // Before Linux 4.17 only a wish.
        let flags = SCRATCH_FLAGS | libc::MAP_FIXED_NOREPLACE as u64;
        let mut tries = 0;
        loop {
            let place = self.place.address();
            let map = [place, Scratch::BYTES, read_write, flags, NO_FILE, 0];
            let mapped = self.bare_syscall(way.unmapping, "mmap", libc::SYS_mmap, map);
            let (start, is_mapped) = match mapped {
                Ok(start) => (start, true),
                // Somebody was faster.
                Err(Error::RemoteSyscall { cause, .. })
                    if cause.raw_os_error() == Some(libc::EEXIST) && tries < PLACE_TRIES =>
                {
                    tries += 1;
                    self.place.change();
                    (self.place.address(), false)
                }
                Err(error) => return Err(error),
            };
            if start != place {
                let argument = way.unmapping + signal_frame::CALL_ARGUMENT;
                self.write(argument, &start.to_le_bytes())?;
            }
            if is_mapped {
                return Ok(Scratch { start });
            }
        }
    }

    fn run(&mut self, function: u64, args: &[u64]) -> Result<u64, Error> {
        let argument = |index: usize| args.get(index).copied().unwrap_or(0);
        let mut registers = self.call_registers()?;
        registers.r11 = function;
        registers.rdi = argument(0);
        registers.rsi = argument(1);
        registers.rdx = argument(2);
        registers.rcx = argument(3);
        registers.r8 = argument(4);
        registers.r9 = argument(5);
        self.run_to_the_end(function, &registers, CALL_DEADLINE)
    }

    /// Registers for the entry of the stub that makes one call.
    pub(crate) fn call_registers(&mut self) -> Result<Registers, Error> {
        let scratch = self.scratch()?;
        let mut registers = self.saved;
        registers.rip = scratch.call_entry();
        // 16-byte aligned before the call instruction (psABI 3.2.2).
        registers.rsp = scratch.stack_top();
        // End of the frame-pointer chain (psABI 3.4.1).
        registers.rbp = 0;
        // No vector arguments, for a variadic function.
        registers.rax = 0;
        registers.orig_rax = u64::MAX;
        registers.eflags &= !(regs::EFLAGS_DF | regs::EFLAGS_TF);
        Ok(registers)
    }

    /// Runs foreign code from these registers. If it waits for a lock at the deadline, it is backed
    /// out of; if it is busy, it is given more time.
    pub(crate) fn run_to_the_end(
        &mut self,
        function: u64,
        registers: &Registers,
        deadline: Duration,
    ) -> Result<u64, Error> {
        let begin = Instant::now();
        let mut outcome = self.operate(registers, deadline)?;
        loop {
            let now = match outcome {
                Outcome::Done(result) => return Ok(result),
                Outcome::Unfinished(now) => now,
            };
            let waited = begin.elapsed();
            if now.orig_rax == libc::SYS_futex as u64 || waited >= CALL_LIMIT {
                self.back_out()?;
                return Err(Error::CallTimeout {
                    pid: self.pid,
                    function,
                    waited,
                });
            }
            outcome = self.wait_until_done(Duration::from_millis(100))?;
        }
    }

    /// Starts the stub and waits for its result. Ends in a stop: at the bell or in the stub's
    /// spin, or wherever the thread was at the time limit.
    pub(crate) fn operate(
        &mut self,
        registers: &Registers,
        limit: Duration,
    ) -> Result<Outcome, Error> {
        self.set_out(registers)?;
        self.wait_until_done(limit)
    }

    /// Sets registers and token for an operation.
    pub(crate) fn set_out(&mut self, registers: &Registers) -> Result<(), Error> {
        let scratch = self.scratch()?;
        self.token = self.token.wrapping_add(1);
        let token = self.token;
        self.write(scratch.words() + word::TOKEN, &token.to_le_bytes())?;
        self.commit(registers)
    }

    /// Lets the thread run until the result is there, then stops it.
    fn wait_until_done(&mut self, limit: Duration) -> Result<Outcome, Error> {
        let resumed = ptrace::resume(self.tid, 0);
        self.check("CONT", resumed)?;
        self.await_result(limit)
    }

    /// Waits for the result of a thread that runs, then stops it.
    pub(crate) fn await_result(&mut self, limit: Duration) -> Result<Outcome, Error> {
        let begin = Instant::now();
        let until = begin + limit;
        let mut pace = wait::Pace::start();
        let mut result = None;
        loop {
            // With a bell the stop comes first; without one, or if it is refused, the result.
            if self.bell.is_none() || begin.elapsed() > BELL_LIMIT {
                result = self.result();
            }
            if result.is_some() || Instant::now() >= until {
                break;
            }
            match wait::poll_stop(self.pid, self.tid) {
                Some(Stop::Gone) => return Err(self.is_gone()),
                Some(Stop::Signal(signal)) if self.is_bell(signal)? => {
                    if let Some(result) = self.result() {
                        return Ok(Outcome::Done(result));
                    }
                    let resumed = ptrace::resume(self.tid, 0);
                    self.check("CONT", resumed)?;
                }
                Some(stop) => {
                    if let Stop::Signal(signal) = stop
                        && let Err(error) = self.take_signal(signal)
                    {
                        self.back_out()?;
                        return Err(error);
                    }
                    let resumed = ptrace::resume(self.tid, 0);
                    self.check("CONT", resumed)?;
                }
                None if !pace.pause() => {}
                None if wait::has_ended(self.pid, self.tid) => return Err(self.is_gone()),
                None => {}
            }
        }
        let interrupted = ptrace::interrupt(self.tid);
        self.check("INTERRUPT", interrupted)?;
        let settled = self.wait_settled(Instant::now() + STEP_DEADLINE);
        let now = regs::read(self.tid);
        let now = self.check("GETREGSET NT_PRSTATUS", now)?;
        // It may have finished meanwhile.
        let result = result.or_else(|| self.result());
        if self.scratch.is_none_or(|scratch| !scratch.runs(now.rip)) && self.is_home(&now) {
            self.went_home = true;
            return result.map(Outcome::Done).ok_or(self.has_gone_home());
        }
        if let Err(error) = settled {
            self.back_out()?;
            return Err(error);
        }
        Ok(match result {
            Some(result) => Outcome::Done(result),
            None => Outcome::Unfinished(Box::new(now)),
        })
    }

    /// Whether this signal stop is the end of the operation.
    pub(crate) fn is_bell(&mut self, signal: i32) -> Result<bool, Error> {
        if self.bell != Some(signal) {
            return Ok(false);
        }
        let now = regs::read(self.tid);
        let now = self.check("GETREGSET NT_PRSTATUS", now)?;
        Ok(self
            .scratch
            .is_some_and(|scratch| now.rip == scratch.rung()))
    }

    /// Result of the current operation once its token is there. After the thread went home other
    /// memory may be at this address: it does not hold the token.
    pub(crate) fn result(&self) -> Option<u64> {
        let mut words = [0u8; 16];
        self.mem
            .read_exact_at(&mut words, self.scratch?.words())
            .ok()?;
        let [result, done] = words.as_chunks::<8>().0 else {
            return None;
        };
        (u64::from_le_bytes(*done) == self.token).then(|| u64::from_le_bytes(*result))
    }

    /// Gives up the current operation: only the way home is left in the registers, and a signal
    /// that stopped it is gone.
    pub(crate) fn back_out(&mut self) -> Result<(), Error> {
        let Some(scratch) = self.scratch else {
            return Ok(());
        };
        let mut registers = self.saved;
        registers.rip = scratch.home_entry();
        registers.rsp = scratch.stack_top();
        registers.orig_rax = u64::MAX;
        registers.eflags &= !(regs::EFLAGS_DF | regs::EFLAGS_TF);
        self.commit(&registers)?;
        self.settle(Instant::now() + STEP_DEADLINE)
    }
}
