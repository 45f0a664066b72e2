//! One attacher a process at a time.

use crate::residue::residue;
use anyhow::{Context, bail};
use memhook_process::mappings;
use std::fs::{File, TryLockError};

/// The right to attach to a process or to detach from it, until dropped; a killed attacher loses it.
pub struct Claim {
    _lock: File,
}

/// Takes it: a flock(2) that ends with its holder, goes with the process, and leaves no file behind. On
/// the process's memory in /proc, because only those can open that who may trace the process
/// (PTRACE_MODE_ATTACH, proc(5)): a lock on a file that everybody may read could be held by anybody.
pub fn claim(pid: i32) -> anyhow::Result<Claim> {
    let path = format!("/proc/{pid}/mem");
    let lock = File::open(&path).with_context(|| format!("cannot open {path}"))?;
    match lock.try_lock() {
        Ok(()) => Ok(Claim { _lock: lock }),
        Err(TryLockError::WouldBlock) => match residue(pid, &mappings(pid)?).attacher(pid) {
            Some(other) => {
                bail!("process {pid} is already traced by memhook-rs {other}: stop that first")
            }
            None => {
                bail!("another memhook-rs is at work in process {pid}: try again when it has ended")
            }
        },
        // A /proc that has no locks: the control block still names the attacher.
        Err(TryLockError::Error(_)) => Ok(Claim { _lock: lock }),
    }
}
