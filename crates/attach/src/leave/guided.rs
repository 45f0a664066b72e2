//! Regions as they are mapped in a process: the guide, which only an attacher can write, and the report behind it.

use crate::error::Error;
use crate::hook::presence::any_point;
use memhook_abi::{GUIDE_BYTES, RULES_OFFSET, SLOTS_OFFSET};
use memhook_inject::{
    Guide, GuidedRegion, Held, create_guided_region, empty_guide, hold, without_seals,
};
use memhook_process::{
    Mapping, RemoteAddress, hook_copies, mappings, open_memory, proc_path, read_memory,
};
use memhook_stream::Region;
use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::time::Duration;

/// Name of a report in /proc.
pub(crate) const REGION_NAME: &CStr = c"memhook-region";
/// Its name in /proc/PID/maps.
pub(crate) const REGION_PATH: &str = "/memfd:memhook-region";
/// Name of a guide in /proc.
pub(crate) const GUIDE_NAME: &CStr = c"memhook-guide";
/// Its name in /proc/PID/maps.
pub(crate) const GUIDE_PATH: &str = "/memfd:memhook-guide";

/// Names of both parts of the region with call stacks of probes.
const PROBE_NAMES: [&CStr; 2] = [c"memhook-probe-guide", c"memhook-probe-region"];
/// Their names in /proc/PID/maps.
pub(crate) const PROBE_PATHS: [&str; 2] =
    ["/memfd:memhook-probe-guide", "/memfd:memhook-probe-region"];

/// A region that was just made in a process.
pub(crate) struct Made {
    pub region: Region,
    /// Where it is (avma).
    pub address: RemoteAddress,
    /// Another thread of the process was in the way.
    pub was_disturbed: bool,
    /// The guide is the process's private memory, of which its children have copies.
    pub is_private: bool,
}

/// Makes a region of so many bytes in the process of a held thread.
pub(crate) fn make_region(held: &mut Held, bytes: u64) -> Result<Made, Error> {
    made(held, [GUIDE_NAME, REGION_NAME], bytes)
}

/// Like the function above, for call stacks of probes.
pub(crate) fn make_probe_region(held: &mut Held, bytes: u64) -> Result<Made, Error> {
    made(held, PROBE_NAMES, bytes)
}

/// Has regions made as a kernel without the seal takes it. For tests.
const WITHOUT_SEALS: &str = "MEMHOOK_WITHOUT_SEALS";

fn made(held: &mut Held, names: [&CStr; 2], bytes: u64) -> Result<Made, Error> {
    if std::env::var_os(WITHOUT_SEALS).is_some() {
        without_seals();
    }
    let made = create_guided_region(held, names, GUIDE_BYTES as u64, bytes)?;
    mapped_here(held.pid(), made)
}

fn mapped_here(pid: i32, made: GuidedRegion) -> Result<Made, Error> {
    let GuidedRegion { region, guide } = made;
    let is_private = matches!(guide, Guide::Private);
    let guide = match guide {
        Guide::Mapped(map) => memhook_stream::Guide::Mapped(map),
        Guide::Private => memhook_stream::Guide::Private(open_memory(pid)?, region.address.0),
    };
    Ok(Made {
        region: Region::map_parts(&region.fd, guide)?,
        address: region.address,
        was_disturbed: region.was_disturbed,
        is_private,
    })
}

/// A region that was found in a process.
pub(crate) struct FoundRegion {
    /// Where it begins (avma), and its length in bytes.
    pub place: (RemoteAddress, u64),
    /// It is a report whose guide is gone: an attacher was killed while it put a new region in the place of another one.
    pub is_torn: bool,
    /// Its mapping with a memory object that can be opened.
    report: Mapping,
}

/// Regions of a process.
pub(crate) fn found_regions(maps: &[Mapping]) -> Vec<FoundRegion> {
    let reports = maps.iter().filter(|m| m.path == REGION_PATH);
    reports.map(|m| found_region(maps, m)).collect()
}

fn found_region(maps: &[Mapping], report: &Mapping) -> FoundRegion {
    // Where it is not behind a guide it is one that has none yet, or of an earlier version.
    let guide_bytes = match report.offset == GUIDE_BYTES as u64 {
        true => GUIDE_BYTES as u64,
        false => 0,
    };
    let start = report.start.saturating_sub(guide_bytes);
    let is_torn = guide_bytes != 0 && !maps.iter().any(|m| m.contains(start));
    let start = if is_torn { report.start } else { start };
    FoundRegion {
        place: (RemoteAddress(start), report.end - start),
        is_torn,
        report: report.clone(),
    }
}

impl FoundRegion {
    /// Opens its report, which takes CAP_CHECKPOINT_RESTORE.
    pub fn open(&self, pid: i32) -> Option<File> {
        let Mapping { start, end, .. } = self.report;
        let path = proc_path(pid, &format!("map_files/{start:x}-{end:x}"));
        OpenOptions::new().read(true).write(true).open(path).ok()
    }

    /// Maps it here, with a copy of what its guide begins with.
    pub fn map(&self, pid: i32, file: &File) -> Option<Region> {
        if self.report.offset == 0 {
            return Region::map(file).ok();
        }
        let mut begin = vec![0; SLOTS_OFFSET];
        read_memory(pid, self.place.0, &mut begin).ok()?;
        Region::map_parts(file, memhook_stream::Guide::Copied(begin)).ok()
    }
}

/// Gives back what a process's regions have of unwind tables, once nobody records there: who still comes by reads zeros,
/// and cuts a backtrace short. Returns for how long a thread was held.
pub(crate) fn give_tables_back(pid: i32) -> Duration {
    let Ok(maps) = mappings(pid) else {
        return Duration::ZERO;
    };
    let copies = hook_copies(pid, &maps);
    let in_use = |at: u64| copies.iter().any(|hook| hook.region(pid) == Some(at));
    // Where it is not sealed it is private memory, which may have neighbours.
    let has_tables = |m: &Mapping, at: u64| match m.path.as_str() {
        GUIDE_PATH => m.end - m.start == GUIDE_BYTES as u64,
        "" => m.contains(at + RULES_OFFSET as u64),
        _ => false,
    };
    let found = found_regions(&maps);
    let regions = found.iter().filter(|region| {
        let at = region.place.0.0;
        let behind_guide = region.report.offset == GUIDE_BYTES as u64 && !region.is_torn;
        behind_guide && in_use(at) && maps.iter().any(|m| m.contains(at) && has_tables(m, at))
    });
    let regions: Vec<_> = regions.collect();
    if regions.is_empty() {
        return Duration::ZERO;
    }
    let Ok(mut held) = hold(pid, &any_point()) else {
        return Duration::ZERO;
    };
    let now = mappings(pid).unwrap_or_default();
    for region in regions {
        // The process may have executed another program meanwhile.
        if now.contains(&region.report) {
            let tables = region.place.0 + RULES_OFFSET as u64;
            let _ = empty_guide(&mut held, tables, (GUIDE_BYTES - RULES_OFFSET) as u64);
        }
    }
    held.release().unwrap_or_default()
}
