//! Running a new program up to the point where a hook can be loaded into it.

use std::fs::{File, OpenOptions};
use std::time::Instant;

use super::Child;
use super::watch::{self, Event, Process, Status};
use crate::error::mappings;
use crate::held::STEP_DEADLINE;
use crate::syscall_probe::Probe;
use crate::{Error, ptrace, regs, resend};
use memhook_process::{Auxiliary, Loader};

/// Where the program has been stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartPoint {
    /// Everything is mapped and relocated, libc is initialized, and no constructor has run.
    BeforeConstructors,
    /// The first instruction of the executable: constructors of its libraries have run, its own have
    /// not.
    Entry,
    /// The program ended before (a library is missing), with this wait status.
    Ended(i32),
}

impl Child {
    /// Runs the program from its execve to where the hook can be loaded: before the constructors if
    /// `before_constructors` and the loader is glibc's, else to its entry point. A static program, which no
    /// hook can be loaded into, is left where it stands.
    ///
    /// glibc's dl_main calls `_dl_debug_state` with RT_CONSISTENT once all relocations are done and
    /// `__libc_early_init` has run, right before it returns to run the initializers (elf/rtld.c). It
    /// holds no lock there, so `dlopen` works. Not with LD_AUDIT, whose modules are announced earlier.
    pub fn run_to_start(
        &mut self,
        pid: i32,
        before_constructors: bool,
    ) -> Result<StartPoint, Error> {
        self.processes.insert(pid, Process::new(pid));
        let path = format!("/proc/{pid}/mem");
        let file_error = |cause| Error::File {
            path: path.clone(),
            cause,
        };
        let mem = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(file_error)?;
        let mappings = mappings(pid)?;
        let auxiliary = Auxiliary::of(pid).map_err(|error| Error::of_process(pid, error))?;
        let entry = auxiliary.entry;
        let text = mappings
            .iter()
            .find(|m| m.exec && m.contains(entry))
            .ok_or(Error::NoStartPoint { pid })?;
        // Only glibc's loader is known to be safe to call into there.
        let loader = Loader::of(pid, &mappings).filter(|loader| loader.is_glibc);
        // A program that the kernel loaded no loader for is one, or is static.
        if auxiliary.loader == 0 && loader.is_none() {
            return Ok(StartPoint::Entry);
        }
        if before_constructors
            && !has_audit(pid)
            && let Some(loader) = loader
            && let Some(function) = loader.debug_state
            && let Some(probe) = Probe::in_empty_function(&mem, function).map_err(file_error)?
        {
            let is_reached = || loader.is_consistent(pid);
            let point = StartPoint::BeforeConstructors;
            return self.run_to(pid, &mem, probe, &is_reached, point);
        }
        let probe = Probe::at_entry(&mem, entry, text).map_err(file_error)?;
        let probe = probe.ok_or(Error::NoStartPoint { pid })?;
        self.run_to(pid, &mem, probe, &|| true, StartPoint::Entry)
    }

    /// Runs until the probe is passed with the condition holding.
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
                ptrace::resume_to_syscall(pid, signal).map_err(failed("SYSCALL"))?;
            }
            let (_, status) = watch::wait(pid).map_err(failed("WAIT"))?;
            match status {
                Status::Ended(status) => {
                    if pid == self.pid {
                        super::forward::stop_forwarding();
                    }
                    self.processes.remove(&pid);
                    self.known.push_back((pid, Event::Ended(status)));
                    return Ok(StartPoint::Ended(status));
                }
                Status::Syscall => {
                    let mut now = regs::read(pid).map_err(failed("GETREGSET"))?;
                    if !probe.is_passed_by(&now) || !is_reached() {
                        continue;
                    }
                    // First out of the probe: killed in between, the program goes through it again.
                    now.rip = probe.resume;
                    // Not a call any more that could be made again.
                    now.orig_rax = u64::MAX;
                    regs::write(pid, &now).map_err(failed("SETREGSET"))?;
                    probe.remove(mem).map_err(|cause| Error::File {
                        path: format!("/proc/{pid}/mem"),
                        cause,
                    })?;
                    settle(pid)?;
                    return Ok(point);
                }
                Status::Signal(signal) => resumed_with = Some(signal),
                // Stopped by job control; SIGCONT ends that with another event stop.
                Status::Stop(stop) if stop != libc::SIGTRAP => {
                    ptrace::listen(pid).map_err(failed("LISTEN"))?;
                    if pid == self.pid {
                        super::forward::stop_too(stop);
                    }
                    resumed_with = None;
                }
                _ => {}
            }
        }
    }
}

/// From a signal stop into an event stop, which remote calls start from.
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

fn has_audit(pid: i32) -> bool {
    /// The kernel takes no longer one (execve(2), "Limits on size of arguments and environment").
    const MOST_BYTES: u64 = 8 << 20;
    let path = format!("/proc/{pid}/environ");
    let environment = memhook_foreign::read_start(path, MOST_BYTES).unwrap_or_default();
    environment
        .split(|&byte| byte == 0)
        .any(|variable| variable.starts_with(b"LD_AUDIT="))
}
