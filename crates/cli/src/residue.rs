//! What an earlier attach left in a process: hook and region, and slots if its attacher was killed.

use crate::hook_object::{HOOK_OBJECT, entry_points};
use anyhow::bail;
use memhook_inject::{Held, HoldOptions, hold};
use memhook_process::{Mapping, mappings};
use memhook_stream::Region;
use std::{
    fs::OpenOptions,
    time::{Duration, Instant},
};

/// What of ours is already mapped in a process.
pub struct Residue {
    /// Where the hook is loaded (avma).
    pub hook_base: Option<u64>,
    /// The region, and where the target maps it (avma).
    pub region: Option<(Region, u64)>,
}

/// Whether a pid is a running memhook-rs.
pub fn is_attacher(pid: u32) -> bool {
    pid != 0
        && pid != std::process::id()
        && std::fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|comm| comm.trim() == "memhook-rs")
}

/// Looks for it.
pub fn residue(pid: i32, maps: &[Mapping]) -> Residue {
    // Its first bytes hold the build-id: a hook of another version does not count as ours.
    let same_hook = |m: &&Mapping| {
        let mut start = [0; 1024];
        m.path == "/memfd:memhook-hook"
            && m.offset == 0
            && memhook_process::read_memory(pid, m.start, &mut start).is_ok()
            && HOOK_OBJECT.starts_with(&start)
    };
    let hook_base = maps.iter().find(same_hook).map(|m| m.start);
    let region = maps
        .iter()
        .find(|m| m.path == "/memfd:memhook-region")
        .and_then(|m| {
            let path = format!("/proc/{pid}/map_files/{:x}-{:x}", m.start, m.end);
            let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
            let region = Region::map(&file).ok()?;
            region.validate().ok()?;
            Some((region, m.start))
        });
    Residue { hook_base, region }
}

/// The hook's own functions take no lock of the process: any stop will do.
pub fn any_point() -> HoldOptions<'static> {
    HoldOptions {
        need_safe_point: false,
        deadline: Duration::from_secs(2),
        unsafe_ranges: Vec::new(),
        unwind: None,
    }
}

/// Whether our hook is loaded at `base`.
pub fn has_hook(pid: i32, base: u64) -> bool {
    // As long as the part of the file that holds the build-id.
    let mut start = [0; 1024];
    memhook_process::read_memory(pid, base, &mut start).is_ok() && HOOK_OBJECT.starts_with(&start)
}

/// Holds a thread to call into the hook at `base`, if the hook is there: after an execve another
/// program runs under the same pid.
pub fn hold_with_hook(pid: i32, base: u64) -> anyhow::Result<Held> {
    let held = hold(pid, &any_point())?;
    if !has_hook(pid, base) {
        bail!("process {pid} runs another program now: nothing of ours is left in it");
    }
    Ok(held)
}

/// Whether no thread is inside a wrapper any more, now that the gate is closed: one that was, and
/// stopped there, would go on writing into a ring that has another owner by then.
pub fn comes_to_rest(region: &Region) -> bool {
    let start = Instant::now();
    while region.calls_under_way() > 0 {
        if start.elapsed() > Duration::from_secs(1) {
            return false;
        }
        // A thread that waits for room in a full ring gives up when the clock stands still.
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Restores what a killed attacher left in a process. `Ok(None)`: there was nothing of ours.
pub fn recover(pid: i32) -> anyhow::Result<Option<i64>> {
    let maps = mappings(pid)?;
    let found = residue(pid, &maps);
    let Some(base) = found.hook_base else {
        return Ok(None);
    };
    if let Some((region, _)) = &found.region
        && is_attacher(region.attacher_pid())
    {
        bail!(
            "process {pid} is being traced by memhook-rs {}: stop that instead",
            region.attacher_pid()
        );
    }
    let entry = entry_points()?;
    let mut held = hold_with_hook(pid, base)?;
    let left = held.call(base + entry.detach, &[])? as i64;
    held.release()?;
    Ok(Some(left))
}
