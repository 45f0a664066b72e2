//! Running a new program up to the point where a hook can be loaded into it.

use std::fs::{File, OpenOptions};
use std::time::Instant;

use goblin::elf::Elf;

use super::Child;
use super::syscall_probe::Probe;
use super::watch::{self, Event, Process, Status};
use crate::held::STEP_DEADLINE;
use crate::maps::Mapping;
use crate::{Error, maps, memory, ptrace, regs, resend};

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

/// Types of `<elf.h>` in the auxiliary vector.
const AT_BASE: u64 = 7;
const AT_ENTRY: u64 = 9;

/// Offset of `r_state` in `struct r_debug` of `<link.h>`, and its value when the list of modules is
/// whole.
const R_STATE: u64 = 24;
const RT_CONSISTENT: u64 = 0;

/// Where ld.so tells debuggers about modules.
struct LoaderDebug {
    /// `_dl_debug_state`, an empty function.
    function: u64,
    /// `_r_debug`.
    state: u64,
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
        let (entry, loader_base) = auxiliary(pid)?;
        let path = format!("/proc/{pid}/mem");
        let file_error = |source| Error::File {
            path: path.clone(),
            source,
        };
        let mem = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(file_error)?;
        let mappings = maps::read(pid)?;
        let text = mappings
            .iter()
            .find(|m| m.executable && (m.start_avma..m.end_avma).contains(&entry))
            .ok_or(Error::NoStartPoint { pid })?;
        // A loader that is run as a program has no loader.
        let (loader_base, is_loader) = match loader_base {
            0 => (module_start(&mappings, text), true),
            base => (base, false),
        };
        let debug = loader_debug(pid, &mappings, loader_base);
        if is_loader && debug.is_none() {
            return Ok(StartPoint::Entry);
        }
        if before_constructors
            && !has_audit(pid)
            && let Some(debug) = debug
            && let Some(probe) =
                Probe::in_empty_function(&mem, debug.function).map_err(file_error)?
        {
            let is_reached = || {
                let state = memory::read_word(pid, debug.state.wrapping_add(R_STATE));
                state.is_some_and(|word| word & 0xffff_ffff == RT_CONSISTENT)
            };
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
        let failed = |request| move |source| Error::ptrace(pid, pid, request, source);
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
                    probe.remove(mem).map_err(|source| Error::File {
                        path: format!("/proc/{pid}/mem"),
                        source,
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
    let failed = |request| move |source| Error::ptrace(pid, pid, request, source);
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

/// Entry point and load address of the loader (0 if there is none).
fn auxiliary(pid: i32) -> Result<(u64, u64), Error> {
    let path = format!("/proc/{pid}/auxv");
    let bytes = std::fs::read(&path).map_err(|source| Error::File { path, source })?;
    let words = bytes.as_chunks::<8>().0;
    let pairs = words.chunks_exact(2);
    let pairs = pairs.map(|p| (u64::from_le_bytes(p[0]), u64::from_le_bytes(p[1])));
    let value = |kind| pairs.clone().find(|p| p.0 == kind).map_or(0, |p| p.1);
    Ok((value(AT_ENTRY), value(AT_BASE)))
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

/// Where the module begins that `text` belongs to.
fn module_start(mappings: &[Mapping], text: &Mapping) -> u64 {
    let mut parts = mappings
        .iter()
        .filter(|m| m.inode == text.inode && m.name == text.name);
    parts.next().map_or(text.start_avma, |m| m.start_avma)
}

/// No loader is larger, with all of its debug information.
const MOST_LIBRARY_BYTES: u64 = 256 << 20;

fn loader_debug(pid: i32, mappings: &[Mapping], base: u64) -> Option<LoaderDebug> {
    let first = mappings.iter().find(|m| m.start_avma == base)?;
    let at = first.start_avma..first.end_avma;
    let most = MOST_LIBRARY_BYTES;
    let bytes = memhook_foreign::read_mapped(pid, &at, &first.name, first.inode, most).ok()?;
    let elf = Elf::parse(&bytes).ok()?;
    let find = |name: &str| {
        let mut symbols = elf.dynsyms.iter();
        symbols
            .find(|s| s.st_value != 0 && elf.dynstrtab.get_at(s.st_name) == Some(name))
            .map(|s| base.wrapping_add(s.st_value))
    };
    // Only glibc's is known to be safe to call into there.
    find("_dl_catch_exception").or_else(|| find("_rtld_global"))?;
    Some(LoaderDebug {
        function: find("_dl_debug_state")?,
        state: find("_r_debug")?,
    })
}
