//! Running a new program up to the point where a hook can be loaded into it.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use goblin::elf::Elf;

use super::Child;
use super::watch::{self, Status};
use crate::held::STEP_DEADLINE;
use crate::{Error, maps, memory, ptrace, regs};

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

/// `int3`.
const BREAKPOINT: u8 = 0xcc;

/// Offset of `r_state` in `struct r_debug` of `<link.h>`, and its value when the list of modules is
/// whole.
const R_STATE: u64 = 24;
const RT_CONSISTENT: u64 = 0;

struct Breakpoint {
    address: u64,
    original: u8,
}

/// Where ld.so tells debuggers about modules.
struct LoaderDebug {
    /// `_dl_debug_state`, an empty function.
    function: u64,
    /// `_r_debug`.
    state: u64,
}

impl Child {
    /// Runs the program from its execve to where the hook can be loaded: before the constructors if
    /// `before_constructors` and the loader is glibc's, else to its entry point.
    ///
    /// glibc's dl_main calls `_dl_debug_state` with RT_CONSISTENT once all relocations are done and
    /// `__libc_early_init` has run, right before it returns to run the initializers (elf/rtld.c). It
    /// holds no lock there, so `dlopen` works. Not with LD_AUDIT, whose modules are announced earlier.
    pub fn run_to_start(&mut self, before_constructors: bool) -> Result<StartPoint, Error> {
        let pid = self.pid;
        self.survey = None;
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
        let debug = match before_constructors && !has_audit(pid) {
            true => loader_debug(pid, loader_base),
            false => None,
        };
        let mut breakpoints = Vec::new();
        for address in debug.iter().map(|d| d.function).chain([entry]) {
            let mut original = [0];
            mem.read_exact_at(&mut original, address)
                .and_then(|()| mem.write_all_at(&[BREAKPOINT], address))
                .map_err(file_error)?;
            breakpoints.push(Breakpoint {
                address,
                original: original[0],
            });
        }
        let point = self.run_to(&breakpoints, debug.as_ref(), entry)?;
        if matches!(point, StartPoint::Ended(_)) {
            return Ok(point);
        }
        for b in &breakpoints {
            mem.write_all_at(&[b.original], b.address)
                .map_err(file_error)?;
        }
        self.settle()?;
        Ok(point)
    }

    fn run_to(
        &mut self,
        breakpoints: &[Breakpoint],
        debug: Option<&LoaderDebug>,
        entry: u64,
    ) -> Result<StartPoint, Error> {
        let pid = self.pid;
        let failed = |request| move |source| Error::ptrace(pid, pid, request, source);
        let mut signal = 0;
        loop {
            ptrace::resume(pid, signal).map_err(failed("CONT"))?;
            signal = 0;
            let (_, status) = watch::wait(pid).map_err(failed("WAIT"))?;
            match status {
                Status::Ended(status) => {
                    super::forward::stop_forwarding();
                    self.ended = Some(status);
                    return Ok(StartPoint::Ended(status));
                }
                Status::Signal(libc::SIGTRAP) => {
                    let mut now = regs::read(pid).map_err(failed("GETREGSET"))?;
                    let at = now.rip.wrapping_sub(1);
                    if !breakpoints.iter().any(|b| b.address == at) {
                        signal = libc::SIGTRAP;
                        continue;
                    }
                    let state = debug.filter(|d| d.function == at).map(|d| {
                        let word = memory::read_word(pid, d.state.wrapping_add(R_STATE));
                        word.unwrap_or(0) & 0xffff_ffff
                    });
                    now.rip = at;
                    if state.is_some_and(|state| state != RT_CONSISTENT) {
                        // The function is empty: back to its caller at once.
                        now.rip = memory::read_word(pid, now.rsp).unwrap_or(at);
                        now.rsp += 8;
                    }
                    regs::write(pid, &now).map_err(failed("SETREGSET"))?;
                    match state {
                        None if at == entry => return Ok(StartPoint::Entry),
                        Some(RT_CONSISTENT) => return Ok(StartPoint::BeforeConstructors),
                        _ => {}
                    }
                }
                Status::Signal(other) => signal = other,
                _ => {}
            }
        }
    }

    /// From a signal stop into an event stop, which remote calls start from.
    fn settle(&mut self) -> Result<(), Error> {
        let pid = self.pid;
        let failed = |request| move |source| Error::ptrace(pid, pid, request, source);
        ptrace::interrupt(pid).map_err(failed("INTERRUPT"))?;
        let until = Instant::now() + STEP_DEADLINE;
        let mut held_back = Vec::new();
        loop {
            ptrace::resume(pid, 0).map_err(failed("CONT"))?;
            match watch::wait(pid).map_err(failed("WAIT"))?.1 {
                Status::Stop(_) => break,
                Status::Ended(_) => return Err(Error::TargetGone { pid }),
                Status::Signal(signal) => held_back.push(signal),
                _ if Instant::now() > until => return Err(Error::DoesNotStop { pid, tid: pid }),
                _ => {}
            }
        }
        for signal in held_back {
            // SAFETY: plain integers; the process is ours and stopped.
            unsafe { libc::kill(pid, signal) };
        }
        Ok(())
    }
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
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment
        .split(|&byte| byte == 0)
        .any(|variable| variable.starts_with(b"LD_AUDIT="))
}

fn loader_debug(pid: i32, base: u64) -> Option<LoaderDebug> {
    let mappings = maps::read(pid).ok()?;
    let first = mappings.iter().find(|m| m.start_avma == base)?;
    let (start, end) = (first.start_avma, first.end_avma);
    let bytes = std::fs::read(format!("/proc/{pid}/map_files/{start:x}-{end:x}"))
        .or_else(|_| std::fs::read(format!("/proc/{pid}/root{}", first.name)))
        .ok()?;
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
