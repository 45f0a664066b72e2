//! One thread, seized and stopped, and everything needed to put it back.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::marker::PhantomData;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::error::mappings;
use crate::gadgets::Gadgets;
use crate::guard::Guard;
use crate::native_stack::{self, Room};
use crate::scratch::{Place, Scratch};
use crate::slept::Sleep;
use crate::survey::{LibcFunctions, Survey};
use crate::wait::{self, Stop};
use crate::way_home::WayHome;
use crate::{Error, Registers, load, ptrace, regs, restart, restarted, seccomp};

/// How long one remote system call, or the way back to a plain stop, may take.
pub(crate) const STEP_DEADLINE: Duration = Duration::from_secs(5);

/// Signals left unblocked during remote work. The kernel resets the handler of a *blocked*
/// synchronous signal to the default when it must force it (force_sig_info_to_task), so blocking
/// these would let a fault of ours destroy a handler of the target. SIGABRT: abort(3) unblocks it.
const SYNCHRONOUS: [i32; 7] = [
    libc::SIGTRAP,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGSYS,
    libc::SIGABRT,
];

/// One thread of the target, seized and stopped. Dropping it restores its state and lets it go.
///
/// If this process is killed, the thread restores itself: see `signal_frame.rs` and `scratch.rs`.
pub struct Held {
    pub(crate) pid: i32,
    pub(crate) tid: i32,
    pub(crate) stopped_at: Instant,
    /// State at the first stop.
    pub(crate) saved: Registers,
    pub(crate) saved_extended: Vec<u8>,
    pub(crate) saved_mask: u64,
    /// Since when it has been in its call, if the kernel would not restart that.
    pub(crate) sleep: Sleep,
    /// Where in the kernel it waited, if it was in restart_syscall(2).
    pub(crate) waits_in: String,
    /// Whether its seccomp filters are passed over.
    pub(crate) filters_suspended: bool,
    /// Signals taken off the thread during remote work, to be sent again.
    pub(crate) taken: Vec<(i32, libc::siginfo_t)>,
    /// Whether the registers were changed since the stop.
    pub(crate) used: bool,
    pub(crate) gone: bool,
    pub(crate) finished: bool,
    /// The thread of a program started here: released, it stays stopped, and its end is not collected.
    pub(crate) stays_traced: bool,
    pub(crate) mem: Rc<File>,
    pub(crate) gadgets: Option<Gadgets>,
    /// Signal by which the stub says that it is done.
    pub(crate) bell: Option<i32>,
    pub(crate) clock: Clock,
    /// Whether the thread's own stack has room for the signal frame, or why not.
    pub(crate) room: Result<Room, String>,
    /// Once it is written.
    pub(crate) way_home: Option<WayHome>,
    /// Where the scratch memory will be, if nobody maps anything there first.
    pub(crate) place: Place,
    pub(crate) scratch: Option<Scratch>,
    /// Whether the guard page of the scratch stack is there.
    pub(crate) guarded: bool,
    /// Marks the results of one operation; begins at a random number.
    pub(crate) token: u64,
    /// Whether the thread has restored itself and must not be restored again.
    pub(crate) went_home: bool,
    pub(crate) functions: LibcFunctions,
    /// Address and value of `errno` of the thread before the first remote call.
    pub(crate) errno: Option<(u64, [u8; 4])>,
    /// How many objects of ours the target has loaded already.
    pub(crate) earlier_loads: usize,
    /// ptrace requests must come from the thread that seized.
    _not_send: PhantomData<*const ()>,
    _guard: Guard,
}

/// Sets the registers of a stopped thread so that its call is repeated where it has to be, in case that this
/// process is killed. Returns what is known of the call's time after all.
pub(crate) fn set_to_repeat(
    pid: i32,
    tid: i32,
    saved: &Registers,
    sleep: Sleep,
    stopped_at: Instant,
) -> io::Result<Sleep> {
    if !restart::must_be_repeated(saved) {
        return Ok(sleep);
    }
    // At once: killed from here on, the program does not see EINTR.
    regs::write(tid, &restart::repeat(saved, stopped_at.elapsed()))?;
    if !restart::has_timeout(saved) {
        return Ok(sleep);
    }
    let sleep = sleep.confirmed(pid, tid);
    regs::write(tid, &restart::repeat(saved, sleep.lasts(stopped_at)))?;
    Ok(sleep)
}

impl Held {
    /// Takes over a thread that is in an event stop; on failure the thread is let go.
    pub(crate) fn adopt(
        pid: i32,
        tid: i32,
        sleep: Sleep,
        survey: &Survey,
        guard: Guard,
    ) -> Result<Held, Error> {
        let stopped_at = Instant::now();
        let adopted = (|| {
            let saved = regs::read(tid).map_err(|e| ("GETREGSET NT_PRSTATUS", e))?;
            restarted::remember(tid, &saved);
            let sleep = set_to_repeat(pid, tid, &saved, sleep, stopped_at)
                .map_err(|e| ("SETREGSET NT_PRSTATUS", e))?;
            Ok(Held {
                pid,
                tid,
                stopped_at,
                saved,
                saved_extended: regs::read_extended(tid)
                    .map_err(|e| ("GETREGSET NT_X86_XSTATE", e))?,
                saved_mask: ptrace::signal_mask(tid).map_err(|e| ("GETSIGMASK", e))?,
                sleep,
                waits_in: String::new(),
                filters_suspended: false,
                taken: Vec::new(),
                used: false,
                gone: false,
                finished: false,
                stays_traced: false,
                mem: Rc::clone(&survey.mem),
                gadgets: survey.gadgets,
                bell: survey.bell,
                clock: survey.clock,
                room: native_stack::room(&survey.mappings, tid, &saved, |address, into| {
                    survey.mem.read_exact_at(into, address).is_ok()
                }),
                way_home: None,
                place: Place::among(&survey.mappings),
                scratch: None,
                guarded: false,
                token: RandomState::new().hash_one(tid),
                went_home: false,
                functions: survey.functions,
                errno: None,
                earlier_loads: load::earlier_loads(&survey.mappings),
                _not_send: PhantomData,
                _guard: guard,
            })
        })();
        adopted.map_err(|(request, cause)| {
            let _ = ptrace::detach(tid);
            Error::ptrace(pid, tid, request, cause)
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

    /// Time since the thread stopped.
    pub fn held_for(&self) -> Duration {
        self.stopped_at.elapsed()
    }

    /// How long the call that the stop interrupted has lasted by now, at least.
    pub(crate) fn call_lasts(&self) -> Duration {
        self.sleep.lasts(self.stopped_at)
    }

    /// Registers at the stop; they will be put back.
    pub fn registers(&self) -> &Registers {
        &self.saved
    }

    /// Whether the thread's own code may make system call `nr` without being killed for it or the like:
    /// what its seccomp filters do with it. `None`: they cannot be looked at from here.
    pub fn may_call(&self, nr: i64) -> Option<bool> {
        let filters = seccomp::filters(self.tid).ok()?;
        Some(
            filters
                .iter()
                .all(|filter| seccomp::is_harmless(filter, nr)),
        )
    }

    /// Whether system calls made in this thread pass by its seccomp filters.
    pub fn filters_suspended(&self) -> bool {
        self.filters_suspended
    }

    /// Maps the failure of a ptrace request and notes when the target is gone.
    pub(crate) fn check<T>(
        &mut self,
        request: &'static str,
        result: std::io::Result<T>,
    ) -> Result<T, Error> {
        result.map_err(|cause| {
            let error = Error::ptrace(self.pid, self.tid, request, cause);
            self.gone |= matches!(error, Error::TargetGone { .. });
            error
        })
    }

    /// Signals that are blocked during remote work.
    pub(crate) fn remote_mask(&self) -> u64 {
        let open = SYNCHRONOUS.iter().chain(&self.bell);
        !open.fold(0u64, |set, &signal| set | 1 << (signal - 1))
    }

    /// Sets the registers to run something that leads home; the first time also blocks the
    /// signals. In this order: with the signals blocked and its own registers, a thread that loses
    /// its tracer would run on with them blocked for ever.
    pub(crate) fn commit(&mut self, registers: &Registers) -> Result<(), Error> {
        let set = regs::write(self.tid, registers);
        self.check("SETREGSET NT_PRSTATUS", set)?;
        if !self.used {
            self.used = true;
            let set = ptrace::set_signal_mask(self.tid, self.remote_mask());
            self.check("SETSIGMASK", set)?;
        }
        Ok(())
    }

    /// Next stop of the thread; `None` at the deadline.
    pub(crate) fn next_stop(&mut self, until: Instant) -> Result<Option<Stop>, Error> {
        match wait::wait_for_stop(self.pid, self.tid, until) {
            Some(Stop::Gone) => Err(self.is_gone()),
            other => Ok(other),
        }
    }

    /// Notes that the thread is no more.
    pub(crate) fn is_gone(&mut self) -> Error {
        self.gone = true;
        Error::TargetGone { pid: self.pid }
    }

    pub(crate) fn does_not_stop(&self) -> Error {
        Error::DoesNotStop {
            pid: self.pid,
            tid: self.tid,
        }
    }

    pub(crate) fn has_gone_home(&self) -> Error {
        Error::WentHome {
            pid: self.pid,
            tid: self.tid,
        }
    }

    /// Whether a stopped thread is past the remote code: on its own stack, in the last gadgets or
    /// in its own work.
    pub(crate) fn is_home(&self, now: &Registers) -> bool {
        self.scratch.is_some_and(|scratch| {
            !scratch.runs(now.rip) && !(scratch.start..=scratch.stack_top()).contains(&now.rsp)
        })
    }

    /// Details of the signal of the current signal-delivery-stop.
    pub(crate) fn signal_info(&mut self) -> Result<libc::siginfo_t, Error> {
        let info = ptrace::signal_info(self.tid);
        self.check("GETSIGINFO", info)
    }

    /// Deals with a signal during remote work: a fault of the code we run becomes an error (and
    /// the signal vanishes), any other is kept to be sent again after the release.
    pub(crate) fn take_signal(&mut self, signal: i32) -> Result<(), Error> {
        let info = self.signal_info()?;
        // si_code > 0: made by the kernel for a fault. abort(3) sends SIGABRT to its own process.
        // SAFETY: si_pid is read only for a signal sent by a process (si_code <= 0).
        let own_abort =
            signal == libc::SIGABRT && info.si_code <= 0 && unsafe { info.si_pid() } == self.pid;
        if own_abort || (info.si_code > 0 && SYNCHRONOUS.contains(&signal)) {
            let registers = regs::read(self.tid);
            let rip = self.check("GETREGSET NT_PRSTATUS", registers)?.rip;
            let mut address = 0;
            if !own_abort {
                // SAFETY: si_addr is set for the fault signals, which is checked above.
                address = unsafe { info.si_addr() } as u64;
            }
            // A general protection fault has no address: the program counter says more.
            let address = if address == 0 { rip } else { address };
            return Err(Error::RemoteFault {
                pid: self.pid,
                address,
                signal,
            });
        }
        // A bell that an interrupt overtook.
        if self.bell == Some(signal) && info.si_code == libc::SI_TKILL {
            return Ok(());
        }
        self.taken.push((signal, info));
        Ok(())
    }

    /// Reads the target's memory.
    pub(crate) fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let bytes = buffer.len();
        self.mem
            .read_exact_at(buffer, address)
            .map_err(|cause| self.memory_failure("read", address, bytes, cause))
    }

    /// Writes the target's memory.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        let written = self.mem.write_all_at(bytes, address);
        #[cfg(test)]
        crate::steps::done();
        written.map_err(|cause| self.memory_failure("write", address, bytes.len(), cause))
    }

    /// A process that dies loses its memory before its threads are reported dead.
    fn memory_failure(
        &self,
        action: &'static str,
        address: u64,
        bytes: usize,
        cause: std::io::Error,
    ) -> Error {
        let pid = self.pid;
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

    /// Brings the thread into an event stop, which lies inside the kernel's signal handling: only
    /// from there does the kernel look at a pending restart when it resumes the thread. (A stop at
    /// a system-call exit is past that point.)
    pub(crate) fn settle(&mut self, until: Instant) -> Result<(), Error> {
        let interrupted = ptrace::interrupt(self.tid);
        self.check("INTERRUPT", interrupted)?;
        let resumed = ptrace::resume(self.tid, 0);
        self.check("CONT", resumed)?;
        self.wait_settled(until)
    }

    /// Waits for the event stop of an interrupt that was already requested.
    pub(crate) fn wait_settled(&mut self, until: Instant) -> Result<(), Error> {
        loop {
            match self.next_stop(until)? {
                Some(Stop::Event(_)) => return Ok(()),
                Some(Stop::Signal(signal)) if self.is_bell(signal)? => {}
                Some(Stop::Signal(signal)) => self.take_signal(signal)?,
                Some(_) => {}
                None => return Err(self.does_not_stop()),
            }
            let resumed = ptrace::resume(self.tid, 0);
            self.check("CONT", resumed)?;
        }
    }
}
