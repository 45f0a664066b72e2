//! Obstacles to an attach that may soon disappear.

use crate::config::TraceConfig;
use crate::error::Error;
use crate::survey::limits::refuse;
use memhook_inject::share_memory;
use memhook_process::{Loader, mappings, parent, tracer};

/// Obstacle to an attach at this moment.
#[derive(Debug)]
pub enum Obstacle {
    /// The process is a copy of its parent, created and held by us.
    OfOurs,
    /// The process shares another process's memory until it calls exec (vfork).
    BorrowsMemory,
    /// The process cannot be traced, or not yet.
    Error(Error),
}

/// Returns the obstacle to an attach to this process, given the other traced processes.
pub fn obstacle(
    pid: i32,
    traced: impl Iterator<Item = i32>,
    config: &TraceConfig,
) -> Option<Obstacle> {
    kinship(pid, traced).or_else(|| unready(pid, config).map(Obstacle::Error))
}

/// Returns the obstacles that can be detected by system calls alone: we created the process, or it uses another
/// process's memory.
pub fn kinship(pid: i32, traced: impl Iterator<Item = i32>) -> Option<Obstacle> {
    // Patching such a process would also change the process that it shares memory with, which need not be its parent
    // (clone(2), CLONE_PARENT). If the comparison is not permitted, the processes have different owners.
    let own = std::process::id() as i32;
    let mut others = traced.chain([own]).chain(parent(pid));
    if tracer(pid, pid) == own {
        return Some(Obstacle::OfOurs);
    }
    if others.any(|other| other != pid && share_memory(pid, other).unwrap_or(false)) {
        return Some(Obstacle::BorrowsMemory);
    }
    None
}

/// Returns the obstacles that are detected by reading files of the process: it cannot be traced, or its libraries are
/// not loaded yet.
pub fn unready(pid: i32, config: &TraceConfig) -> Option<Error> {
    if let Err(why) = refuse(pid, config) {
        return Some(why);
    }
    (!is_loaded(pid)).then_some(Error::StillLoaded { pid })
}

/// Returns true if the loader of a program that was just started has loaded and relocated its libraries.
fn is_loaded(pid: i32) -> bool {
    let Ok(maps) = mappings(pid) else {
        return false;
    };
    let loader = Loader::of(pid, &maps);
    loader.is_none_or(|loader| loader.has_begun(pid) && loader.is_consistent(pid))
}
