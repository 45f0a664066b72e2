//! What an earlier attach left in a process: hook and region, and slots if its attacher was killed.

use crate::claim::claim;
use crate::closed_region;
use crate::hook_object::{HOOK_OBJECT, entry_points};
use crate::reach::Reach;
use crate::refused_slots;
use crate::rest::comes_to_rest;
use anyhow::bail;
use memhook_inject::{Held, HoldOptions, close_descriptor, create_region, hold};
use memhook_process::{Mapping, mappings};
use memhook_stream::Region;
use std::{fs::OpenOptions, time::Duration};

/// What of ours is already in a process.
pub struct Residue {
    /// Where the hook is loaded (avma).
    pub hook_base: Option<u64>,
    /// Regions, and where the target maps them (avma). More than one if ring sizes differed.
    regions: Vec<(Region, u64)>,
    /// Regions that cannot be opened from here: addresses (avma) and bytes.
    closed_regions: Vec<(u64, u64)>,
    /// Descriptors that an attacher had no time to close.
    descriptors: Vec<u64>,
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
    let mut found = Residue {
        hook_base: maps.iter().find(same_hook).map(|m| m.start),
        regions: Vec::new(),
        closed_regions: Vec::new(),
        descriptors: stray_descriptors(pid),
    };
    for m in maps.iter().filter(|m| m.path == "/memfd:memhook-region") {
        let path = format!("/proc/{pid}/map_files/{:x}-{:x}", m.start, m.end);
        // To read that link takes CAP_CHECKPOINT_RESTORE.
        let Ok(file) = OpenOptions::new().read(true).write(true).open(path) else {
            found.closed_regions.push((m.start, m.end - m.start));
            continue;
        };
        // A blank one is that of an attacher killed before it had written the control block.
        let ours = |region: &Region| region.is_blank() || region.validate().is_ok();
        if let Some(region) = Region::map(&file).ok().filter(ours) {
            found.regions.push((region, m.start));
        }
    }
    found
}

/// Descriptors of ours that the target has open.
fn stray_descriptors(pid: i32) -> Vec<u64> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
        return Vec::new();
    };
    let ours = [
        "/memfd:memhook-region (deleted)",
        "/memfd:memhook-hook (deleted)",
    ];
    entries
        .flatten()
        .filter(|entry| {
            std::fs::read_link(entry.path())
                .is_ok_and(|to| ours.iter().any(|name| to.as_os_str() == *name))
        })
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

impl Residue {
    /// A running attacher that uses one of the regions.
    pub fn attacher(&self, pid: i32) -> Option<u32> {
        let closed = self
            .closed_regions
            .iter()
            .filter_map(|&(address, _)| closed_region::attacher_pid(pid, address));
        let open = self.regions.iter().map(|(region, _)| region.attacher_pid());
        open.chain(closed).find(|&attacher| is_attacher(attacher))
    }

    /// Puts right what an attacher that was killed left: slots that hold our values, open descriptors.
    /// Returns how many slots could not be restored, and how long one thread was held.
    pub fn tidy_up(&mut self, pid: i32) -> anyhow::Result<(u64, Duration)> {
        let (left, mut held_time) = match self.hook_base {
            Some(base) => restore_slots(pid, base)?,
            None => (0, Duration::ZERO),
        };
        if !self.descriptors.is_empty() {
            let mut held = hold(pid, &any_point())?;
            for descriptor in std::mem::take(&mut self.descriptors) {
                close_descriptor(&mut held, descriptor)?;
            }
            held_time = held_time.max(held.release()?);
        }
        // Where the journal can be read, those that the hook could not restore itself.
        for (region, _) in &self.regions {
            refused_slots::restore(pid, region)?;
        }
        let restored = left > 0 && !self.regions.is_empty();
        Ok((if restored { 0 } else { left }, held_time))
    }

    /// Whether there is something that a hold should put right before anything else.
    pub fn is_untidy(&self) -> bool {
        self.hook_base.is_some() || !self.descriptors.is_empty()
    }

    /// A region for rings of `ring_bytes`, one of those found if no thread is at work in it. The
    /// gate must be closed. Returns it with its address (avma) and the number of the next attach.
    pub fn region_for(
        self,
        reach: &mut Reach<'_>,
        pid: i32,
        ring_bytes: u64,
        held_time: &mut Duration,
    ) -> anyhow::Result<(Region, u64, u32)> {
        let mut epoch = 1;
        for (region, _) in &self.regions {
            epoch = epoch.max(region.epoch() % 4095 + 1);
        }
        for (region, address) in self.regions {
            if region.ring_bytes() as u64 == ring_bytes && comes_to_rest(pid, &region) {
                return Ok((region, address, epoch));
            }
        }
        let bytes = memhook_abi::region_bytes(ring_bytes as usize) as u64;
        // One that cannot be opened is mapped over: to the hook that is the same as a cleared one.
        let over = self.closed_regions.iter().find(|&&(address, length)| {
            length == bytes && closed_region::comes_to_rest(pid, address, ring_bytes)
        });
        if let Some(last) = over.and_then(|&(address, _)| closed_region::epoch(pid, address)) {
            epoch = epoch.max(last % 4095 + 1);
        }
        let mut held = reach.hold(pid, &any_point())?;
        let made = create_region(&mut held, bytes, over.map(|&(address, _)| address))?;
        *held_time = (*held_time).max(held.release()?);
        Ok((Region::map(&made.fd)?, made.address, epoch))
    }
}

/// The hook's own functions take no lock of the process: any stop will do.
pub fn any_point() -> HoldOptions<'static> {
    HoldOptions::anywhere(Duration::from_secs(2))
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

/// How often it is tried to restore slots while a thread of the target works on them.
const LOCKED_TRIES: u32 = 20;

/// Has the hook at `base` close the gate and put the originals back. Returns how many slots it could not
/// restore, and how long one thread was held.
pub fn restore_slots(pid: i32, base: u64) -> anyhow::Result<(u64, Duration)> {
    let detach = base + entry_points()?.detach;
    let mut longest = Duration::ZERO;
    for _ in 0..LOCKED_TRIES {
        let mut held = hold_with_hook(pid, base)?;
        let left = held.call(detach, &[])? as i64;
        longest = longest.max(held.release()?);
        if let Ok(left) = u64::try_from(left) {
            return Ok((left, longest));
        }
        // Locked: by a thread in dlopen, which needs its turn to go on.
        std::thread::sleep(Duration::from_millis(2));
    }
    bail!("a thread of process {pid} has been patching slots all the time: try again")
}

/// Restores what a killed attacher left in a process. `Ok(None)`: there was nothing of ours.
pub fn recover(pid: i32) -> anyhow::Result<Option<u64>> {
    let _claim = claim(pid)?;
    let maps = mappings(pid)?;
    let mut found = residue(pid, &maps);
    if let Some(attacher) = found.attacher(pid) {
        bail!("process {pid} is being traced by memhook-rs {attacher}: stop that instead");
    }
    if !found.is_untidy() {
        return Ok(None);
    }
    let left = found.tidy_up(pid)?.0;
    for (region, _) in &found.regions {
        region.give_all_back();
    }
    Ok(Some(left))
}
