//! Whether the hook of this version is in a process, and holding a thread to call into it.

use crate::{error::Error, hook::object::hook_at};
use memhook_inject::{Held, HoldOptions, hold};
use memhook_process::HookCopy;
use std::time::Duration;

/// Options for work that takes no lock of the process: a thread may stop anywhere for it.
pub fn any_point() -> HoldOptions<'static> {
    HoldOptions::anywhere(Duration::from_secs(2))
}

/// Whether our hook is at `base`.
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
