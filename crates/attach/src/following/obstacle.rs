//! Obstacles that prevent an attach for the moment, although it may be possible a little later.

use crate::config::TraceConfig;
use crate::error::Error;
use crate::survey::limits::refuse;
use memhook_inject::share_memory;
use memhook_process::{Loader, mappings, parent, tracer};

/// Obstacle to an attach at this moment.
#[derive(Debug)]
pub enum Obstacle {
    /// It is a copy of its parent that we have made and hold.
    OfOurs,
    /// It runs in another one's memory until it executes a program.
    BorrowsMemory,
    /// It cannot be traced, or not yet.
    Error(Error),
}

/// Returns the obstacle to an attach to this process, where these others are traced.
pub fn obstacle(
    pid: i32,
    traced: impl Iterator<Item = i32>,
    config: &TraceConfig,
) -> Option<Obstacle> {
    kinship(pid, traced).or_else(|| unready(pid, config).map(Obstacle::Error))
}

/// The part of it that only the kernel is asked for: whether the process is one that we have made, or runs in another
/// one's memory.
pub fn kinship(pid: i32, traced: impl Iterator<Item = i32>) -> Option<Obstacle> {
    // Patched by us, such a process would change the memory of the one that it shares it with. It
    // may be another one's child (clone(2), CLONE_PARENT). Where a comparison is not permitted, the
    // processes have different owners.
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

/// The part of it for which files of the process are read: whether it can be traced, and its libraries are loaded.
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
