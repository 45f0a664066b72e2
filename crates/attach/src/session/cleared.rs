//! First step of an attach: claims the process and removes the leftovers of earlier attaches.

use crate::claim::{Claim, claim};
use crate::config::emission::Emission;
use crate::error::Error;
use crate::hook::loading::{hook_to_emit, hook_to_record};
use crate::leave::residue::{Residue, residue};
use crate::survey::process::Surveyed;
use memhook_inject::{IdleThreads, prepare_to_hold};
use memhook_process::{Mapping, ModuleFiles, mappings, open_memory};
use std::fs::File;
use std::time::Duration;

/// Process that is claimed by this attach.
pub(super) struct Cleared {
    pub pid: i32,
    pub claim: Claim,
    /// Threads that slept when the attach began.
    pub idle: IdleThreads,
    /// Remaining traces of earlier attaches.
    pub residue: Residue,
    pub files: ModuleFiles,
    /// Memory of the process. It was opened before anything about the process was read.
    pub memory: File,
    /// Longest time that a thread was held.
    pub held: Duration,
}

impl Cleared {
    /// Claims a process and repairs the leftovers of earlier attaches.
    pub fn of(pid: i32, mut files: ModuleFiles) -> Result<Cleared, Error> {
        // The claim comes first, so that no other attacher changes what is examined here.
        let claim = claim(pid)?;
        prepare_to_hold();
        let idle = IdleThreads::of(pid);
        let memory = open_memory(pid)?;
        let maps = mappings(pid)?;
        // A probe run that was killed has left its pads.
        crate::probes::remove(pid)?;
        let mut residue = residue(pid, &maps);
        if let Some(attacher) = residue.attacher(pid) {
            return Err(Error::AlreadyTraced { pid, attacher });
        }
        let mut held = Duration::ZERO;
        if residue.is_untidy() {
            tracing::debug!("what an earlier attach has left is put right");
            held = residue.tidy_up(pid, &mut files)?.held;
        }
        Ok(Cleared {
            pid,
            claim,
            idle,
            residue,
            files,
            memory,
            held,
        })
    }

    /// Surveys the process for the attach. `emission`: source of the emitting hook, if such a hook is requested.
    pub fn survey(&mut self, emission: Option<&Emission>) -> Result<Surveyed, Error> {
        let maps = mappings(self.pid)?;
        self.residue.hook_base = match emission {
            Some(emission) => hook_to_emit(self.pid, &maps, emission),
            None => hook_to_record(self.pid, &maps, self.residue.hook_base),
        };
        Surveyed::of(self.pid, maps, self.residue.hook_base, &mut self.files)
    }
}

/// Removes the leftovers of an unfinished attach, such as a region that was never passed to a hook. If that fails, the
/// next attach removes them.
pub(super) fn clear_after_failure(pid: i32) {
    let is_ours = |m: &Mapping| m.path.starts_with("/memfd:memhook-");
    // Most attaches fail before the process is touched.
    if !mappings(pid).is_ok_and(|maps| maps.iter().any(is_ours)) {
        return;
    }
    let (Ok(_claim), Ok(maps)) = (claim(pid), mappings(pid)) else {
        return;
    };
    let mut residue = residue(pid, &maps);
    if residue.attacher(pid).is_none() {
        let _ = residue.clear_leftovers(pid);
    }
}
