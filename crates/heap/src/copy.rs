//! Copying memory of a running process by page ranges.

use crate::snapshot::{Area, Region};
use memhook_inject::prefer_huge_pages;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::fs::File;
use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;

const PAGE_BYTES: u64 = 4096;
/// From this size on a region gets huge pages, if most of it will be filled.
const HUGE_BYTES: u64 = 8 << 20;
/// The kernel takes at most this many pieces in one call (UIO_MAXIOV).
const PIECES: usize = 1024;

/// Ascending address ranges.
pub type Runs = Vec<(u64, u64)>;

/// Bytes of ranges.
pub fn run_bytes(runs: &[(u64, u64)]) -> u64 {
    runs.iter().map(|(start, end)| end - start).sum()
}

/// Reads ranges one behind the other into `into`, which must be as long as all of them. A page
/// that can't be read stays as it was, and is added to `failed`.
fn read_runs(pid: i32, runs: &[(u64, u64)], into: &mut [u8], failed: &mut Runs) {
    let mut rest = into;
    for batch in runs.chunks(PIECES) {
        let bytes = run_bytes(batch) as usize;
        let Some((now, later)) = std::mem::take(&mut rest).split_at_mut_checked(bytes) else {
            return;
        };
        rest = later;
        let remote: Vec<RemoteIoVec> = batch
            .iter()
            .map(|&(start, end)| RemoteIoVec {
                base: start as usize,
                len: (end - start) as usize,
            })
            .collect();
        let read = process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(now)], &remote);
        if read != Ok(bytes) {
            read_pages(pid, batch, now, failed);
        }
    }
}

/// As [`read_runs`], page by page; those without read permission through /proc/PID/mem, which
/// ignores it.
fn read_pages(pid: i32, runs: &[(u64, u64)], into: &mut [u8], failed: &mut Runs) {
    let mem = File::open(format!("/proc/{pid}/mem")).ok();
    let pages = runs
        .iter()
        .flat_map(|&(start, end)| (start..end).step_by(PAGE_BYTES as usize));
    for (page, bytes) in pages.zip(into.chunks_mut(PAGE_BYTES as usize)) {
        let remote = [RemoteIoVec {
            base: page as usize,
            len: bytes.len(),
        }];
        let all = Ok(bytes.len());
        let read = process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(bytes)], &remote);
        let read_all = read == all
            || mem
                .as_ref()
                .is_some_and(|mem| mem.read_exact_at(bytes, page).is_ok());
        if !read_all {
            add_run(failed, (page, page + PAGE_BYTES));
        }
    }
}

/// Empty regions for the areas: neighbours share one.
pub fn regions_for(areas: &[Area]) -> Vec<Region> {
    let mut spans: Runs = Vec::new();
    for area in areas {
        match spans.last_mut() {
            Some(last) if last.1 == area.start => last.1 = area.end,
            _ => spans.push((area.start, area.end)),
        }
    }
    spans
        .into_iter()
        .map(|(start, end)| Region {
            start,
            // Pages of ours only where something is written.
            bytes: vec![0; (end - start) as usize],
            runs: Vec::new(),
        })
        .collect()
}

/// Copies ranges of the target straight into the regions that hold them; pages that can't be read
/// are added to `failed`.
pub fn copy_into(pid: i32, runs: &[(u64, u64)], regions: &mut [Region], failed: &mut Runs) {
    for region in regions {
        let (start, end) = (region.start, region.end());
        let first = runs.partition_point(|r| r.1 <= start);
        let inside = runs[first..].iter().take_while(|r| r.0 < end);
        let bytes: u64 = inside.clone().map(|r| r.1.min(end) - r.0.max(start)).sum();
        if bytes >= HUGE_BYTES && bytes >= (end - start) / 2 {
            prefer_huge_pages(&mut region.bytes);
        }
        for &(from, to) in inside {
            let (from, to) = (from.max(start), to.min(end));
            let slice = &mut region.bytes[(from - start) as usize..(to - start) as usize];
            read_runs(pid, &[(from, to)], slice, failed);
            add_run(&mut region.runs, (from, to));
        }
    }
}

/// Adds a range to a sorted list, joining what touches.
pub fn add_run(runs: &mut Runs, run: (u64, u64)) {
    let first = runs.partition_point(|r| r.1 < run.0);
    let last = runs.partition_point(|r| r.0 <= run.1);
    if first >= last {
        runs.insert(first, run);
        return;
    }
    let joined = (runs[first].0.min(run.0), runs[last - 1].1.max(run.1));
    runs[first] = joined;
    runs.drain(first + 1..last);
}

/// Ranges read at one moment, to be laid over older copies later.
pub struct Patch {
    runs: Runs,
    bytes: Vec<u8>,
}

impl Patch {
    /// Reads the ranges now; pages that can't be read are added to `failed`.
    pub fn read(pid: i32, runs: Runs, failed: &mut Runs) -> Patch {
        let mut bytes = vec![0; run_bytes(&runs) as usize];
        read_runs(pid, &runs, &mut bytes, failed);
        Patch { runs, bytes }
    }

    /// Bytes read.
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Writes them into the regions.
    pub fn apply(&self, regions: &mut [Region]) {
        let mut at = 0;
        for &(from, to) in &self.runs {
            let bytes = &self.bytes[at..at + (to - from) as usize];
            at += bytes.len();
            let after = regions.partition_point(|r| r.start <= from);
            let Some(region) = after.checked_sub(1).and_then(|i| regions.get_mut(i)) else {
                continue;
            };
            let offset = (from - region.start) as usize;
            if let Some(place) = region.bytes.get_mut(offset..offset + bytes.len()) {
                place.copy_from_slice(bytes);
                add_run(&mut region.runs, (from, to));
            }
        }
    }
}

/// Takes off what a region holds from an address on.
fn cut(region: &mut Region, end: u64) -> Region {
    let place = |at: u64| (at - region.start) as usize;
    let mut rest = Region {
        start: end,
        bytes: vec![0; region.end().saturating_sub(end) as usize],
        runs: Runs::new(),
    };
    for &(from, to) in region.runs.iter().filter(|r| r.1 > end) {
        let from = from.max(end);
        let to_place = (from - end) as usize..(to - end) as usize;
        rest.bytes[to_place].copy_from_slice(&region.bytes[place(from)..place(to)]);
        rest.runs.push((from, to));
    }
    region.runs.retain(|r| r.0 < end);
    if let Some(last) = region.runs.last_mut() {
        last.1 = last.1.min(end);
    }
    rest
}

/// Regions for new areas that take over what older regions held at the same addresses, without
/// copying where a region only grew or shrank at its end.
pub fn relaid(old: Vec<Region>, areas: &[Area]) -> Vec<Region> {
    let mut old = old;
    let mut new = regions_for(areas);
    for region in &mut new {
        if let Some(at) = old.iter().position(|r| r.start == region.start) {
            let mut kept = old.swap_remove(at);
            // What is behind its end now may be in the next region: something between them is gone.
            old.push(cut(&mut kept, region.end()));
            kept.bytes.resize(region.bytes.len(), 0);
            *region = kept;
        }
    }
    for region in &old {
        for &(from, to) in &region.runs {
            // A part may be gone, or in several regions now.
            for place in &mut new {
                let (from, to) = (from.max(place.start), to.min(place.end()));
                if from < to {
                    let (s, d) = (
                        (from - region.start) as usize,
                        (from - place.start) as usize,
                    );
                    let bytes = (to - from) as usize;
                    place.bytes[d..d + bytes].copy_from_slice(&region.bytes[s..s + bytes]);
                    add_run(&mut place.runs, (from, to));
                }
            }
        }
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn area(start: u64, end: u64) -> Area {
        Area {
            start,
            end,
            kind: crate::snapshot::AreaKind::Anonymous,
            name: String::new(),
        }
    }

    proptest! {
        /// Whatever is unmapped and mapped between two looks: what is at the same place is kept.
        #[test]
        fn memory_is_laid_over_new_mappings(
            before in prop::collection::vec(any::<bool>(), 12),
            after in prop::collection::vec(any::<bool>(), 12),
        ) {
            let areas = |pages: &[bool]| {
                let mapped = (0u64..).zip(pages).filter(|(_, is_mapped)| **is_mapped);
                mapped.map(|(i, _)| area(i * PAGE_BYTES, (i + 1) * PAGE_BYTES)).collect::<Vec<_>>()
            };
            let mut old = regions_for(&areas(&before));
            for region in &mut old {
                for (page, bytes) in (region.start..).step_by(4096).zip(region.bytes.chunks_mut(4096)) {
                    bytes.fill((page / PAGE_BYTES) as u8 + 1);
                }
                region.runs = vec![(region.start, region.end())];
            }
            let areas = areas(&after);
            let new = relaid(old, &areas);
            prop_assert_eq!(new.len(), regions_for(&areas).len());
            for area in &areas {
                let page = area.start / PAGE_BYTES;
                let region = new.iter().find(|r| r.start <= area.start && area.end <= r.end()).unwrap();
                let is_kept = before[page as usize];
                let expected = if is_kept { page as u8 + 1 } else { 0 };
                prop_assert_eq!(region.bytes[(area.start - region.start) as usize], expected);
                let has_run = region.runs.iter().any(|r| r.0 <= area.start && area.end <= r.1);
                prop_assert_eq!(has_run, is_kept);
            }
        }
    }

    #[test]
    fn runs_join() {
        let mut runs = Runs::new();
        for run in [(10, 20), (30, 40), (20, 25), (0, 5), (24, 31), (50, 60)] {
            add_run(&mut runs, run);
        }
        assert_eq!(runs, [(0, 5), (10, 40), (50, 60)]);
    }
}
