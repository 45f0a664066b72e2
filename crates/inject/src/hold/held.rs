//! One thread, seized and stopped: [`Held`], the central type of this crate.
//!
//! ```no_run
//! use memhook_inject::{HoldOptions, hold};
//! use std::time::Duration;
//!
//! # fn ask(pid: i32, function: memhook_process::RemoteAddress) -> Result<(), memhook_inject::Error> {
//! let mut held = hold(pid, &HoldOptions::anywhere(Duration::from_secs(5)))?;
//! let tid = held.syscall(libc::SYS_gettid, [0; 6])?; // the held thread makes the call
//! let answer = held.call(function, &[1, 2])?; // likewise, on a stack of ours
//! let time = held.release()?; // the thread goes on as if nothing had happened
//! # Ok(())
//! # }
//! ```
//!
//! **Place.** [`hold`](fn@crate::hold) stops a thread at any place, or at a place that its `judge` accepts. At an
//! arbitrary place, only system calls and functions that take no lock may be called, because the thread may own any
//! lock of its process.
//!
//! **Restored state.** A release restores registers, vector state, signal mask and `errno` ([`Saved`]), and the
//! interrupted system call with its remaining timeout. Signals that arrived in the meantime are sent again. Dropping a
//! `Held` does the same as [`Held::release`], but reports no error.
//!
//! **Cost of a call.** A hold that only reads does not write anything. The first system call or function prepares the
//! thread's way back to its own code (`way_home.rs`), blocks the signals and maps scratch memory with a stack of ours
//! (`scratch.rs`). Later calls reuse this memory, and the release unmaps it.
//!
//! **Choice of a call.** [`Held::syscall`] makes one system call. [`Held::call`] calls a function with up to six
//! arguments. [`Held::call_with_data`] calls a function that reads or writes memory of its caller. [`Held::call_each`]
//! calls one function for many arguments, without a stop between the calls. [`Held::call_unless_locked`] calls a
//! function that may wait for a lock, and abandons the call if it waits. [`Held::call_to_its_end`] calls a function
//! that holds a lock while it waits for another lock, and so must never be abandoned.
//!
//! **The other threads** continue to run, unless [`Held::stop_others`] stops them for a moment. To hold all threads
//! without any call, use [`AllHeld`].
//!
//! **If we die**, the thread finishes its call and returns to its own code by itself. If we hang or get no processor
//! time, the watchdog makes us release the thread, and operations fail with [`Error::WentHome`]. If we do not react, it
//! kills us. If the target dies, operations fail with [`Error::TargetGone`].
//!
//! ptrace requests must come from the tracing thread, so a `Held` is not `Send`. A new operation is an `impl Held`
//! block in a file of `remote/`.

use std::io;
use std::marker::PhantomData;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::all_threads::AllHeld;
use crate::error::mappings;
use crate::guard::Guard;
use crate::remote_work::RemoteWork;
use crate::saved::Saved;
use crate::slept::Sleep;
use crate::survey::{Survey, TargetFacts};
use crate::wait::{self, Stop};
use crate::{Error, Registers, ptrace, regs, seccomp, watchdog};
use memhook_process::{RemoteAddress, has_seccomp_filter};

/// Longest time for one remote system call, or for the return to a plain stop.
pub(crate) const STEP_DEADLINE: Duration = Duration::from_secs(5);

/// One thread of the target, seized and stopped. Dropping this value restores the thread's state and releases it.
///
/// If this process is killed, the thread restores itself (`signal_frame.rs`, `scratch.rs`).
pub struct Held {
    pub(crate) pid: i32,
    pub(crate) tid: i32,
    pub(crate) target: Rc<TargetFacts>,
    pub(crate) saved: Saved,
    pub(crate) work: RemoteWork,
    /// True if the thread has been killed, or its process has called execve.
    pub(crate) gone: bool,
    /// True if the watchdog has released the thread.
    pub(crate) let_go: bool,
    /// True if nothing is left to restore or to release.
    pub(crate) finished: bool,
    /// True for a thread of a program that memhook-rs started. A release leaves such a thread stopped, and it is not
    /// reaped here.
    pub(crate) stays_traced: bool,
    /// Other threads, while they are stopped.
    pub(crate) others: Option<AllHeld>,
    /// See [`Held::thread_number_at`].
    pub(crate) thread_number_at: Option<u32>,
    /// ptrace requests must come from the thread that seized.
    _not_send: PhantomData<*const ()>,
    _guard: Guard,
}

impl Held {
    /// Takes over a thread that is in an event stop. Releases the thread after a failure.
    pub(crate) fn adopt(
        pid: i32,
        tid: i32,
        sleep: Sleep,
        survey: &Survey,
        guard: Guard,
    ) -> Result<Held, Error> {
        let saved = Saved::of(pid, tid, sleep, survey).map_err(|(request, cause)| {
            let _ = ptrace::detach(tid);
            Error::ptrace(pid, tid, request, cause)
        })?;
        Ok(Held {
            pid,
            tid,
            target: Rc::clone(&survey.target),
            saved,
            work: RemoteWork::none(tid, survey),
            gone: false,
            let_go: false,
            finished: false,
            stays_traced: false,
            others: None,
            thread_number_at: None,
            _not_send: PhantomData,
            _guard: guard,
        })
    }

    /// Id of the process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Id of the held thread.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// Returns the time since the thread stopped.
    pub fn held_for(&self) -> Duration {
        self.saved.stopped_at.elapsed()
    }

    /// Returns the registers at the stop, which the release restores.
    pub fn registers(&self) -> &Registers {
        &self.saved.registers
    }

    /// Returns the offset from the thread pointer at which the thread is about to store its id. Known only for the
    /// initial thread of a static program that memhook-rs started, which has just asked the kernel for the id.
    pub fn thread_number_at(&self) -> Option<u32> {
        self.thread_number_at
    }

    /// Returns true if the thread's seccomp filters allow its own code to make system call `nr`, or refuse it without
    /// further effects such as a kill. `None`: this process may not read the filters.
    pub fn may_call(&self, nr: i64) -> Option<bool> {
        let filters = seccomp::filters(self.tid).ok()?;
        let is_harmless = |filter: &Vec<_>| seccomp::is_harmless(filter, nr);
        Some(filters.iter().all(is_harmless))
    }

    /// Returns true if a seccomp filter may kill the process for this system call. A suspended filter does not see the
    /// call. But if this process is killed, the filter becomes active while the thread may be about to make the call.
    pub(crate) fn may_be_ended_for(&mut self, nr: i64, args: [u64; 6]) -> bool {
        if !self.work.filters_suspended {
            return false; // such a target is judged by `may_call`, or refused
        }
        let (pid, tid) = (self.pid, self.tid);
        let filters = self.work.filters.get_or_insert_with(|| {
            let is_filtered = has_seccomp_filter(pid);
            is_filtered.then(|| seccomp::filters(tid).ok())
        });
        match filters {
            None => false,
            Some(None) => true,
            Some(Some(filters)) => {
                let is_harmless = |filter: &Vec<_>| seccomp::is_harmless_call(filter, nr, args);
                !filters.iter().all(is_harmless)
            }
        }
    }

    /// Returns true if system calls made in this thread bypass its seccomp filters.
    pub fn filters_suspended(&self) -> bool {
        self.work.filters_suspended
    }

    /// Converts the failure of a ptrace request into an error. If the target is gone, records that.
    pub(crate) fn check<T>(
        &mut self,
        request: &'static str,
        result: io::Result<T>,
    ) -> Result<T, Error> {
        result.map_err(|cause| {
            if self.notices_let_go() {
                return self.has_gone_home();
            }
            let error = Error::ptrace(self.pid, self.tid, request, cause);
            self.gone |= matches!(error, Error::TargetGone { .. });
            error
        })
    }

    pub(crate) fn read_registers(&mut self) -> Result<Registers, Error> {
        let read = regs::read(self.tid);
        self.check("GETREGSET NT_PRSTATUS", read)
    }

    pub(crate) fn write_registers(&mut self, registers: &Registers) -> Result<(), Error> {
        let written = regs::write(self.tid, registers);
        self.check("SETREGSET NT_PRSTATUS", written)
    }

    pub(crate) fn resume(&mut self) -> Result<(), Error> {
        self.resume_with(0)
    }

    fn resume_with(&mut self, signal: i32) -> Result<(), Error> {
        let resumed = ptrace::resume(self.tid, signal);
        self.check("CONT", resumed)
    }

    /// Handles a signal that has stopped the thread during remote work, and resumes the thread.
    pub(crate) fn resume_after(&mut self, signal: i32) -> Result<(), Error> {
        match self.passed_on(signal) {
            0 => {
                self.take_signal(signal)?;
                self.resume()
            }
            answered => self.resume_with(answered),
        }
    }

    pub(crate) fn interrupt(&mut self) -> Result<(), Error> {
        let interrupted = ptrace::interrupt(self.tid);
        self.check("INTERRUPT", interrupted)
    }

    /// Sets registers that make the thread run an operation and then return to its own code. The first time, it also
    /// blocks the signals. The order matters: if a thread lost its tracer while it had its own registers but blocked
    /// signals, the signals would stay blocked forever.
    pub(crate) fn commit(&mut self, registers: &Registers) -> Result<(), Error> {
        self.write_registers(registers)?;
        if !self.work.begun {
            self.work.begun = true;
            let set = ptrace::set_signal_mask(self.tid, self.remote_mask());
            self.check("SETSIGMASK", set)?;
        }
        Ok(())
    }

    /// Returns the next stop of the thread; `None` at the deadline.
    pub(crate) fn next_stop(&mut self, until: Instant) -> Result<Option<Stop>, Error> {
        match wait::wait_for_stop(self.pid, self.tid, until) {
            Some(Stop::Gone) => Err(self.is_gone()),
            other => Ok(other),
        }
    }

    /// Records and returns whether the watchdog has released the thread. A released thread returns to its own code by
    /// itself.
    fn notices_let_go(&mut self) -> bool {
        self.let_go |= watchdog::has_let_go();
        self.work.went_home |= self.let_go;
        self.let_go
    }

    /// Records that the thread has ended or is no longer ours.
    pub(crate) fn is_gone(&mut self) -> Error {
        if self.notices_let_go() {
            return self.has_gone_home();
        }
        self.gone = true;
        Error::TargetGone { pid: self.pid }
    }

    pub(crate) fn does_not_stop(&self) -> Error {
        let (pid, tid) = (self.pid, self.tid);
        Error::DoesNotStop { pid, tid }
    }

    pub(crate) fn has_gone_home(&self) -> Error {
        let (pid, tid) = (self.pid, self.tid);
        Error::WentHome { pid, tid }
    }

    /// Returns true if a stopped thread has left the remote code, that is, if it is on its own stack and executes the
    /// last gadgets or its own code.
    pub(crate) fn is_home(&self, now: &Registers) -> bool {
        self.work.scratch.is_some_and(|scratch| {
            let used = scratch.start..=scratch.stack_top();
            !scratch.runs(now.rip) && !used.contains(&RemoteAddress(now.rsp))
        })
    }

    /// Reads the target's memory.
    pub(crate) fn read(&self, address: RemoteAddress, into: &mut [u8]) -> Result<(), Error> {
        let read = self.target.read(address, into);
        read.map_err(|cause| self.memory_failure("read", address, into.len(), cause))
    }

    /// Reads a word of the target's memory.
    pub(crate) fn read_word(&self, address: RemoteAddress) -> Result<u64, Error> {
        let mut word = [0; 8];
        self.read(address, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// Writes the target's memory.
    pub(crate) fn write(&self, address: RemoteAddress, bytes: &[u8]) -> Result<(), Error> {
        // If the thread runs again, its stack is its own.
        let kept = watchdog::keep().ok_or_else(|| self.has_gone_home())?;
        let written = self.target.memory.write_all_at(bytes, address.0);
        drop(kept);
        #[cfg(test)]
        crate::steps::done();
        written.map_err(|cause| self.memory_failure("write", address, bytes.len(), cause))
    }

    /// Converts a failed access: a process that dies loses its memory before its threads are reported dead.
    fn memory_failure(
        &self,
        action: &'static str,
        address: RemoteAddress,
        bytes: usize,
        cause: io::Error,
    ) -> Error {
        let pid = self.pid;
        if watchdog::has_let_go() {
            return self.has_gone_home();
        }
        let until = Instant::now() + STEP_DEADLINE;
        while mappings(pid).is_ok_and(|mappings| mappings.is_empty()) && Instant::now() < until {
            if wait::has_ended(pid, self.tid) {
                return Error::TargetGone { pid };
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Error::Memory {
            action,
            pid,
            address,
            bytes,
            cause,
        }
    }

    /// Brings the thread into an event stop, which is inside the kernel's signal handling. Only there does the kernel
    /// check for a pending restart when it resumes the thread. A stop at a system call exit is past that point.
    pub(crate) fn settle(&mut self, until: Instant) -> Result<(), Error> {
        self.interrupt()?;
        self.resume()?;
        self.wait_settled(until)
    }

    /// Waits for the event stop that an earlier interrupt request causes.
    pub(crate) fn wait_settled(&mut self, until: Instant) -> Result<(), Error> {
        loop {
            match self.next_stop(until)? {
                Some(Stop::Event(_)) => return Ok(()),
                Some(Stop::Signal(signal)) if self.is_bell(signal)? => self.resume()?,
                Some(Stop::Signal(signal)) => self.resume_after(signal)?,
                Some(_) => self.resume()?,
                None => return Err(self.does_not_stop()),
            }
        }
    }
}
