//! Calls functions in the held thread, on a stack that we provide, and runs other operations in the thread.

use std::time::{Duration, Instant};

use crate::audit::{self, Act};
use crate::held::{Held, STEP_DEADLINE};
use crate::scratch::{self, PAGE_BYTES, Scratch, word};
use crate::wait::{self, Stop};
use crate::way_home::WayHome;
use crate::{Error, Registers, clock, regs, restart, signal_frame};
use memhook_process::RemoteAddress;
use tracing::trace;

/// Time after which a call is stopped, and abandoned if it waits for a lock.
const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// Time limit of a call that is not in a futex wait at the deadline.
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// Flags of the scratch memory's mapping.
const SCRATCH_FLAGS: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
/// The descriptor argument of mmap for memory without a file.
const NO_FILE: u64 = u64::MAX;
/// Number of alternative addresses to try if other memory has been mapped at the first address.
const PLACE_TRIES: u32 = 8;

/// Time for which a running thread is permitted to make a system call for which a filter may kill its process. It is
/// shorter than the exit of a process, and longer than another processor takes to see a store.
const LEAVE: Duration = Duration::from_micros(10);
/// Permission time for a thread that may be waiting for this processor, and first has to be scheduled. The time grows
/// with each attempt.
const LONGER_LEAVE: Duration = Duration::from_micros(100);
const LONGEST_LEAVE: Duration = Duration::from_millis(2);

/// End of an operation.
pub(crate) enum Outcome {
    /// The operation completed with this value in rax.
    Done(u64),
    /// The operation was stopped before its end, with these registers.
    Unfinished(Box<Registers>),
}

impl Held {
    /// Calls a function of the target with up to six integer or pointer arguments and returns its rax.
    ///
    /// A call that has not returned after 5 s and waits for a lock is abandoned ([`Error::CallTimeout`]); a busy call
    /// gets 30 s. So use this only for functions that hold no lock while they wait for another. For other functions,
    /// use [`Held::call_to_its_end`].
    pub fn call(&mut self, function: RemoteAddress, args: &[u64]) -> Result<u64, Error> {
        self.prepare_calls()?;
        self.run(function, args)
    }

    /// Calls a function of the target that takes locks, like [`Held::call`], and abandons the call if it still waits
    /// for a lock after this time. Use this only for functions that hold no lock while they wait for another.
    pub fn call_unless_locked(
        &mut self,
        function: RemoteAddress,
        args: &[u64],
        patience: Duration,
    ) -> Result<u64, Error> {
        self.prepare_calls()?;
        self.run_within(function, args, patience)
    }

    /// Makes the guard page, and saves `errno`.
    pub(crate) fn prepare_calls(&mut self) -> Result<(), Error> {
        let scratch = self.scratch()?;
        if !self.work.guarded {
            let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED) as u64;
            let none = libc::PROT_NONE as u64;
            let arguments = [scratch.start.0, PAGE_BYTES, none, flags, NO_FILE, 0];
            self.checked_syscall("mmap", libc::SYS_mmap, &arguments)?;
            self.work.guarded = true;
        }
        if self.work.errno.is_none()
            && let Some(location) = self.target.functions.errno_location
        {
            let address = RemoteAddress(self.run(location, &[])?);
            let mut value = [0u8; 4];
            self.read(address, &mut value)?;
            let mut words = [0u8; 16];
            words[..8].copy_from_slice(&address.0.to_le_bytes());
            words[8..12].copy_from_slice(&value);
            self.write(scratch.words() + word::ERRNO_ADDRESS, &words)?;
            self.work.errno = Some((address, value));
        }
        Ok(())
    }

    /// Returns the scratch mapping, made on first use.
    pub(crate) fn scratch(&mut self) -> Result<Scratch, Error> {
        if self.work.went_home {
            return Err(self.has_gone_home());
        }
        if let Some(scratch) = self.work.scratch {
            return Ok(scratch);
        }
        let way = self.way_home()?;
        // No step that would have to be undone has been made yet.
        let leaving = [self.work.place.address().0, Scratch::BYTES, 0, 0, 0, 0];
        for (call, nr, args) in [
            ("munmap", libc::SYS_munmap, leaving),
            ("rt_sigreturn", libc::SYS_rt_sigreturn, [0; 6]),
        ] {
            if self.may_be_ended_for(nr, args) {
                return Err(self.is_filtered(call));
            }
        }
        let counts = self.target.clock.rate() * self.work.timing.spin.as_millis() as u64;
        let scratch = self.map_scratch(way)?;
        self.work.scratch = Some(scratch);
        self.check_processor(way)?;
        // mmap is used instead of mprotect, because sandboxes refuse mprotect more often.
        let read_execute = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        let fixed = SCRATCH_FLAGS | libc::MAP_FIXED as u64;
        let code = scratch.code().0;
        let code = [code, PAGE_BYTES, read_execute, fixed, NO_FILE, 0];
        self.bare_syscall(way.unmapping, "mmap", libc::SYS_mmap, &code)?;
        self.write(scratch.code(), scratch::stub())?;
        let mut words = [0u8; word::END as usize];
        for (at, value) in [
            (word::COUNTS, counts),
            (word::FRAME, way.home.0),
            (word::GADGET, way.gadgets.syscall.0),
            (word::START, scratch.start.0),
            (word::BYTES, Scratch::BYTES),
            (word::BELL, self.bell() as u64),
        ] {
            words[at as usize..][..8].copy_from_slice(&value.to_le_bytes());
        }
        self.write(scratch.words(), &words)?;
        Ok(scratch)
    }

    /// Returns the signal by which the thread reports completion, or 0 if a filter might kill the process for it.
    fn bell(&mut self) -> i32 {
        let (pid, tid) = (self.pid as u64, self.tid as u64);
        let signal = self.target.bell.unwrap_or(0);
        let calls = [
            (libc::SYS_getpid, [0; 6]),
            (libc::SYS_gettid, [0; 6]),
            (libc::SYS_tgkill, [pid, tid, signal as u64, 0, 0, 0]),
        ];
        match calls
            .iter()
            .any(|&(nr, args)| self.may_be_ended_for(nr, args))
        {
            true => 0,
            false => signal,
        }
    }

    /// Maps the scratch memory at the address that the way home unmaps.
    fn map_scratch(&mut self, way: WayHome) -> Result<Scratch, Error> {
        let read_write = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        // Before Linux 4.17 the address is only a hint.
        let flags = SCRATCH_FLAGS | libc::MAP_FIXED_NOREPLACE as u64;
        let mut tries = 0;
        loop {
            let place = self.work.place.address();
            let map = [place.0, Scratch::BYTES, read_write, flags, NO_FILE, 0];
            let mapped = self.bare_syscall(way.unmapping, "mmap", libc::SYS_mmap, &map);
            let (start, is_mapped) = match mapped {
                Ok(start) => (RemoteAddress(start), true),
                // The target has mapped other memory there first.
                Err(Error::RemoteSyscall { cause, .. })
                    if cause.raw_os_error() == Some(libc::EEXIST) && tries < PLACE_TRIES =>
                {
                    tries += 1;
                    self.work.place.change();
                    (self.work.place.address(), false)
                }
                Err(error) => return Err(error),
            };
            if start != place {
                let words = way.gadgets.frame_entry().len();
                let argument = way.unmapping + signal_frame::call_argument(words);
                self.write(argument, &start.0.to_le_bytes())?;
                self.mark_frames()?;
            }
            if is_mapped {
                return Ok(Scratch { start });
            }
        }
    }

    fn run(&mut self, function: RemoteAddress, args: &[u64]) -> Result<u64, Error> {
        self.run_within(function, args, CALL_DEADLINE)
    }

    fn run_within(
        &mut self,
        function: RemoteAddress,
        args: &[u64],
        deadline: Duration,
    ) -> Result<u64, Error> {
        let registers = self.function_registers(function, args)?;
        self.run_to_the_end(function, &registers, deadline)
    }

    /// Returns registers for the entry of the stub that calls this function, with up to six arguments.
    pub(crate) fn function_registers(
        &mut self,
        function: RemoteAddress,
        args: &[u64],
    ) -> Result<Registers, Error> {
        if args.len() > 6 {
            return Err(Error::TooManyArguments { count: args.len() });
        }
        let argument = |index: usize| args.get(index).copied().unwrap_or(0);
        let mut registers = self.call_registers()?;
        registers.r11 = function.0;
        registers.rdi = argument(0);
        registers.rsi = argument(1);
        registers.rdx = argument(2);
        registers.rcx = argument(3);
        registers.r8 = argument(4);
        registers.r9 = argument(5);
        Ok(registers)
    }

    /// Returns registers for the entry of the stub that makes one call.
    pub(crate) fn call_registers(&mut self) -> Result<Registers, Error> {
        let scratch = self.scratch()?;
        let mut registers = self.remote_registers(scratch.call_entry(), scratch.stack_top());
        // End of the frame-pointer chain (psABI 3.4.1).
        registers.rbp = 0;
        // No vector arguments, for a variadic function.
        registers.rax = 0;
        Ok(registers)
    }

    /// Records a call that is about to begin. Calls of a loop (`remote_calls.rs`) are recorded once their number is
    /// known.
    pub(crate) fn note_call(&self, function: RemoteAddress, registers: &Registers) {
        if registers.r11 == function.0 {
            let r = registers;
            audit::note_as(self.pid, || Act::Call {
                function: function.0,
                calls: 1,
                arguments: vec![r.rdi, r.rsi, r.rdx, r.rcx, r.r8, r.r9],
            });
        }
    }

    /// Runs foreign code from these registers. If the code waits for a lock at the deadline, it is abandoned. If it is
    /// busy, it gets more time.
    pub(crate) fn run_to_the_end(
        &mut self,
        function: RemoteAddress,
        registers: &Registers,
        deadline: Duration,
    ) -> Result<u64, Error> {
        let begin = Instant::now();
        self.note_call(function, registers);
        let mut outcome = self.operate_answering(registers, deadline)?;
        loop {
            let now = match outcome {
                Outcome::Done(result) => {
                    let took = begin.elapsed();
                    trace!(%function, result = format_args!("{result:#x}"), ?took, "a call of a function");
                    return Ok(result);
                }
                Outcome::Unfinished(now) => now,
            };
            let waited = begin.elapsed();
            // Only a wait that the stop has interrupted may be abandoned. A wait that has just succeeded must continue.
            // Otherwise the wake-up that ended it would be lost, and another thread would keep sleeping next to a free
            // lock.
            let waits =
                now.orig_rax == libc::SYS_futex as u64 && restart::is_restart_code(now.rax as i64);
            if waits || waited >= CALL_LIMIT {
                self.back_out()?;
                return Err(Error::CallTimeout {
                    pid: self.pid,
                    function,
                    waited,
                });
            }
            outcome = self.wait_until_done_answering(Duration::from_millis(100))?;
        }
    }

    /// Like [`Held::operate`], for a function of the target, which may wait for threads that wait until this thread
    /// handles a signal.
    pub(crate) fn operate_answering(
        &mut self,
        registers: &Registers,
        limit: Duration,
    ) -> Result<Outcome, Error> {
        self.set_out(registers)?;
        self.wait_until_done_answering(limit)
    }

    /// Like [`Held::wait_until_done`], for a function of the target.
    pub(crate) fn wait_until_done_answering(&mut self, limit: Duration) -> Result<Outcome, Error> {
        self.answer_signals(true)?;
        let outcome = self.wait_until_done(limit)?;
        if let Outcome::Done(_) = outcome
            && !self.work.went_home
        {
            self.answer_signals(false)?;
        }
        Ok(outcome)
    }

    /// Starts the stub and waits for its result. Leaves the thread stopped: at the bell, in the stub's spin, or at any
    /// point if the time limit is reached.
    pub(crate) fn operate(
        &mut self,
        registers: &Registers,
        limit: Duration,
    ) -> Result<Outcome, Error> {
        self.set_out(registers)?;
        self.wait_until_done(limit)
    }

    /// Like [`Held::operate`], for a system call for which a suspended filter may kill the process: the filter sees the
    /// call if this process is killed before the call. So the thread waits for our permission, which expires before
    /// this process could finish exiting if it were killed. Without permission, the thread returns to its own code
    /// without making the call. Permission is given while the thread is seen running on another processor. If there is
    /// only one processor, the permission must last until shortly after the thread is scheduled on it.
    pub(crate) fn operate_with_leave(
        &mut self,
        registers: &Registers,
        limit: Duration,
    ) -> Result<Outcome, Error> {
        let scratch = self.scratch()?;
        let waits = scratch.words() + word::WAITS;
        self.write(waits, &[0; 16])?;
        let mut waiting = *registers;
        waiting.rbx = registers.rip;
        waiting.rip = scratch.leave_entry().0;
        self.set_out(&waiting)?;
        self.resume()?;
        match self.give_leave(scratch)? {
            true => self.await_result(limit),
            // The thread is stopped where it is, or has gone home.
            false => self.await_result(Duration::ZERO),
        }
    }

    /// Gives the thread permission to continue, and waits until it has used the permission. After [`Timing::spin`],
    /// counted from the beginning of its wait, the thread goes home without us, and its memory is then no longer ours.
    /// Returns `false` well before that time.
    ///
    /// [`Timing::spin`]: crate::timing::Timing
    fn give_leave(&mut self, scratch: Scratch) -> Result<bool, Error> {
        let (waits, leave) = (scratch.words() + word::WAITS, scratch.words() + word::LEAVE);
        let spin = self.work.timing.spin;
        let counts = |time: Duration| self.target.clock.rate() * time.as_micros() as u64 / 1000;
        let (while_it_runs, mut until_it_runs) = (counts(LEAVE), counts(LONGER_LEAVE));
        let longest = counts(LONGEST_LEAVE);
        let until = Instant::now() + STEP_DEADLINE;
        // The wait had not begun at this time.
        let mut not_before = Instant::now();
        let mut pace = wait::Pace::start();
        loop {
            self.let_others_go_in_time();
            let now = Instant::now();
            let (Ok(count), Ok(count_now)) = (self.read_word(waits), self.read_word(waits)) else {
                return Ok(false);
            };
            let waited = not_before.elapsed();
            if count_now == word::TAKEN {
                return Ok(true);
            } else if count_now == 0 {
                not_before = now;
            } else if waited >= spin / 3 {
                return Ok(false);
            } else if count != count_now {
                self.write(leave, &(clock::count() + while_it_runs).to_le_bytes())?;
                continue;
            } else if waited >= spin / 6 {
                self.write(leave, &(clock::count() + until_it_runs).to_le_bytes())?;
                until_it_runs = longest.min(until_it_runs * 2);
            }
            if now >= until {
                return Ok(false);
            }
            match wait::poll_stop(self.pid, self.tid) {
                Some(Stop::Gone) => return Err(self.is_gone()),
                Some(Stop::Signal(signal)) => {
                    if let Err(error) = self.resume_after(signal) {
                        self.back_out()?;
                        return Err(error);
                    }
                }
                Some(_) => self.resume()?,
                None => drop(pace.pause()),
            }
        }
    }

    /// Sets the registers and the token for an operation.
    pub(crate) fn set_out(&mut self, registers: &Registers) -> Result<(), Error> {
        let scratch = self.scratch()?;
        self.check_opened()?;
        self.work.token = self.work.token.wrapping_add(1);
        let token = self.work.token.to_le_bytes();
        self.write(scratch.words() + word::TOKEN, &token)?;
        self.commit(registers)
    }

    /// Lets the thread run until the result is available, then stops it.
    pub(crate) fn wait_until_done(&mut self, limit: Duration) -> Result<Outcome, Error> {
        self.resume()?;
        self.await_result(limit)
    }

    /// Waits for the result of a running thread, then stops it.
    pub(crate) fn await_result(&mut self, limit: Duration) -> Result<Outcome, Error> {
        let begin = Instant::now();
        let until = begin + limit;
        let mut pace = wait::Pace::start();
        let mut result = None;
        loop {
            self.let_others_go_in_time();
            // With a bell, the stop comes first. Without a bell, or if the bell is refused, the result comes first.
            if self.target.bell.is_none() || begin.elapsed() > self.work.timing.bell {
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
                    self.resume()?;
                }
                Some(Stop::Signal(signal)) => {
                    if let Err(error) = self.resume_after(signal) {
                        self.back_out()?;
                        return Err(error);
                    }
                }
                Some(_) => self.resume()?,
                None if !pace.pause() || !pace.is_slow() => {}
                None if wait::has_ended(self.pid, self.tid) => return Err(self.is_gone()),
                None => {}
            }
        }
        self.interrupt()?;
        let settled = self.wait_settled(Instant::now() + STEP_DEADLINE);
        let now = self.read_registers()?;
        // The operation may have finished meanwhile.
        let result = result.or_else(|| self.result());
        if self.is_home(&now) {
            self.work.went_home = true;
            return result.map(Outcome::Done).ok_or(self.has_gone_home());
        }
        if let Err(error) = settled {
            self.back_out()?;
            return Err(error);
        }
        let Some(result) = result else {
            return Ok(Outcome::Unfinished(Box::new(now)));
        };
        self.leave_handler(now)?;
        Ok(Outcome::Done(result))
    }

    /// Lets a signal handler that has interrupted the stub finish, because the sender of the signal may wait for the
    /// handler.
    fn leave_handler(&mut self, mut now: Registers) -> Result<(), Error> {
        let until = Instant::now() + STEP_DEADLINE;
        if self.target.functions.answered.is_none() {
            return Ok(());
        }
        while !self
            .work
            .scratch
            .is_some_and(|scratch| scratch.runs(now.rip))
        {
            if Instant::now() >= until {
                return Err(self.does_not_stop());
            }
            self.settle(until)?;
            now = self.read_registers()?;
            if self.is_home(&now) {
                self.work.went_home = true;
                return Err(self.has_gone_home());
            }
        }
        Ok(())
    }

    /// Returns the result of the current operation, once its token is stored. After the thread has gone home, other
    /// memory may be at this address, but it does not contain the token.
    pub(crate) fn result(&self) -> Option<u64> {
        let mut words = [0u8; 16];
        let place = self.work.scratch?.words();
        self.target.read(place, &mut words).ok()?;
        let [result, done] = words.as_chunks::<8>().0 else {
            return None;
        };
        (u64::from_le_bytes(*done) == self.work.token).then(|| u64::from_le_bytes(*result))
    }

    /// Abandons the current operation: its registers now only make the thread return to its own code, and the signal
    /// that stopped it is dropped.
    pub(crate) fn back_out(&mut self) -> Result<(), Error> {
        let Some(scratch) = self.work.scratch else {
            return Ok(());
        };
        if self.work.begun {
            self.answer_signals(false)?;
        }
        self.commit(&self.remote_registers(scratch.home_entry(), scratch.stack_top()))?;
        self.settle(Instant::now() + STEP_DEADLINE)
    }

    /// Returns the thread's registers, set to run our code from `entry`.
    pub(crate) fn remote_registers(&self, entry: RemoteAddress, stack: RemoteAddress) -> Registers {
        let mut registers = self.saved.registers;
        registers.rip = entry.0;
        // 16-byte aligned, as before a call instruction (psABI 3.2.2).
        registers.rsp = stack.0;
        // The kernel must not restart the interrupted call of the target.
        registers.orig_rax = u64::MAX;
        registers.eflags &= !(regs::EFLAGS_DF | regs::EFLAGS_TF);
        registers
    }
}
