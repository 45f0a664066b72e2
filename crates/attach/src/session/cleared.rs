//! The first step of an attach: the process is ours, and free of what earlier attaches left.

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

/// A process that nobody else attaches to meanwhile.
pub(super) struct Cleared {
    pub pid: i32,
    pub claim: Claim,
    /// The threads that slept as the attach began.
    pub idle: IdleThreads,
    /// Remains of ours in it by now.
    pub residue: Residue,
    pub files: ModuleFiles,
    /// Its memory, opened before anything was looked at.
    pub memory: File,
    /// For how long a thread was held, at most.
    pub held: Duration,
}

impl Cleared {
    /// Claims a process, and puts right what is left in it.
    pub fn of(pid: i32, mut files: ModuleFiles) -> Result<Cleared, Error> {
        // First: who holds the claim finds nobody else changing what is looked at here.
        let claim = claim(pid)?;
        prepare_to_hold();
        let idle = IdleThreads::of(pid);
        let memory = open_memory(pid)?;
        let maps = mappings(pid)?;
        // A probe that was killed has left its pads.
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

    /// The process as the attach finds it. `emission`: what the hook is to emit, if it does.
    pub fn survey(&mut self, emission: Option<&Emission>) -> Result<Surveyed, Error> {
        let maps = mappings(self.pid)?;
        self.residue.hook_base = match emission {
            Some(emission) => hook_to_emit(self.pid, &maps, emission),
            None => hook_to_record(self.pid, &maps, self.residue.hook_base),
        };
        Surveyed::of(self.pid, maps, self.residue.hook_base, &mut self.files)
    }
}

/// Takes away what an attach has left that went no further, such as a region that no hook was given. If that fails, the next
/// attach does it.
pub(super) fn clear_after_failure(pid: i32) {
    let is_ours = |m: &Mapping| m.path.starts_with("/memfd:memhook-");
    // Most are refused before anything is touched.
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
