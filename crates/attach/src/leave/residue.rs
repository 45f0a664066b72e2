//! Remains of an earlier attach in a process: the hook, the region, and patched slots if its attacher was killed. They
//! include the remains that the process inherited from a traced parent.

use super::closed_region as closed;
use super::guided::{FoundRegion, found_regions, give_tables_back, make_region};
use super::pad_areas::are_live;
use super::rest::comes_to_rest;
use super::restore::{Restored, restore};
use crate::error::Error;
use crate::hold::code_exchanges::pause_after;
use crate::hold::reach::Reach;
use crate::hook::presence::{any_point, hook_in_use};
use memhook_abi::{MOST_SPARES, SPARES_BEHIND_GATE, birth};
use memhook_inject::{Held, exchange_code, hold, memory_of_code, unmap_unfinished, write_bytes};
use memhook_process::{
    HookCopy, Mapping, ModuleFiles, RemoteAddress, hook_copies, proc_path, read_word,
    unfinished_copies,
};
use memhook_stream::{Birth, Region};
use std::os::unix::fs::MetadataExt;
use std::{ops::Range, path::Path, time::Duration};

/// Number of checks whether a thread uses the hook.
const LOOKS: u32 = 5;

/// Our remains in a process.
///
/// A forked process also maps its parent's regions, and the parent's threads may be writing to them. To tell them
/// apart, the hook keeps an owner number in the gate page, which a fork wipes. The process's own regions have the same
/// number ([`memhook_abi::Control::owner`]).
pub struct Residue {
    /// Load bias of this version's hook (avma).
    pub hook_base: Option<u64>,
    /// Hooks of all versions.
    hooks: Vec<HookCopy>,
    /// Regions of this process with their addresses (avma). There are several if earlier attaches used different ring
    /// sizes.
    regions: Vec<(Region, u64)>,
    /// Regions of this process that we cannot open: address (avma) and size.
    closed_regions: Vec<(RemoteAddress, u64)>,
    /// Regions that the hook uses but whose contents cannot be trusted because a child has written to them.
    spoiled: Vec<(RemoteAddress, u64)>,
    /// Regions that were never passed to a hook, here or in a parent: address (avma) and size.
    never_used: Vec<(RemoteAddress, u64)>,
    /// Regions offered, now or earlier, to a child of this process or of its parent, with their addresses. Another
    /// process may be recording to them.
    offered: Vec<(Region, RemoteAddress)>,
    /// Hooks that a killed attacher has mapped only in part (avma).
    unfinished: Vec<Range<u64>>,
    /// True if a function leads to a pad.
    has_live_pads: bool,
    /// Descriptors that a killed attacher has left open.
    descriptors: Vec<StrayDescriptor>,
    /// Highest attach number in any region. Words that threads keep may contain it.
    last_epoch: u32,
}

/// Returns true if this pid is another running process that attaches to processes.
pub fn is_attacher(pid: u32) -> bool {
    let is_called_so = || memhook_process::process_name(pid as i32) == "memhook-rs";
    // A killed attacher stays in /proc until its parent reaps it. The first process of a container may never do so.
    pid != 0
        && pid != std::process::id()
        && !memhook_process::has_ended(pid as i32)
        && memhook_process::is_attacher(pid as i32).unwrap_or_else(is_called_so)
}

/// Finds the remains in a process.
pub fn residue(pid: i32, maps: &[Mapping]) -> Residue {
    let hooks = hook_copies(pid, maps);
    let mut found = Residue {
        hook_base: hook_in_use(pid, &hooks),
        regions: Vec::new(),
        closed_regions: Vec::new(),
        spoiled: Vec::new(),
        never_used: Vec::new(),
        offered: Vec::new(),
        unfinished: unfinished_copies(pid, maps),
        has_live_pads: are_live(pid, maps),
        descriptors: stray_descriptors(pid),
        last_epoch: 0,
        hooks,
    };
    for region in found_regions(maps) {
        found.take_in(pid, &region);
    }
    found
}

/// Place of an attach's region in the target.
#[derive(Clone, Copy)]
pub struct Place {
    /// Address (avma) of a region that is not in use yet.
    pub address: u64,
    /// Address (avma) of an earlier attach's region that the new region must replace: the hook knows that address, and
    /// a thread may return to it.
    pub replaces: Option<u64>,
    /// True if another thread of the target closed the descriptor that was used to map the region.
    pub was_disturbed: bool,
}

/// Descriptor of ours that is open in the target.
pub(crate) struct StrayDescriptor {
    number: u64,
    /// Device and inode. They are compared before closing, because a thread of the target that closes unknown
    /// descriptors may soon open a file of its own under that number.
    object: (u64, u64),
}

impl StrayDescriptor {
    /// Closes the descriptor unless its number now refers to another file.
    pub fn close(&self, held: &mut Held) -> Result<(), Error> {
        Ok(held.close_if(self.number, self.object)?)
    }
}

/// Returns our descriptors that are open in the target.
pub(crate) fn stray_descriptors(pid: i32) -> Vec<StrayDescriptor> {
    let Ok(entries) = std::fs::read_dir(proc_path(pid, "fd")) else {
        return Vec::new();
    };
    let ours = [
        "/memfd:memhook-region (deleted)",
        "/memfd:memhook-guide (deleted)",
        "/memfd:memhook-hook (deleted)",
        "/memfd:memhook-pads (deleted)",
        "/memfd:memhook-probe (deleted)",
        "/memfd:memhook-probe-counts (deleted)",
        "/memfd:memhook-probe-code (deleted)",
        "/memfd:memhook-probe-region (deleted)",
        "/memfd:memhook-probe-guide (deleted)",
    ];
    let object = |path: &Path| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    };
    let stray = |entry: std::fs::DirEntry| {
        let (number, path) = (entry.file_name().to_str()?.parse().ok()?, entry.path());
        let object_before = object(&path)?;
        let to = std::fs::read_link(&path).ok()?;
        let is_ours = ours.iter().any(|name| to.as_os_str() == *name);
        // The link describes the object only if the number referred to the same object before and after the link was
        // read.
        let is_same = is_ours && object(&path)? == object_before;
        is_same.then_some(StrayDescriptor {
            number,
            object: object_before,
        })
    };
    entries.flatten().filter_map(stray).collect()
}

impl Residue {
    fn take_in(&mut self, pid: i32, found: &FoundRegion) {
        let place = found.place;
        let address = place.0;
        if found.is_torn {
            self.never_used.push(place);
            return;
        }
        // The owner is read from the process's memory, because opening the region's file needs CAP_CHECKPOINT_RESTORE.
        let owner = closed::owner(pid, address);
        if let Some(epoch) = closed::epoch(pid, address) {
            self.last_epoch = self.last_epoch.max(epoch);
        }
        let file = found.open(pid);
        let is_known = |hook: &HookCopy| hook.region(pid) == Some(address.0);
        let is_of_hook = |hook: &HookCopy| hook.owner(pid) == owner;
        // A region with another owner number was written for a forked process, or its attacher was killed directly
        // before it passed the region to a hook.
        let is_in_use = |hook: &HookCopy| is_known(hook) && hook.owner(pid) != 0;
        let is_in_use = self.hooks.iter().any(is_in_use);
        if !is_in_use && (owner == 0 || !self.hooks.iter().any(is_of_hook)) {
            // A blank region that no hook knows was never used. Any other region belongs to a parent, and a thread that
            // was forked inside a wrapper may still access it. A region without our seals may be the program's own
            // memory.
            let region = file.and_then(|file| found.map(pid, &file));
            if region.is_some()
                && (self.hooks.is_empty() || (owner == 0 && !self.hooks.iter().any(is_known)))
            {
                self.never_used.push(place);
            } else if closed::birth(pid, address).is_some_and(|birth| birth != birth::NONE) {
                self.offered.extend(region.map(|region| (region, address)));
            }
            return;
        }
        let Some(file) = file else {
            self.closed_regions.push(place);
            return;
        };
        // A region without a control block was left by an attacher that was killed before it wrote the block.
        let ours = |region: &Region| region.is_blank() || region.validate().is_ok();
        match found.map(pid, &file).filter(ours) {
            Some(region) => self.regions.push((region, address.0)),
            None if is_in_use => self.spoiled.push(place),
            None => {}
        }
    }

    /// Returns the pid of a running attacher that uses one of the regions.
    pub fn attacher(&self, pid: i32) -> Option<u32> {
        let closed = self
            .closed_regions
            .iter()
            .filter_map(|&(address, _)| closed::attacher_pid(pid, address));
        let open = self.regions.iter().map(|(region, _)| region.attacher_pid());
        open.chain(closed).find(|&attacher| is_attacher(attacher))
    }

    /// Returns the region that a running attacher uses, and the attacher's pid.
    pub fn traced(&self) -> Option<(&Region, u32)> {
        let regions = self.regions.iter().map(|(region, _)| region);
        let mut used = regions.map(|region| (region, region.attacher_pid()));
        used.find(|&(_, attacher)| is_attacher(attacher))
    }

    /// Returns the owner number of the process's regions, or a new number if it has no region.
    pub fn owner(&self, pid: i32) -> u64 {
        let owners = self.hooks.iter().map(|hook| hook.owner(pid));
        owners
            .into_iter()
            .find(|&owner| owner != 0)
            .unwrap_or_else(new_owner)
    }

    /// Returns the functions that the wrappers in the process call, as function, variant and address (avma). Each
    /// variant keeps its function, because the program may have copied the address of a wrapper.
    pub fn originals(&self) -> impl Iterator<Item = (u32, u32, u64)> {
        let hook = self.hooks.iter().find(|h| Some(h.base) == self.hook_base);
        hook.into_iter().flat_map(HookCopy::originals)
    }

    /// Removes the remains: slots that hold our values, open descriptors, unused memory.
    pub fn tidy_up(&mut self, pid: i32, files: &mut ModuleFiles) -> Result<Restored, Error> {
        let mut restored = Restored::default();
        if !self.hooks.is_empty() || self.has_live_pads {
            restored = restore(pid, self.hook_base, None, files)?;
        }
        self.take_offers_back(pid)?;
        restored.held = restored.held.max(self.clear_leftovers(pid)?);
        Ok(restored)
    }

    /// Closes our descriptors and unmaps memory that was never passed to a hook. Returns how long a thread was held.
    pub fn clear_leftovers(&mut self, pid: i32) -> Result<Duration, Error> {
        if !self.has_leftovers() {
            return Ok(Duration::ZERO);
        }
        let mut held = hold(pid, &any_point())?;
        for descriptor in std::mem::take(&mut self.descriptors) {
            descriptor.close(&mut held)?;
        }
        for (address, bytes) in std::mem::take(&mut self.never_used) {
            held.syscall(libc::SYS_munmap, [address.0, bytes, 0, 0, 0, 0])?;
        }
        for place in std::mem::take(&mut self.unfinished) {
            unmap_unfinished(&mut held, place)?;
        }
        Ok(held.release()?)
    }

    /// If no attacher will drain the events of the children, withdraws the regions offered to children of this process
    /// or of its parent, and unmaps them here. A child keeps the region that it has claimed.
    fn take_offers_back(&mut self, pid: i32) -> Result<(), Error> {
        let hook = self.hooks.iter().find(|h| Some(h.base) == self.hook_base);
        let Some((hook, gate)) = hook.and_then(|hook| Some((hook, hook.gate()?))) else {
            return Ok(());
        };
        let list = RemoteAddress(gate) + SPARES_BEHIND_GATE;
        let is_listed = read_word(pid, list).is_some_and(|first| first != 0);
        // A region must stay mapped as long as it is listed for children.
        if is_listed && write_bytes(pid, list, &[0; MOST_SPARES * 8]).is_err() {
            return Ok(());
        }
        let mut unused = Vec::new();
        for (region, address) in std::mem::take(&mut self.offered) {
            // The parent of this process may still be traced.
            if is_attacher(region.attacher_pid()) {
                continue;
            }
            if region.withdraw() {
                region.give_all_back();
            }
            // A thread of this process has a ring in the region only if the process claimed the region and has given it
            // up since.
            if !matches!(region.birth(), Birth::Closed) || region.rings_used() == 0 {
                unused.push((address, region.len() as u64));
            }
        }
        // Threads read the list only while the gate is in the state that a fork leaves.
        if !unused.is_empty() && (hook.owner(pid) != 0 || is_left(pid, hook)?) {
            self.never_used.extend(unused);
        }
        Ok(())
    }

    /// Frees the memory of this process's regions, which are no longer read.
    pub fn give_memory_back(&self, pid: i32) {
        for (region, _) in &self.regions {
            region.give_all_back();
        }
        give_tables_back(pid);
    }

    /// Returns true if remains must be removed before anything else.
    pub fn is_untidy(&self) -> bool {
        !self.hooks.is_empty() || self.has_live_pads || self.has_leftovers()
    }

    /// Returns true if some remains can be removed only by a held thread.
    fn has_leftovers(&self) -> bool {
        !self.descriptors.is_empty() || !self.never_used.is_empty() || !self.unfinished.is_empty()
    }

    /// Provides a region for rings of `ring_bytes`, in place of an existing region that no thread uses, if there is
    /// one. The gate must be closed. Also returns the number of the next attach.
    ///
    /// The memory object is always new, because children may have mapped an earlier one. Until the hook knows the
    /// region, forked children do not inherit it. From then on, a child unmaps it itself (`birth.hpp` of the hook).
    pub fn region_for(
        self,
        reach: &mut Reach<'_>,
        pid: i32,
        ring_bytes: u64,
        held_time: &mut Duration,
    ) -> Result<(Region, Place, u32), Error> {
        let epoch = self.last_epoch % 4095 + 1;
        let bytes = memhook_abi::region_bytes(ring_bytes as usize) as u64;
        let fits = |(region, _): &&(Region, u64)| {
            region.ring_bytes() as u64 == ring_bytes && comes_to_rest(pid, region)
        };
        // If several regions fit, the hook's own region is chosen.
        let is_known = |&&(_, address): &&(Region, u64)| {
            self.hooks
                .iter()
                .any(|hook| hook.region(pid) == Some(address))
        };
        let (known, others): (Vec<_>, Vec<_>) = self.regions.iter().partition(is_known);
        let open = known.into_iter().chain(others).find(fits);
        let closed_fits = |&&(address, length): &&(RemoteAddress, u64)| {
            length == bytes && closed::comes_to_rest(pid, address, ring_bytes)
        };
        // For the hook, mapping over a region has the same effect as clearing it.
        let closed = || self.closed_regions.iter().find(closed_fits);
        let spoiled = || self.spoiled.iter().find(|&&(_, length)| length == bytes);
        let over = open.map(|&(_, address)| RemoteAddress(address));
        let over = over.or_else(|| closed().or_else(spoiled).map(|&(address, _)| address));
        let mut held = reach.hold(pid, &any_point())?;
        let made = make_region(&mut held, bytes)?;
        *held_time = (*held_time).max(held.release()?);
        let place = Place {
            address: made.address.0,
            replaces: over.map(|address| address.0),
            was_disturbed: made.was_disturbed,
        };
        if let Some((earlier, _)) = open {
            made.region.replace(earlier);
        }
        Ok((made.region, place, epoch))
    }
}

/// Returns true if it can be shown, within a limited number of attempts, that no thread is inside the hook or will
/// return to it.
fn is_left(pid: i32, hook: &HookCopy) -> Result<bool, Error> {
    let code = hook.base..hook.end;
    let code = std::slice::from_ref(&code);
    for _ in 0..LOOKS {
        let memory = memory_of_code(pid)?;
        let looked = exchange_code(pid, &memory, &[], code, false)?;
        if looked.unused == [true] {
            return Ok(true);
        }
        std::thread::sleep(pause_after(looked.held));
    }
    Ok(false)
}

pub(crate) fn new_owner() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id()) | 1
}
