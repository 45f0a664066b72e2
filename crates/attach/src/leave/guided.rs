//! Regions in a process: the guide, which only an attacher can write, and the report after it.

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

/// Name of a report's memory object.
pub(crate) const REGION_NAME: &CStr = c"memhook-region";
/// Name of a report in /proc/PID/maps.
pub(crate) const REGION_PATH: &str = "/memfd:memhook-region";
/// Name of a guide's memory object.
pub(crate) const GUIDE_NAME: &CStr = c"memhook-guide";
/// Name of a guide in /proc/PID/maps.
pub(crate) const GUIDE_PATH: &str = "/memfd:memhook-guide";

/// Names of the memory objects of a region for the call stacks of probes.
const PROBE_NAMES: [&CStr; 2] = [c"memhook-probe-guide", c"memhook-probe-region"];
/// Names of these objects in /proc/PID/maps.
pub(crate) const PROBE_PATHS: [&str; 2] =
    ["/memfd:memhook-probe-guide", "/memfd:memhook-probe-region"];

/// Region that was just made in a process.
pub(crate) struct Made {
    pub region: Region,
    /// Address of the region (avma).
    pub address: RemoteAddress,
    /// True if another thread of the process interfered.
    pub was_disturbed: bool,
    /// True if the guide is private memory of the process, which its children copy.
    pub is_private: bool,
}

/// Creates a region of this size in the process of a held thread.
pub(crate) fn make_region(held: &mut Held, bytes: u64) -> Result<Made, Error> {
    made(held, [GUIDE_NAME, REGION_NAME], bytes)
}

/// Like [`make_region`], for the call stacks of probes.
pub(crate) fn make_probe_region(held: &mut Held, bytes: u64) -> Result<Made, Error> {
    made(held, PROBE_NAMES, bytes)
}

/// Environment variable for tests. If it is set, regions are created as on a kernel without the seal.
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

/// Region that was found in a process.
pub(crate) struct FoundRegion {
    /// Address (avma) and length in bytes.
    pub place: (RemoteAddress, u64),
    /// True for a report without a guide, left by an attacher that was killed while it replaced a region.
    pub is_torn: bool,
    /// Mapping whose memory object can be opened.
    report: Mapping,
}

/// Returns the regions of a process.
pub(crate) fn found_regions(maps: &[Mapping]) -> Vec<FoundRegion> {
    let reports = maps.iter().filter(|m| m.path == REGION_PATH);
    reports.map(|m| found_region(maps, m)).collect()
}

fn found_region(maps: &[Mapping], report: &Mapping) -> FoundRegion {
    // A report without a guide has not received its guide yet, or is from an earlier version.
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
    /// Opens the report, which needs CAP_CHECKPOINT_RESTORE.
    pub fn open(&self, pid: i32) -> Option<File> {
        let Mapping { start, end, .. } = self.report;
        let path = proc_path(pid, &format!("map_files/{start:x}-{end:x}"));
        OpenOptions::new().read(true).write(true).open(path).ok()
    }

    /// Maps the report into this process, with a copy of the first part of its guide.
    pub fn map(&self, pid: i32, file: &File) -> Option<Region> {
        if self.report.offset == 0 {
            return Region::map(file).ok();
        }
        let mut begin = vec![0; SLOTS_OFFSET];
        read_memory(pid, self.place.0, &mut begin).ok()?;
        Region::map_parts(file, memhook_stream::Guide::Copied(begin)).ok()
    }
}

/// Frees the unwind tables in a process's regions after the end of recording. A thread that still reads these tables
/// gets zeros and cuts its backtrace short. Returns the time for which a thread was held.
pub(crate) fn give_tables_back(pid: i32) -> Duration {
    let Ok(maps) = mappings(pid) else {
        return Duration::ZERO;
    };
    let copies = hook_copies(pid, &maps);
    let in_use = |at: u64| copies.iter().any(|hook| hook.region(pid) == Some(at));
    // A guide without the seal is private memory, and the kernel may have merged it with its neighbours.
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
        // The process may have executed another program since.
        if now.contains(&region.report) {
            let tables = region.place.0 + RULES_OFFSET as u64;
            let _ = empty_guide(&mut held, tables, (GUIDE_BYTES - RULES_OFFSET) as u64);
        }
    }
    held.release().unwrap_or_default()
}
