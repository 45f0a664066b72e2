//! Facts about the process that a hold needs, collected before anything is stopped.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use crate::Error;
use crate::clock::Clock;
use crate::error::mappings;
use crate::gadgets::Gadgets;
use crate::timing::Timing;
use memhook_process::{
    CLibrary, CLibraryKind, Mapping, RemoteAddress, caught_signals, open_memory,
};

/// Process as found before the stop.
pub(crate) struct Survey {
    pub mappings: Vec<Mapping>,
    pub target: Rc<TargetFacts>,
    pub timing: Timing,
}

/// Facts that stay the same while threads of the target come and go.
pub(crate) struct TargetFacts {
    /// Memory of the target, bound to the address space at the time of the survey. A write after an execve therefore
    /// has no effect on the new program.
    pub memory: File,
    pub functions: LibcFunctions,
    pub gadgets: Option<Gadgets>,
    /// Signal with which our code in the target reports completion. It has no effect in this process: it is ignored by
    /// default, and no handler is installed.
    pub bell: Option<i32>,
    pub clock: Clock,
}

/// Signal that glibc uses to make every thread change its credentials (SIGSETXID, nptl/internaltypes.h).
const GLIBC_SIGSETXID: i32 = 33;

/// Functions of the target's C library that remote calls need; empty for a target without a C library.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LibcFunctions {
    /// `__errno_location`, which takes no arguments and returns the address of the calling thread's `errno` (LSB; glibc
    /// and musl). Remote calls preserve `errno`.
    pub errno_location: Option<RemoteAddress>,
    pub dlerror: Option<RemoteAddress>,
    /// `dladdr` and `dl_iterate_phdr`, each of which takes and releases one lock of the loader.
    pub dladdr: Option<RemoteAddress>,
    pub iterate: Option<RemoteAddress>,
    /// Signal that a thread must handle even during a call, because other threads wait for the handler with locks held;
    /// see [`crate::held::Held::remote_mask`].
    pub answered: Option<i32>,
}

impl LibcFunctions {
    fn of(libc: &CLibrary) -> LibcFunctions {
        LibcFunctions {
            errno_location: libc.function("__errno_location"),
            dlerror: libc.function("dlerror"),
            dladdr: libc.function("dladdr"),
            iterate: libc.function("dl_iterate_phdr"),
            answered: (libc.kind == CLibraryKind::Glibc).then_some(GLIBC_SIGSETXID),
        }
    }
}

impl TargetFacts {
    pub(crate) fn read(&self, address: RemoteAddress, into: &mut [u8]) -> io::Result<()> {
        self.memory.read_exact_at(into, address.0)
    }
}

impl Survey {
    /// Surveys the process, which takes milliseconds.
    pub(crate) fn of(pid: i32, timing: Timing) -> Result<Survey, Error> {
        let clock = Clock::start();
        let memory = open_memory(pid).map_err(|error| Error::of_process(pid, error))?;
        let mappings = mappings(pid)?;
        let libc = CLibrary::of(pid, &mappings);
        let target = TargetFacts {
            functions: libc.as_ref().map(LibcFunctions::of).unwrap_or_default(),
            gadgets: Gadgets::find(&memory, &mappings, libc.as_ref()),
            bell: find_bell(pid),
            memory,
            clock,
        };
        Ok(Survey {
            mappings,
            target: Rc::new(target),
            timing,
        })
    }

    /// Updates the facts that change while threads come and go.
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
        let survey = Survey::of(std::process::id() as i32, Timing::USUAL).unwrap();
        let gadgets = survey.target.gadgets.unwrap();
        assert!(gadgets.are_intact(&survey.target.memory));
        let rate = survey.target.clock.rate();
        assert!((500_000..10_000_000).contains(&rate), "{rate} per ms");
    }
}
