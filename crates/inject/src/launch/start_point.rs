//! Runs a new program up to the point where a hook can be loaded into it.

use std::fs::File;
use std::io;
use std::time::Instant;

use super::Child;
use super::static_start::{MOST_CALLS, NewThread};
use super::watch::{self, Event, Process, Status};
use crate::error::mappings;
use crate::held::STEP_DEADLINE;
use crate::syscall_probe::{self, Probe, StopBy};
use crate::{Error, ptrace, regs, resend};
use memhook_process::{
    Auxiliary, Loader, blocked_signals, inner_tid, is_audited, is_filtered, open_memory,
};

/// Point at which the program has been stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartPoint {
    /// Everything is mapped and relocated, libc is initialized, and no constructor has run.
    BeforeConstructors,
    /// At the first instruction of the executable: the constructors of its libraries have run, but its own have not.
    Entry,
    /// The program ended before that point, with this wait status, for example because a library is missing.
    Ended(i32),
}

impl Child {
    /// Runs the program from its execve to the point where the hook can be loaded: before the constructors if
    /// `before_constructors` is set and the loader is glibc's or musl's, otherwise to its entry point. A static program
    /// runs until its thread is set up, or is not run at all.
    ///
    /// glibc's dl_main calls `_dl_debug_state` with RT_CONSISTENT once all relocations are done and `__libc_early_init`
    /// has run. Directly afterwards it returns, and the initializers run (elf/rtld.c). It holds no lock there, so
    /// `dlopen` works. This is not true with LD_AUDIT, whose modules are announced earlier. musl's __dls3 calls the
    /// function when everything is relocated, and leaves all constructors to the program (ldso/dynlink.c).
    pub fn run_to_start(
        &mut self,
        pid: i32,
        before_constructors: bool,
    ) -> Result<StartPoint, Error> {
        self.processes.insert(pid, Process::new(pid));
        let file_error = |cause| memory_error(pid, cause);
        let mem = open_memory(pid).map_err(|error| Error::of_process(pid, error))?;
        let mappings = mappings(pid)?;
        let auxiliary = Auxiliary::of(pid).map_err(|error| Error::of_process(pid, error))?;
        let entry = auxiliary.entry;
        let text = mappings
            .iter()
            .find(|m| m.exec && m.contains(entry))
            .ok_or(Error::NoStartPoint { pid })?;
        let loader = Loader::of(pid, &mappings);
        // If the kernel has mapped no loader for a program, the program is itself a loader, or is static.
        if auxiliary.loader == 0 && loader.is_none() {
            return if before_constructors {
                self.run_to_thread_pointer(pid)
            } else {
                Ok(StartPoint::Entry)
            };
        }
        if before_constructors
            && !is_audited(pid)
            && let Some(loader) = loader
            && let Some(function) = loader.debug_state
            && let Some(probe) =
                Probe::in_empty_function(&mem, function, stop_by(pid)).map_err(file_error)?
        {
            // musl's loader calls the function only once before the program begins.
            let is_reached = || !loader.is_glibc || loader.is_consistent(pid);
            let point = StartPoint::BeforeConstructors;
            return self.run_to(pid, &mem, probe, &is_reached, point);
        }
        let probe = Probe::at_entry(&mem, entry, text)
            .map_err(file_error)?
            .ok_or(Error::NoStartPoint { pid })?;
        self.run_to(pid, &mem, probe, &|| true, StartPoint::Entry)
    }

    /// Runs a static program until its C library has set up the initial thread. No call is made in the program and
    /// nothing is changed, so the program simply continues if we are killed.
    fn run_to_thread_pointer(&mut self, pid: i32) -> Result<StartPoint, Error> {
        let failed = |request| move |cause| Error::ptrace(pid, pid, request, cause);
        let mut resumed_with = Some(0);
        let mut stops = 0;
        loop {
            if let Some(signal) = resumed_with.replace(0) {
                ptrace::resume_to_syscall(pid, signal).map_err(failed("SYSCALL"))?;
            }
            match watch::wait(pid).map_err(failed("WAIT"))?.1 {
                Status::Ended(status) => return Ok(self.ended_at_start(pid, status)),
                Status::Syscall => {
                    stops += 1;
                    let new = NewThread::of(pid).map_err(failed("GETREGSET"))?;
                    if let (Some(new), Some(process)) = (&new, self.processes.get_mut(&pid)) {
                        process.thread_number_at = Some(new.number_at);
                    }
                    // Each system call causes two stops. A program that never makes the call uses an unknown C library.
                    if new.is_some() || stops > 2 * MOST_CALLS {
                        settle(pid)?;
                        return Ok(StartPoint::BeforeConstructors);
                    }
                }
                Status::Signal(signal) => resumed_with = Some(signal),
                Status::Stop(stop) if stop != libc::SIGTRAP => {
                    self.stop_too(pid, stop)?;
                    resumed_with = None;
                }
                _ => {}
            }
        }
    }

    fn ended_at_start(&mut self, pid: i32, status: i32) -> StartPoint {
        if pid == self.pid {
            super::forward::stop_forwarding();
        }
        self.processes.remove(&pid);
        self.known.push_back((pid, Event::Ended(status)));
        StartPoint::Ended(status)
    }

    /// Stops this process after job control has stopped the program. SIGCONT ends that stop with another event stop.
    fn stop_too(&self, pid: i32, stop: i32) -> Result<(), Error> {
        ptrace::listen(pid).map_err(|cause| Error::ptrace(pid, pid, "LISTEN", cause))?;
        if pid == self.pid {
            super::forward::stop_too(stop);
        }
        Ok(())
    }

    /// Runs the program until a thread passes the probe while the condition is true.
    fn run_to(
        &mut self,
        pid: i32,
        mem: &File,
        probe: Probe,
        is_reached: &dyn Fn() -> bool,
        point: StartPoint,
    ) -> Result<StartPoint, Error> {
        let failed = |request| move |cause| Error::ptrace(pid, pid, request, cause);
        let mut resumed_with = Some(0);
        loop {
            if let Some(signal) = resumed_with.replace(0) {
                match probe.stop_by {
                    StopBy::SystemCall => ptrace::resume_to_syscall(pid, signal),
                    StopBy::Signal(_) => ptrace::resume(pid, signal),
                }
                .map_err(failed("CONT"))?;
            }
            let (_, status) = watch::wait(pid).map_err(failed("WAIT"))?;
            let stops_here = match probe.stop_by {
                StopBy::SystemCall => Status::Syscall,
                StopBy::Signal(_) => Status::Signal(syscall_probe::SIGNAL),
            };
            match status {
                Status::Ended(status) => return Ok(self.ended_at_start(pid, status)),
                status if status == stops_here => {
                    let mut now = regs::read(pid).map_err(failed("GETREGSET"))?;
                    if !probe.is_passed_by(&now) {
                        // Another process has sent the signal.
                        if let Status::Signal(signal) = status {
                            resumed_with = Some(signal);
                        }
                        continue;
                    }
                    if !is_reached() {
                        continue;
                    }
                    // The thread leaves the probe before the probe is removed. If we are killed between these steps,
                    // the thread passes through the probe again.
                    now.rip = probe.resume;
                    // The kernel must not repeat the call.
                    now.orig_rax = u64::MAX;
                    regs::write(pid, &now).map_err(failed("SETREGSET"))?;
                    probe
                        .remove(mem)
                        .map_err(|cause| memory_error(pid, cause))?;
                    settle(pid)?;
                    return Ok(point);
                }
                Status::Signal(signal) => resumed_with = Some(signal),
                Status::Stop(stop) if stop != libc::SIGTRAP => {
                    self.stop_too(pid, stop)?;
                    resumed_with = None;
                }
                _ => {}
            }
        }
    }
}

/// Chooses the method by which a probe stops the program. The method is a signal, unless the program blocks the signal,
/// which would then stay pending, or a seccomp filter may refuse the system call.
fn stop_by(pid: i32) -> StopBy {
    let bit = 1 << (syscall_probe::SIGNAL - 1);
    let is_blocked = blocked_signals(pid).is_none_or(|blocked| blocked & bit != 0);
    match inner_tid(pid, pid) {
        Some(own_pid) if !is_blocked && !is_filtered(pid, pid) => StopBy::Signal(own_pid),
        _ => StopBy::SystemCall,
    }
}

fn memory_error(pid: i32, cause: io::Error) -> Error {
    let path = format!("/proc/{pid}/mem");
    Error::File { path, cause }
}

/// Brings a thread from a signal stop into an event stop, from which remote calls start.
fn settle(pid: i32) -> Result<(), Error> {
    let failed = |request| move |cause| Error::ptrace(pid, pid, request, cause);
    ptrace::interrupt(pid).map_err(failed("INTERRUPT"))?;
    let until = Instant::now() + STEP_DEADLINE;
    let mut held_back = Vec::new();
    loop {
        ptrace::resume(pid, 0).map_err(failed("CONT"))?;
        match watch::wait(pid).map_err(failed("WAIT"))?.1 {
            Status::Stop(_) => break,
            Status::Ended(_) => return Err(Error::TargetGone { pid }),
            Status::Signal(signal) => {
                let info = ptrace::signal_info(pid).map_err(failed("GETSIGINFO"))?;
                held_back.push((signal, info));
            }
            _ if Instant::now() > until => return Err(Error::DoesNotStop { pid, tid: pid }),
            _ => {}
        }
    }
    for (signal, info) in held_back {
        resend::send_again(pid, pid, signal, &info);
    }
    Ok(())
}
