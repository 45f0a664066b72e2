//! Detects the allocator of a process, and lists the requests that it supports.

use super::statistics::AllocatorStatistics;
use super::{mallctl, tcmalloc};
use crate::Error;
use crate::reclaim::{HoldAtSafePoint, exported};
use memhook_inject::Held;
use memhook_process::{ModuleImage, RemoteAddress, memory_use};
use std::time::{Duration, Instant};

/// Addresses of an allocator's functions (addresses before relocation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Functions {
    /// mallctl(3).
    Jemalloc { control: u64 },
    /// gperftools/malloc_extension_c.h.
    Tcmalloc { number: u64, release: u64 },
    /// See mimalloc.h. The statistics functions of mimalloc take more arguments than a remote call supports, and do not
    /// report live memory.
    Mimalloc { collect: u64 },
}

/// An allocator that the process has loaded as a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownAllocator {
    /// The allocator's name.
    pub name: &'static str,
    pid: i32,
    functions: Functions,
}

/// Result of asking an allocator to return memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReleasedMemory {
    /// Resident bytes directly before the call and directly after it.
    pub rss: (u64, u64),
    /// Time for which the thread was held for the call.
    pub held: Duration,
    /// Duration of the call.
    pub call: Duration,
}

impl KnownAllocator {
    /// Returns the allocator of a process with these modules. Returns `None` if no allocator is known, or if there are
    /// several, because the owner of the heap is then unknown. An allocator that is linked into the program counts as
    /// unknown, because threads inside its code could not be recognized.
    pub fn of(pid: i32, images: &[ModuleImage]) -> Option<KnownAllocator> {
        let exports = |image: &ModuleImage, name: &str| image.facts.exported(name).is_some();
        let is_library = |image: &&ModuleImage| {
            !image.is_main && !image.is_libc && !image.is_loader && exports(image, "malloc")
        };
        let mut libraries = images.iter().filter(is_library);
        let image = libraries.next()?;
        if libraries.next().is_some() {
            return None;
        }
        let name = memhook_abi::known_allocator(|name| exports(image, name))?;
        let function = |name: &str| exported(image, name);
        let functions = match name {
            "jemalloc" => Functions::Jemalloc {
                control: function("mallctl")?,
            },
            "tcmalloc" => Functions::Tcmalloc {
                number: function("MallocExtension_GetNumericProperty")?,
                release: function("MallocExtension_ReleaseFreeMemory")?,
            },
            "mimalloc" => Functions::Mimalloc {
                collect: function("mi_collect")?,
            },
            _ => return None,
        };
        Some(KnownAllocator {
            name,
            pid,
            functions,
        })
    }

    /// Returns true if the allocator can report statistics.
    pub fn has_statistics(&self) -> bool {
        !matches!(self.functions, Functions::Mimalloc { .. })
    }

    /// Returns the name of the function that makes the allocator return free memory to the system.
    pub fn release_name(&self) -> &'static str {
        match self.functions {
            Functions::Jemalloc { .. } => "mallctl(\"arena.4096.purge\")",
            Functions::Tcmalloc { .. } => "MallocExtension_ReleaseFreeMemory()",
            Functions::Mimalloc { .. } => "mi_collect() in one thread",
        }
    }

    /// Makes a thread ask the allocator for its statistics.
    ///
    /// # Errors
    /// Fails if no thread can be held, if the allocator does not answer, or if it has no statistics.
    pub fn ask(
        &self,
        hold: &mut HoldAtSafePoint,
        patience: Duration,
    ) -> Result<AllocatorStatistics, Error> {
        if !self.has_statistics() {
            return Err(self.refused("offers no statistics"));
        }
        let (mut found, held) =
            self.with_thread(hold, patience, |remote| match self.functions {
                Functions::Jemalloc { control } => mallctl::statistics(remote, control),
                Functions::Tcmalloc { number, .. } => tcmalloc::statistics(remote, number),
                Functions::Mimalloc { .. } => Err(self.refused("has no statistics")),
            })?;
        found.held = held;
        Ok(found)
    }

    /// Makes a thread ask the allocator to return free memory to the system.
    ///
    /// # Errors
    /// Fails like [`KnownAllocator::ask`].
    pub fn release(
        &self,
        hold: &mut HoldAtSafePoint,
        patience: Duration,
    ) -> Result<ReleasedMemory, Error> {
        let before = memory_use(self.pid)?.rss;
        let (call, held) = self.with_thread(hold, patience, |remote| {
            let begin = Instant::now();
            match self.functions {
                Functions::Jemalloc { control } => mallctl::purge(remote, control)?,
                Functions::Tcmalloc { release, .. } => {
                    remote.call(release, &mut [], |_| vec![]).map(drop)?
                }
                // The argument forces the collection. Segments without an owner are collected only if it is forced.
                Functions::Mimalloc { collect } => {
                    remote.call(collect, &mut [], |_| vec![1]).map(drop)?
                }
            }
            Ok(begin.elapsed())
        })?;
        Ok(ReleasedMemory {
            rss: (before, memory_use(self.pid)?.rss),
            held,
            call,
        })
    }

    /// Makes the calls in a held thread. Also returns the time for which the thread was held.
    fn with_thread<T>(
        &self,
        hold: &mut HoldAtSafePoint,
        patience: Duration,
        work: impl FnOnce(&mut Remote) -> Result<T, Error>,
    ) -> Result<(T, Duration), Error> {
        let mut held = hold()?;
        let done = work(&mut Remote {
            held: &mut held,
            allocator: self,
            patience,
        });
        let released = held.release();
        Ok((done?, released?))
    }

    fn refused(&self, what: &str) -> Error {
        Error::NoHeap {
            pid: self.pid,
            reason: format!("{} {what}", self.name),
        }
    }
}

/// Calls allocator functions on a held thread.
pub(super) struct Remote<'a> {
    held: &'a mut Held,
    allocator: &'a KnownAllocator,
    patience: Duration,
}

impl Remote<'_> {
    /// Calls a function. The function may read and write `data`, whose address is passed in `args`.
    pub fn call(
        &mut self,
        function: u64,
        data: &mut [u8],
        args: impl FnOnce(u64) -> Vec<u64>,
    ) -> Result<u64, Error> {
        let args = |at: RemoteAddress| args(at.0);
        let function = RemoteAddress(function);
        Ok(self
            .held
            .call_to_its_end(function, data, self.patience, args)?)
    }

    /// Returns the error for a call without an answer.
    pub fn refused(&self, what: &str) -> Error {
        self.allocator.refused(what)
    }
}
