//! Whether the hook of this version is in a process, and holding a thread to call into it.

use crate::{error::Error, hook::object::hook_at};
use memhook_inject::{Held, HoldOptions, hold};
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
