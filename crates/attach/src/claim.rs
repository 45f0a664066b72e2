//! Lock that allows one attacher per process.

use crate::{error::Error, leave::probe_areas, leave::residue::residue};
use memhook_process::{Chosen, Kept, mappings, proc_path, still_chosen};
use std::fs::{File, TryLockError};
use std::time::{Duration, Instant};

/// Longest time for which a lock may outlive the attacher that the process names. If an attacher is killed just after
/// it started a watchdog, the watchdog has a copy of the lock's descriptor until it is killed too.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

/// Right to attach to a process or to detach from it. The right is released when this value is dropped or when the
/// attacher dies.
pub struct Claim {
    _locks: Vec<File>,
    _chosen: Kept,
}

/// Locks the process with flock(2). The kernel releases the lock when its holder or the process ends, and no file
/// remains. The locked file is the process's memory in /proc, which only a process that may trace it can open
/// (PTRACE_MODE_ATTACH, proc(5)). Any process could lock a file that everybody may read.
///
/// If the initial thread has ended, the memory can be opened only through another thread, and another attacher may have
/// locked it through a third thread. Therefore a second file is locked too. It belongs to the process, and only the
/// owner of the process can open it.
///
/// If the pid was reused after the user chose the process, this function fails.
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
                // This /proc does not support locks. Even so, the control block names the attacher.
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
    // The file was opened after the process was chosen, so it belongs to this process as long as the pid does.
    still_chosen(pid)?;
    Ok(Claim {
        _locks: locks,
        _chosen: chosen,
    })
}

/// Returns the error with which a claim would fail if an attacher uses the process. Takes no lock.
pub fn already_traced(pid: i32) -> Result<Option<Error>, Error> {
    let maps = mappings(pid)?;
    let attacher = residue(pid, &maps).attacher(pid);
    let attacher = attacher.or_else(|| probe_areas::attacher(pid, &maps));
    Ok(attacher.map(|attacher| Error::AlreadyTraced { pid, attacher }))
}
