//! What a hold needs to know about the process, found out before anything is stopped.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::time::Instant;

use crate::Error;
use crate::error::mappings;
use memhook_process::{CLibrary, Mapping, caught_signals};

/// Facts about the target, from before the stop.
pub(crate) struct Survey {
    pub mappings: Vec<Mapping>,
    /// /proc/PID/mem: bound to the address space at open, so a write after execve hits nothing.
    pub mem: Rc<File>,
    pub functions: LibcFunctions,
    pub gadgets: Option<Gadgets>,
    /// A signal that does nothing in this process: ignored by default, and no handler installed.
    pub bell: Option<i32>,
    pub clock: Clock,
}

/// Functions of the target's C library that remote calls need; none for a target without one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LibcFunctions {
    /// `__errno_location`: without arguments, returns the address of the calling thread's `errno` (LSB; glibc and
    /// musl), so that remote calls leave it as it was.
    pub errno_location: Option<u64>,
    /// `dlerror`.
    pub dlerror: Option<u64>,
}

impl LibcFunctions {
    fn of(libc: &CLibrary) -> LibcFunctions {
        LibcFunctions {
            errno_location: libc.function("__errno_location"),
            dlerror: libc.function("dlerror"),
        }
    }
}

/// Code that the target has already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gadgets {
    /// `syscall; ret`
    pub syscall: u64,
    /// `mov $15, %rax; syscall`: libc's signal restorer, which makes rt_sigreturn.
    pub restorer: u64,
}

const SYSCALL_RET: [u8; 3] = [0x0f, 0x05, 0xc3];
const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// The shorter encoding, `mov $15, %eax; syscall`.
const RESTORER_SHORT: [u8; 7] = [0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05];

/// Bytes of text searched at a time.
const SEARCH_BYTES: usize = 1 << 20;

impl Survey {
    /// Looks at the process; slow (milliseconds).
    pub(crate) fn of(pid: i32) -> Result<Survey, Error> {
        let clock = Clock::start();
        let path = format!("/proc/{pid}/mem");
        let mem = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|cause| Error::proc(pid, path, cause))?;
        let mappings = mappings(pid)?;
        let libc = CLibrary::of(pid, &mappings);
        Ok(Survey {
            functions: libc
                .as_ref()
                .map_or_else(LibcFunctions::default, LibcFunctions::of),
            gadgets: Gadgets::find(&mem, &mappings, libc.as_ref()),
            bell: find_bell(pid),
            mappings,
            mem: Rc::new(mem),
            clock,
        })
    }

    /// Refreshes what changes while threads come and go.
    pub(crate) fn refresh(&mut self, pid: i32) -> Result<(), Error> {
        self.mappings = mappings(pid)?;
        Ok(())
    }
}

fn find_bell(pid: i32) -> Option<i32> {
    let caught = caught_signals(pid)?;
    [libc::SIGURG, libc::SIGWINCH, libc::SIGCHLD]
        .into_iter()
        .find(|signal| caught & (1 << (signal - 1)) == 0)
}

impl Gadgets {
    /// Searches libc first, then the vdso, then everything executable.
    fn find(mem: &File, mappings: &[Mapping], libc: Option<&CLibrary>) -> Option<Gadgets> {
        let mut code: Vec<&Mapping> = mappings
            .iter()
            // `[vsyscall]` is not real code.
            .filter(|mapping| mapping.exec && mapping.path != "[vsyscall]")
            .collect();
        code.sort_by_key(|mapping| match mapping.path.as_str() {
            _ if libc.is_some_and(|libc| libc.code.start == mapping.start) => 0,
            "[vdso]" => 1,
            _ => 2,
        });
        let mut syscall = None;
        let mut restorer = None;
        for mapping in code {
            for_each_chunk(mem, mapping, |at, bytes| {
                let find = |pattern| find(bytes, pattern);
                let address = |offset| at + offset as u64;
                syscall = syscall.or_else(|| find(&SYSCALL_RET[..]).map(address));
                restorer = restorer.or_else(|| {
                    find(&RESTORER[..])
                        .or_else(|| find(&RESTORER_SHORT[..]))
                        .map(address)
                });
                syscall.is_none() || restorer.is_none()
            });
            if let (Some(syscall), Some(restorer)) = (syscall, restorer) {
                return Some(Gadgets { syscall, restorer });
            }
        }
        None
    }

    /// Whether the code is still there.
    pub(crate) fn are_intact(&self, mem: &File) -> bool {
        let mut syscall = [0; SYSCALL_RET.len()];
        let mut restorer = [0; RESTORER.len()];
        mem.read_exact_at(&mut syscall, self.syscall).is_ok()
            && mem.read_exact_at(&mut restorer, self.restorer).is_ok()
            && syscall == SYSCALL_RET
            && (restorer == RESTORER || restorer.starts_with(&RESTORER_SHORT))
    }
}

/// Offset of the first `pattern` in `bytes`.
fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    let (haystack, needle) = (bytes.as_ptr().cast(), pattern.as_ptr().cast());
    // SAFETY: both pairs of pointer and length describe slices, which are only read.
    let place = unsafe { libc::memmem(haystack, bytes.len(), needle, pattern.len()) };
    (!place.is_null()).then(|| place.addr() - haystack.addr())
}

/// Reads a mapping piece by piece, overlapping so that no pattern is cut, until `more` is false.
fn for_each_chunk(mem: &File, mapping: &Mapping, mut more: impl FnMut(u64, &[u8]) -> bool) {
    let mut at = mapping.start;
    while at < mapping.end {
        let left = (mapping.end - at) as usize;
        let mut bytes = vec![0u8; SEARCH_BYTES.min(left)];
        if mem.read_exact_at(&mut bytes, at).is_err() || !more(at, &bytes) {
            return;
        }
        if bytes.len() == left {
            return;
        }
        at += (bytes.len() - RESTORER.len()) as u64;
    }
}

/// Measures how fast the time-stamp counter runs. All CPUs of one machine count alike where the
/// counter is constant, which every x86-64 CPU of the last 15 years says.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    began: Instant,
    count: u64,
}

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock {
            began: Instant::now(),
            count: count(),
        }
    }

    /// Counts per millisecond.
    pub(crate) fn rate(&self) -> u64 {
        // Any error of reading both clocks is small against this.
        while self.began.elapsed().as_micros() < 200 {
            std::hint::spin_loop();
        }
        let counted = count().saturating_sub(self.count);
        counted * 1000 / self.began.elapsed().as_micros() as u64
    }
}

/// The time-stamp counter.
pub(crate) fn count() -> u64 {
    // SAFETY: rdtsc reads a counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_what_is_needed() {
        let survey = Survey::of(std::process::id() as i32).unwrap();
        let gadgets = survey.gadgets.unwrap();
        assert!(gadgets.are_intact(&survey.mem));
        let rate = survey.clock.rate();
        assert!((500_000..10_000_000).contains(&rate), "{rate} per ms");
    }
}
