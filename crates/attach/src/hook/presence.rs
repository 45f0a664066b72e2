//! Presence of this version's hook in a process, and the hold of a thread that calls into it.

use crate::error::Error;
use crate::hook::object::{EntryPoints, HookObject, hook_at};
use memhook_inject::{Held, HoldOptions, hold};
use memhook_process::{HookCopy, RemoteAddress};
use std::time::Duration;

/// The hook that an attach calls into.
#[derive(Clone, Copy)]
pub struct HookInTarget {
    /// Where it is (avma).
    pub base: u64,
    entry: EntryPoints,
}

impl HookInTarget {
    /// This build of it, at an address of the target.
    pub fn new(object: &HookObject, base: u64) -> Result<HookInTarget, Error> {
        Ok(HookInTarget {
            base,
            entry: object.entry_points()?,
        })
    }

    /// Its function that takes a region, and patches.
    pub fn attach(&self) -> RemoteAddress {
        RemoteAddress(self.base) + self.entry.attach
    }

    /// Its function that patches what is new in the journal.
    pub fn patch(&self) -> RemoteAddress {
        RemoteAddress(self.base) + self.entry.patch
    }
}

/// Options for work that takes no lock of the process: a thread may stop anywhere for it.
pub fn any_point() -> HoldOptions<'static> {
    HoldOptions::anywhere(Duration::from_secs(2))
}

/// Returns true if our hook is at `base`.
pub fn has_hook(pid: i32, base: u64) -> bool {
    hook_at(pid, base).is_some()
}

/// Holds a thread to call into the hook at `base`, if the hook is there: after an execve another
/// program runs under the same pid.
pub fn hold_with_hook(pid: i32, base: u64) -> Result<Held, Error> {
    let held = hold(pid, &any_point())?;
    if !has_hook(pid, base) {
        return Err(Error::OtherProgram { pid });
    }
    Ok(held)
}

/// The hook of this version, of several the one whose gate is open. Its first bytes hold the build-id: a hook of another
/// version does not count as ours.
pub fn hook_in_use(pid: i32, hooks: &[HookCopy]) -> Option<u64> {
    let ours = || hooks.iter().filter(|hook| has_hook(pid, hook.base));
    let is_open = |hook: &&HookCopy| hook.epoch(pid).is_some_and(|epoch| epoch != 0);
    let hook = ours().find(is_open).or_else(|| ours().next())?;
    Some(hook.base)
}
