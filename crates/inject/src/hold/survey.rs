//! What a hold needs to know about the process, found out before anything is stopped.

use std::fs::{File, OpenOptions};
use std::rc::Rc;

use crate::Error;
use crate::clock::Clock;
use crate::error::mappings;
use crate::gadgets::Gadgets;
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

impl Survey {
    /// Looks at the process; slow (milliseconds).
    pub(crate) fn of(pid: i32) -> Result<Survey, Error> {
        let clock = Clock::start();
        let path = format!("/proc/{pid}/mem");
        let mem = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|source| Error::proc(pid, path, source))?;
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
