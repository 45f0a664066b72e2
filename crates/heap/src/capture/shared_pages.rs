//! Shared memory that the process has never touched through a mapping: it was written through a
//! descriptor, through another mapping, or by another process. Its pages are in no page table of
//! the process.

use crate::ranges::{Runs, add_run, run_bytes, without};
use crate::snapshot::{Area, AreaKind, CopiedRegion};
use memhook_process::mappings;
use nix::unistd::{Whence, lseek};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Maximum amount that is searched. Memory beyond that is only reported, because a database can
/// share many gigabytes.
const MAX_BYTES: u64 = 256 << 20;
const PAGE_BYTES: u64 = 4096;

/// Adds to the regions the shared pages that the process has never touched. They are read from the
/// file behind the memory, so that the page tables of the process do not change. Returns the areas
/// that are incomplete. Only root can open such files (proc_pid_map_files(5)). For other users, the
/// result is limited to pages that the process itself has touched.
pub fn add_untouched(pid: i32, areas: &[Area], regions: &mut [CopiedRegion]) -> Vec<Area> {
    let mut left_out = Vec::new();
    let mut left = MAX_BYTES;
    let shared = |a: &&Area| a.kind == AreaKind::Shared;
    if !areas.iter().any(|a| shared(&a)) {
        return left_out;
    }
    let offsets = mappings(pid).unwrap_or_default();
    for area in areas.iter().filter(shared) {
        let same = |m: &&memhook_process::Mapping| (m.start, m.end) == (area.start, area.end);
        let Some(mapping) = offsets.iter().find(same) else {
            continue;
        };
        let path = format!("/proc/{pid}/map_files/{:x}-{:x}", area.start, area.end);
        let Ok(file) = File::open(path) else {
            continue;
        };
        let after = regions.partition_point(|r| r.start <= area.start);
        let Some(region) = after.checked_sub(1).and_then(|i| regions.get_mut(i)) else {
            continue;
        };
        let new = data(&file, mapping.offset, area, region);
        let bytes = run_bytes(&new);
        if bytes > left {
            left_out.push(area.clone());
            continue;
        }
        left -= bytes;
        for Range {
            start: from,
            end: to,
        } in new
        {
            let place = (from - region.start) as usize..(to - region.start) as usize;
            let at = mapping.offset + (from - area.start);
            if let Some(place) = region.bytes.get_mut(place)
                && file.read_exact_at(place, at).is_ok()
            {
                add_run(&mut region.runs, from..to);
            }
        }
    }
    left_out
}

/// Returns the addresses at which the file has contents and the region has none.
fn data(file: &File, offset: u64, area: &Area, region: &CopiedRegion) -> Runs {
    let mut found = Runs::new();
    let end = offset + (area.end - area.start);
    let mut at = offset;
    while at < end {
        let seek = |from: u64, whence| {
            let place = lseek(file, i64::try_from(from).ok()?, whence).ok()?;
            u64::try_from(place).ok()
        };
        // The call fails with ENXIO if no data follows.
        let Some(start) = seek(at, Whence::SeekData).filter(|&start| start < end) else {
            break;
        };
        let stop = seek(start, Whence::SeekHole).unwrap_or(end).min(end);
        if stop <= start {
            break;
        }
        let address = |place: u64| area.start + (place - offset) / PAGE_BYTES * PAGE_BYTES;
        let to = (address(stop.next_multiple_of(PAGE_BYTES))).min(area.end);
        found.extend(without(address(start), to, &region.runs));
        at = stop;
    }
    found
}
