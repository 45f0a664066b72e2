//! Checks whether this version's hook is in a process, and holds a thread for calls into the hook.

use crate::error::Error;
use crate::hook::object::{EntryPoints, HookObject, hook_at};
use memhook_inject::{Held, HoldOptions, hold};
use memhook_process::{HookCopy, RemoteAddress};
use std::time::Duration;

/// Hook that an attach calls.
#[derive(Clone, Copy)]
pub struct HookInTarget {
    /// Load bias of the hook (avma).
    pub base: u64,
    entry: EntryPoints,
}

impl HookInTarget {
    /// Describes this object as loaded at an address of the target.
    pub fn new(object: &HookObject, base: u64) -> Result<HookInTarget, Error> {
        Ok(HookInTarget {
            base,
            entry: object.entry_points()?,
        })
    }

    /// Returns the address of the function that takes a region and patches slots.
    pub fn attach(&self) -> RemoteAddress {
        RemoteAddress(self.base) + self.entry.attach
    }

    /// Returns the address of the function that patches the journal's new slots.
    pub fn patch(&self) -> RemoteAddress {
        RemoteAddress(self.base) + self.entry.patch
    }
}

/// Returns options for work that takes no lock of the process, so the thread may be held at any point.
pub fn any_point() -> HoldOptions<'static> {
    HoldOptions::anywhere(Duration::from_secs(2))
}

/// Returns true if our hook is at `base`.
pub fn has_hook(pid: i32, base: u64) -> bool {
    hook_at(pid, base).is_some()
}

/// Holds a thread for calls into the hook at `base`. Fails if the hook is not there: after an execve, another program
/// has the same pid.
pub fn hold_with_hook(pid: i32, base: u64) -> Result<Held, Error> {
    let held = hold(pid, &any_point())?;
    if !has_hook(pid, base) {
        return Err(Error::OtherProgram { pid });
    }
    Ok(held)
}

/// Returns the address of this version's hook. If there are several, returns the one whose gate is open. A hook counts
/// as this version's if the build-id in its first bytes is the same.
pub fn hook_in_use(pid: i32, hooks: &[HookCopy]) -> Option<u64> {
    let ours = || hooks.iter().filter(|hook| has_hook(pid, hook.base));
    let is_open = |hook: &&HookCopy| hook.epoch(pid).is_some_and(|epoch| epoch != 0);
    let hook = ours().find(is_open).or_else(|| ours().next())?;
    Some(hook.base)
}
