//! One attacher a process at a time.

use crate::{error::Error, leave::probe_areas, leave::residue::residue};
use memhook_process::{Chosen, Kept, mappings, proc_path, still_chosen};
use std::fs::{File, TryLockError};
use std::time::{Duration, Instant};

/// Longest time for which a lock may outlive the attacher that is named in the process. One that was killed has
/// watchdogs, and one that had just been started has a copy of its descriptors for a moment, until it is killed too.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

/// The right to attach to a process or to detach from it, until dropped; a killed attacher loses it.
pub struct Claim {
    _locks: Vec<File>,
    _chosen: Kept,
}

/// Takes it: a flock(2) that ends with its holder, goes with the process, and leaves no file behind. On
/// the process's memory in /proc, because only those can open that who may trace the process
/// (PTRACE_MODE_ATTACH, proc(5)): a lock on a file that everybody may read could be held by anybody.
///
/// When the initial thread ends before the others, the memory can only be opened by one of these, where nobody else
/// may have locked it. So a file of the process that stays, and that only its owner can open, is locked too.
///
/// A process that has got the id since the choice is none of ours to take.
pub fn claim(pid: i32) -> Result<Claim, Error> {
    let chosen = Chosen::now(pid).keep()?;
    let path = proc_path(pid, "mem");
    let memory = match File::open(&path) {
        Ok(memory) => memory,
        Err(source) => return Err(Error::Open { path, source }),
    };
    let stays = File::open(format!("/proc/{pid}/personality")).ok();
    let mut locks = Vec::new();
    let until = Instant::now() + PATIENCE;
    for lock in [Some(memory), stays].into_iter().flatten() {
        loop {
            match lock.try_lock() {
                // A /proc that has no locks: the control block still names the attacher.
                Ok(()) | Err(TryLockError::Error(_)) => break,
                Err(TryLockError::WouldBlock) => still_chosen(pid)?,
            }
            if let Some(error) = already_traced(pid)? {
                return Err(error);
            }
            if Instant::now() >= until {
                return Err(Error::Busy { pid });
            }
            std::thread::sleep(PAUSE);
        }
        locks.push(lock);
    }
    // What was opened was opened after the choice, so it is this process's for as long as its id is.
    still_chosen(pid)?;
    Ok(Claim {
        _locks: locks,
        _chosen: chosen,
    })
}

/// Looks whether a running attacher uses a process, as a claim would find out. Nothing is claimed.
pub fn already_traced(pid: i32) -> Result<Option<Error>, Error> {
    let maps = mappings(pid)?;
    let attacher = residue(pid, &maps).attacher(pid);
    let attacher = attacher.or_else(|| probe_areas::attacher(pid, &maps));
    Ok(attacher.map(|attacher| Error::AlreadyTraced { pid, attacher }))
}
