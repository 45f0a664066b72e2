//! One attacher a process at a time.

use crate::{error::Error, residue::residue};
use memhook_process::mappings;
use std::fs::{File, TryLockError};

/// The right to attach to a process or to detach from it, until dropped; a killed attacher loses it.
pub struct Claim {
    _lock: File,
}

/// Takes it: a flock(2) that ends with its holder, goes with the process, and leaves no file behind. On
/// the process's memory in /proc, because only those can open that who may trace the process
/// (PTRACE_MODE_ATTACH, proc(5)): a lock on a file that everybody may read could be held by anybody.
pub fn claim(pid: i32) -> Result<Claim, Error> {
    let path = format!("/proc/{pid}/mem");
    let lock = match File::open(&path) {
        Ok(lock) => lock,
        Err(source) => return Err(Error::Open { path, source }),
    };
    match lock.try_lock() {
        Ok(()) => Ok(Claim { _lock: lock }),
        Err(TryLockError::WouldBlock) => match residue(pid, &mappings(pid)?).attacher(pid) {
            Some(attacher) => Err(Error::AlreadyTraced { pid, attacher }),
            None => Err(Error::Busy { pid }),
        },
        // A /proc that has no locks: the control block still names the attacher.
        Err(TryLockError::Error(_)) => Ok(Claim { _lock: lock }),
    }
}
