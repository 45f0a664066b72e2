//! Allocators other than glibc's: their own figures, and what they give back.

use anyhow::bail;
use memhook_attach::{Claim, Reach, SafePoints, claim};
use memhook_heap::{AllocatorStatistics, KnownAllocator, ReleasedMemory};
use memhook_process::{
    ModuleFiles, ModuleImage, filter_may_kill, first_failure, mappings, modules, preflight,
};
use std::time::Duration;

/// How long to wait for a thread at a safe point.
const SAFE_POINT_LIMIT: Duration = Duration::from_secs(2);
/// How long a call may take before the thread is left alone with it.
const PATIENCE: Duration = Duration::from_secs(5);

/// An allocator of a process that may be called.
pub struct Callable {
    pub allocator: KnownAllocator,
    pid: i32,
    safe_points: SafePoints,
    _claim: Claim,
}

/// The allocator of a process that is not glibc's, if it is one that memhook-rs can call.
pub fn find(pid: i32) -> anyhow::Result<Option<(KnownAllocator, Vec<ModuleImage>)>> {
    let images = modules(pid, &mappings(pid)?, &mut ModuleFiles::new())?;
    let allocator = KnownAllocator::of(pid, &images);
    Ok(allocator.map(|allocator| (allocator, images)))
}

impl Callable {
    /// Refuses where a call could do harm.
    pub fn new(
        pid: i32,
        allocator: KnownAllocator,
        images: Vec<ModuleImage>,
    ) -> anyhow::Result<Callable> {
        if let Some(why) = first_failure(&preflight(pid)) {
            bail!("{why}");
        }
        if filter_may_kill(pid) {
            bail!(
                "a seccomp filter may end process {pid} for what {} needs",
                allocator.name
            );
        }
        Ok(Callable {
            allocator,
            pid,
            _claim: claim(pid)?,
            safe_points: SafePoints::of_process(pid, images)?,
        })
    }

    /// What it says of itself.
    pub fn ask(&self) -> anyhow::Result<AllocatorStatistics> {
        let mut hold = || {
            self.safe_points
                .hold(&mut Reach::Running, self.pid, SAFE_POINT_LIMIT)
        };
        Ok(self.allocator.ask(&mut hold, PATIENCE)?)
    }

    /// Has the allocator give memory back.
    pub fn release(&self) -> anyhow::Result<ReleasedMemory> {
        let mut hold = || {
            self.safe_points
                .hold(&mut Reach::Running, self.pid, SAFE_POINT_LIMIT)
        };
        Ok(self.allocator.release(&mut hold, PATIENCE)?)
    }
}
