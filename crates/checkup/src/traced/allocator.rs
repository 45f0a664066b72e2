//! Calls of allocators other than glibc's, for their statistics and to return memory.

use memhook_attach::{Claim, Reach, SafePoints, claim};
use memhook_heap::{AllocatorStatistics, KnownAllocator, ReleasedMemory, foreign_callback};
use memhook_process::{
    ModuleFiles, ModuleImage, filter_may_kill, first_failure, mappings, modules, preflight,
};
use std::time::Duration;

/// Time limit for finding a thread at a safe point.
const SAFE_POINT_LIMIT: Duration = Duration::from_secs(2);
/// Time limit of a call, after which the thread is left to finish it alone.
const PATIENCE: Duration = Duration::from_secs(5);

/// Reason why an allocator was not called.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The call could do harm.
    #[error("{0}")]
    Refused(String),
    /// The process cannot be claimed, or has no safe point.
    #[error(transparent)]
    Attach(#[from] memhook_attach::Error),
    /// The process cannot be read.
    #[error(transparent)]
    Process(#[from] memhook_process::Error),
    /// The call failed.
    #[error(transparent)]
    Heap(#[from] memhook_heap::Error),
}

/// An allocator of a process that may be called.
pub struct Callable {
    /// The allocator.
    pub allocator: KnownAllocator,
    pid: i32,
    safe_points: SafePoints,
    _claim: Claim,
}

/// Returns the allocator of a process, if it is not glibc's and memhook-rs can call it.
pub fn callable_allocator(
    pid: i32,
) -> Result<Option<(KnownAllocator, Vec<ModuleImage>)>, CallError> {
    let images = modules(pid, &mappings(pid)?, &mut ModuleFiles::new())?;
    let allocator = KnownAllocator::of(pid, &images);
    Ok(allocator.map(|allocator| (allocator, images)))
}

impl Callable {
    /// Checks that a call cannot do harm.
    pub fn new(
        pid: i32,
        allocator: KnownAllocator,
        images: Vec<ModuleImage>,
    ) -> Result<Callable, CallError> {
        if let Some(why) = first_failure(&preflight(pid)) {
            return Err(CallError::Refused(why.to_string()));
        }
        if filter_may_kill(pid) {
            return Err(CallError::Refused(format!(
                "a seccomp filter may kill process {pid} for a system call that {} makes",
                allocator.name
            )));
        }
        if let Some(why) = foreign_callback(pid, &images, Some(allocator.name)) {
            return Err(CallError::Refused(format!(
                "{} could call the program's own code, which could wait for a lock: {why}",
                allocator.name
            )));
        }
        Ok(Callable {
            allocator,
            pid,
            _claim: claim(pid)?,
            safe_points: SafePoints::of_process(pid, images)?,
        })
    }

    /// Asks the allocator for its statistics.
    pub fn ask(&self) -> Result<AllocatorStatistics, CallError> {
        let mut hold = || {
            self.safe_points
                .hold(&mut Reach::Running, self.pid, SAFE_POINT_LIMIT)
        };
        Ok(self.allocator.ask(&mut hold, PATIENCE)?)
    }

    /// Makes the allocator return memory.
    pub fn release(&self) -> Result<ReleasedMemory, CallError> {
        let mut hold = || {
            self.safe_points
                .hold(&mut Reach::Running, self.pid, SAFE_POINT_LIMIT)
        };
        Ok(self.allocator.release(&mut hold, PATIENCE)?)
    }
}

/// Returns the statistics of an allocator other than glibc's, if it can report any.
pub fn said_by_allocator(pid: i32) -> Result<Option<AllocatorStatistics>, CallError> {
    let found = callable_allocator(pid)?;
    let Some((allocator, images)) = found.filter(|(found, _)| found.has_statistics()) else {
        return Ok(None);
    };
    Ok(Some(Callable::new(pid, allocator, images)?.ask()?))
}
