//! Repairs what a killed attacher left in a process, or in its parent before a fork.

use crate::{claim::claim, error::Error, leave::residue::residue, probes};
use memhook_process::{ModuleFiles, mappings};

/// Restores the slots and the probed functions of a process. Returns the number that could not be restored, or `None`
/// if the process contains nothing left by memhook-rs.
pub fn recover(pid: i32) -> Result<Option<u64>, Error> {
    let _claim = claim(pid)?;
    let functions = probes::remove(pid)?;
    let maps = mappings(pid)?;
    let mut found = residue(pid, &maps);
    if let Some(attacher) = found.attacher(pid) {
        return Err(Error::AlreadyTraced { pid, attacher });
    }
    if !found.is_untidy() {
        return Ok(functions);
    }
    let restored = found.tidy_up(pid, &mut ModuleFiles::in_parts())?;
    found.give_memory_back(pid);
    Ok(Some(restored.left + functions.unwrap_or(0)))
}
