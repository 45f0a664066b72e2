//! Copying memory of a running process by page ranges.

use crate::Error;
use crate::ranges::{Runs, add_run, intersection, joined, run_bytes, without};
pub use crate::snapshot::{Area, CopiedRegion};
use crate::snapshot::{Backing, USER_ADDRESSES, words};
use memhook_inject::prefer_huge_pages;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::fs::File;
use std::io::IoSliceMut;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::slice::from_ref;
use std::time::Instant;

const PAGE_BYTES: u64 = 4096;
/// Minimum size of a region that gets huge pages, if most of it will be filled.
const HUGE_BYTES: u64 = 8 << 20;
/// Maximum number of pieces in one call (UIO_MAXIOV).
const PIECES: usize = 1024;
/// Number of bytes to read in one call, small enough to check the time often.
const BATCH_BYTES: u64 = 4 << 20;

/// Splits ranges into batches for one system call each, small enough to check the time between
/// them.
struct Batches<'a> {
    runs: &'a [Range<u64>],
    /// Address at which the next batch begins.
    at: u64,
}

impl<'a> Batches<'a> {
    fn of(runs: &'a [Range<u64>]) -> Batches<'a> {
        let at = runs.first().map_or(0, |r| r.start);
        Batches { runs, at }
    }
}

impl Iterator for Batches<'_> {
    type Item = Runs;

    fn next(&mut self) -> Option<Runs> {
        let mut batch = Runs::new();
        let mut left = BATCH_BYTES;
        while let Some(&Range { end, .. }) = self.runs.first()
            && batch.len() < PIECES
            && left > 0
        {
            let to = end.min(self.at.saturating_add(left));
            if to > self.at {
                batch.push(self.at..to);
                left -= to - self.at;
            }
            self.at = to;
            if to >= end {
                self.runs = &self.runs[1..];
                self.at = self.runs.first().map_or(0, |r| r.start);
            }
        }
        (!batch.is_empty()).then_some(batch)
    }
}

/// Reads ranges into `into`, one after the other. `into` must be as long as the sum of their
/// lengths. Pages that cannot be read keep their old contents there, and are added to `failed`.
/// Returns `false` if the time limit `until` passed first.
fn read_runs(
    pid: i32,
    runs: &[Range<u64>],
    into: &mut [u8],
    failed: &mut Runs,
    until: Option<Instant>,
) -> bool {
    let mut rest = into;
    for batch in Batches::of(runs) {
        if until.is_some_and(|until| Instant::now() >= until) {
            return false;
        }
        let bytes = run_bytes(&batch) as usize;
        let Some((now, later)) = std::mem::take(&mut rest).split_at_mut_checked(bytes) else {
            return true;
        };
        rest = later;
        let remote: Vec<RemoteIoVec> = batch
            .iter()
            .map(|&Range { start, end }| RemoteIoVec {
                base: start as usize,
                len: (end - start) as usize,
            })
            .collect();
        let read = process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(now)], &remote);
        if read != Ok(bytes) {
            read_pages(pid, &batch, now, failed);
        }
    }
    true
}

/// Like [`read_runs`], page by page. Pages without read permission are read through /proc/PID/mem,
/// which ignores page permissions.
fn read_pages(pid: i32, runs: &[Range<u64>], into: &mut [u8], failed: &mut Runs) {
    let mem = File::open(format!("/proc/{pid}/mem")).ok();
    let pages = runs
        .iter()
        .flat_map(|run| run.clone().step_by(PAGE_BYTES as usize));
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
            add_run(failed, page..page + PAGE_BYTES);
        }
    }
}

/// Returns empty regions for the areas. Adjacent areas share a region.
pub fn regions_for(pid: i32, areas: &[Area]) -> Result<Vec<CopiedRegion>, Error> {
    let mut spans: Runs = Vec::new();
    for area in areas {
        match spans.last_mut() {
            Some(last) if last.end == area.start => last.end = area.end,
            _ => spans.push(area.start..area.end),
        }
    }
    spans
        .into_iter()
        .map(|span| empty_region(pid, span.start, span.end))
        .collect()
}

fn empty_region(pid: i32, start: u64, end: u64) -> Result<CopiedRegion, Error> {
    let bytes = end.saturating_sub(start);
    match usize::try_from(bytes).ok().and_then(Backing::zeroed) {
        Some(backing) => Ok(CopiedRegion {
            start,
            bytes: backing,
            runs: Runs::new(),
        }),
        None => Err(Error::NoSpace { pid, bytes }),
    }
}

/// Copies ranges of the target directly into the regions that contain them. Pages that cannot be
/// read are added to `failed`. Returns `false` if the time limit `until` passed first.
pub fn copy_into(
    pid: i32,
    runs: &[Range<u64>],
    regions: &mut [CopiedRegion],
    failed: &mut Runs,
    until: Option<Instant>,
) -> bool {
    for region in regions {
        let (start, end) = (region.start, region.end());
        let first = runs.partition_point(|r| r.end <= start);
        let inside = runs[first..].iter().take_while(|r| r.start < end);
        let bytes: u64 = inside
            .clone()
            .map(|r| r.end.min(end) - r.start.max(start))
            .sum();
        if bytes >= HUGE_BYTES && bytes >= (end - start) / 2 {
            prefer_huge_pages(&mut region.bytes);
        }
        for run in inside {
            let part = run.start.max(start)..run.end.min(end);
            let slice =
                &mut region.bytes[(part.start - start) as usize..(part.end - start) as usize];
            if !read_runs(pid, from_ref(&part), slice, failed, until) {
                return false;
            }
            add_run(&mut region.runs, part);
        }
    }
    true
}

/// Returns the bytes of ranges that no region has yet.
pub fn added_bytes(runs: &[Range<u64>], regions: &[CopiedRegion]) -> u64 {
    let parts = runs.iter().map(
        |&Range {
             start: from,
             end: to,
         }| {
            let first = regions.partition_point(|r| r.end() <= from);
            let inside = regions[first..].iter().take_while(|r| r.start < to);
            let new = inside.map(|region| {
                let (from, to) = (from.max(region.start), to.min(region.end()));
                run_bytes(&without(from, to, &region.runs))
            });
            new.sum::<u64>()
        },
    );
    parts.sum()
}

/// Ranges read at one moment, to be written over older copies later.
pub struct Patch {
    runs: Runs,
    /// The bytes; longer than the part in use.
    bytes: Vec<u8>,
}

impl Patch {
    /// Returns an empty patch with space for `bytes` bytes. The memory is allocated now, because
    /// that takes time and must not happen while threads are held.
    pub fn with_room(bytes: u64) -> Patch {
        let mut patch = Patch {
            runs: Runs::new(),
            bytes: Vec::new(),
        };
        let _ = patch.make_room(bytes);
        patch
    }

    fn make_room(&mut self, bytes: u64) -> bool {
        let Ok(bytes) = usize::try_from(bytes) else {
            return false;
        };
        let more = bytes.saturating_sub(self.bytes.len());
        let has_room = self.bytes.try_reserve_exact(more).is_ok();
        if has_room && more > 0 {
            self.bytes.resize(bytes, 0);
        }
        has_room
    }

    /// Reads the ranges now. Pages that cannot be read are added to `failed`. Returns `false` if
    /// there is no space for the ranges, or if the time limit `until` passed first.
    pub fn read(
        &mut self,
        pid: i32,
        runs: &[Range<u64>],
        failed: &mut Runs,
        until: Option<Instant>,
    ) -> bool {
        let bytes = run_bytes(runs);
        self.runs.clear();
        if !self.make_room(bytes) {
            return false;
        }
        self.runs.extend_from_slice(runs);
        let place = &mut self.bytes[..bytes as usize];
        read_runs(pid, runs, place, failed, until)
    }

    /// Returns the number of bytes read.
    pub fn len(&self) -> u64 {
        run_bytes(&self.runs)
    }

    /// Writes the ranges into the regions.
    pub fn apply(&self, regions: &mut [CopiedRegion]) {
        let mut at = 0;
        for &Range {
            start: from,
            end: to,
        } in &self.runs
        {
            let bytes = &self.bytes[at..at + (to - from) as usize];
            at += bytes.len();
            let after = regions.partition_point(|r| r.start <= from);
            let Some(region) = after.checked_sub(1).and_then(|i| regions.get_mut(i)) else {
                continue;
            };
            let offset = (from - region.start) as usize;
            if let Some(place) = region.bytes.get_mut(offset..offset + bytes.len()) {
                place.copy_from_slice(bytes);
                add_run(&mut region.runs, from..to);
            }
        }
    }
}

/// Pages that have changed since they were copied.
#[derive(Default)]
pub struct Changes {
    /// The pages.
    pub pages: Runs,
    /// Words that these ranges contain now and did not contain when they were copied, if the words
    /// may be addresses.
    pub words: Vec<u64>,
}

/// Compares the copies of these ranges, given in address order, with the current contents of the
/// memory.
pub fn changes(pid: i32, runs: &[Range<u64>], regions: &[CopiedRegion]) -> Changes {
    let mut found = Changes::default();
    let mut room = vec![0; BATCH_BYTES.min(run_bytes(runs)) as usize];
    let mut failed = Runs::new();
    for batch in Batches::of(runs) {
        let now = &mut room[..run_bytes(&batch) as usize];
        read_runs(pid, &batch, now, &mut failed, None);
        let pages = batch
            .into_iter()
            .flat_map(|run| run.step_by(PAGE_BYTES as usize));
        for (page, now) in pages.zip(now.chunks(PAGE_BYTES as usize)) {
            let then = copied(regions, page).unwrap_or_default();
            if then == now {
                continue;
            }
            add_run(&mut found.pages, page..page + now.len() as u64);
            let then = words(then).map(Some).chain(std::iter::repeat(None));
            let differ = words(now)
                .zip(then)
                .filter(|&(now, then)| then != Some(now));
            let now = differ.map(|(now, _)| now);
            found
                .words
                .extend(now.filter(|word| USER_ADDRESSES.contains(word)));
        }
    }
    found.pages.extend(failed);
    found.pages = joined(std::mem::take(&mut found.pages));
    found
}

/// Returns the copy of a page.
fn copied(regions: &[CopiedRegion], page: u64) -> Option<&[u8]> {
    let after = regions.partition_point(|r| r.start <= page);
    let region = regions.get(after.checked_sub(1)?)?;
    let offset = (page - region.start) as usize;
    region.bytes.get(offset..offset + PAGE_BYTES as usize)
}

/// Drops older copies of these ranges, which are in order.
pub fn forget(regions: &mut [CopiedRegion], ranges: &[Range<u64>]) {
    for region in regions {
        let start = region.start;
        for gone in intersection(&region.runs, ranges) {
            let place = (gone.start - start) as usize..(gone.end - start) as usize;
            region.bytes[place].fill(0);
        }
        let kept = region
            .runs
            .iter()
            .flat_map(|run| without(run.start, run.end, ranges));
        region.runs = kept.collect();
    }
}

/// Takes off what a region holds from an address on.
fn cut(pid: i32, region: &mut CopiedRegion, end: u64) -> Result<CopiedRegion, Error> {
    let place = |at: u64| (at - region.start) as usize;
    let mut rest = empty_region(pid, end, region.end().max(end))?;
    for &Range {
        start: from,
        end: to,
    } in region.runs.iter().filter(|r| r.end > end)
    {
        let from = from.max(end);
        let to_place = (from - end) as usize..(to - end) as usize;
        rest.bytes[to_place].copy_from_slice(&region.bytes[place(from)..place(to)]);
        rest.runs.push(from..to);
    }
    region.runs.retain(|r| r.start < end);
    if let Some(last) = region.runs.last_mut() {
        last.end = last.end.min(end);
    }
    Ok(rest)
}

/// Returns regions for new areas, filled with the contents of older regions at the same addresses.
/// A region that only grew or shrank at its end is not copied.
pub fn relaid(
    pid: i32,
    old: Vec<CopiedRegion>,
    areas: &[Area],
) -> Result<Vec<CopiedRegion>, Error> {
    let mut old = old;
    let mut new = regions_for(pid, areas)?;
    for region in &mut new {
        if let Some(at) = old.iter().position(|r| r.start == region.start) {
            let mut kept = old.swap_remove(at);
            // The memory after the end of this region may now belong to the next region, if a
            // mapping between the two was removed.
            old.push(cut(pid, &mut kept, region.end())?);
            if kept.bytes.resize(region.bytes.len()) {
                *region = kept;
            } else {
                old.push(kept);
            }
        }
    }
    for region in &old {
        for &Range {
            start: from,
            end: to,
        } in &region.runs
        {
            // A part of the region may have been unmapped, or the region may have been split into
            // several.
            for place in &mut new {
                let (from, to) = (from.max(place.start), to.min(place.end()));
                if from < to {
                    let (s, d) = (
                        (from - region.start) as usize,
                        (from - place.start) as usize,
                    );
                    let bytes = (to - from) as usize;
                    place.bytes[d..d + bytes].copy_from_slice(&region.bytes[s..s + bytes]);
                    add_run(&mut place.runs, from..to);
                }
            }
        }
    }
    Ok(new)
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
        /// Memory whose place has not changed is kept, whatever is mapped or unmapped between two
        /// copies.
        #[test]
        fn memory_is_laid_over_new_mappings(
            before in prop::collection::vec(any::<bool>(), 12),
            after in prop::collection::vec(any::<bool>(), 12),
        ) {
            let areas = |pages: &[bool]| {
                let mapped = (0u64..).zip(pages).filter(|(_, is_mapped)| **is_mapped);
                mapped.map(|(i, _)| area(i * PAGE_BYTES, (i + 1) * PAGE_BYTES)).collect::<Vec<_>>()
            };
            let mut old = regions_for(1, &areas(&before)).unwrap();
            for region in &mut old {
                for (page, bytes) in (region.start..).step_by(4096).zip(region.bytes.chunks_mut(4096)) {
                    bytes.fill((page / PAGE_BYTES) as u8 + 1);
                }
                region.runs = vec![region.start..region.end()];
            }
            let areas = areas(&after);
            let new = relaid(1, old, &areas).unwrap();
            prop_assert_eq!(new.len(), regions_for(1, &areas).unwrap().len());
            for area in &areas {
                let page = area.start / PAGE_BYTES;
                let region = new.iter().find(|r| r.start <= area.start && area.end <= r.end()).unwrap();
                let is_kept = before[page as usize];
                let expected = if is_kept { page as u8 + 1 } else { 0 };
                prop_assert_eq!(region.bytes[(area.start - region.start) as usize], expected);
                let has_run = region.runs.iter().any(|r| r.start <= area.start && area.end <= r.end);
                prop_assert_eq!(has_run, is_kept);
            }
        }
    }

    #[test]
    fn older_copies_are_dropped() {
        let mut regions = regions_for(1, &[area(0x1000, 0x5000)]).unwrap();
        regions[0].bytes.fill(7);
        regions[0].runs = vec![0x1000..0x3000, 0x4000..0x5000];
        forget(&mut regions, &[0x2000..0x3000, 0x3000..0x4000]);
        assert_eq!(regions[0].runs, [0x1000..0x2000, 0x4000..0x5000]);
        let pages = regions[0]
            .bytes
            .chunks(4096)
            .map(|page| page.iter().all(|&b| b == 7));
        assert_eq!(pages.collect::<Vec<_>>(), [true, false, true, true]);
    }

    /// The copied memory is this process's own.
    #[test]
    fn pages_that_have_changed_are_found() {
        let pid = std::process::id() as i32;
        let mut source = vec![7u8; 10 << 20];
        let first = (source.as_ptr().addr() as u64).next_multiple_of(PAGE_BYTES);
        let runs = [
            first..first + (5 << 20),
            first + (6 << 20)..first + (8 << 20),
        ];
        let mut regions = regions_for(pid, &[area(first, first + (9 << 20))]).unwrap();
        let mut failed = Runs::new();
        copy_into(pid, &runs, &mut regions, &mut failed, None);
        let unchanged = changes(pid, &runs, &regions);
        assert!(unchanged.pages.is_empty() && unchanged.words.is_empty());
        let at = |offset: usize| (first as usize - source.as_ptr().addr()) + offset;
        let places = [at(3 * 4096 + 8), at(5 << 20), at((7 << 20) + 16)];
        for (place, word) in places.into_iter().zip([0x7fff_1234_5678u64, 1 << 40, 3]) {
            source[place..place + 8].copy_from_slice(&word.to_le_bytes());
        }
        std::hint::black_box(&mut source);
        let found = changes(pid, &runs, &regions);
        let page = |offset: u64| first + offset..first + offset + PAGE_BYTES;
        // The second change is between the ranges, and the third word is not an address.
        assert_eq!(found.pages, [page(3 * 4096), page(7 << 20)]);
        assert_eq!(found.words, [0x7fff_1234_5678]);
        // Pages that are gone have changed.
        let gone = [0x1000..0x3000];
        assert_eq!(changes(pid, &gone, &[]).pages, gone);
    }

    #[test]
    fn long_ranges_are_cut_into_batches() {
        let long = 2 * BATCH_BYTES + 4096;
        let runs = [0x1000..0x2000, 0x10000..0x10000 + long];
        let batches: Vec<Runs> = Batches::of(&runs).collect();
        assert_eq!(batches.len(), 3);
        assert!(batches.iter().all(|b| run_bytes(b) <= BATCH_BYTES));
        let mut again = Runs::new();
        batches
            .concat()
            .into_iter()
            .for_each(|r| add_run(&mut again, r));
        assert_eq!(again, runs);
        let many: Runs = (0..3000).map(|i| i * 8192..i * 8192 + 4096).collect();
        assert_eq!(Batches::of(&many).map(|b| b.len()).max(), Some(PIECES));
    }

    /// The copied memory is this process's own.
    #[test]
    fn a_copy_ends_when_its_time_is_over() {
        let pid = std::process::id() as i32;
        let source = vec![7u8; 3 * BATCH_BYTES as usize];
        let start = (source.as_ptr().addr() as u64).next_multiple_of(PAGE_BYTES);
        let run = start..start + 2 * BATCH_BYTES;
        let mut regions = regions_for(pid, &[area(run.start, run.end)]).unwrap();
        assert_eq!(added_bytes(from_ref(&run), &regions), 2 * BATCH_BYTES);
        let mut failed = Runs::new();
        let now = Some(Instant::now());
        assert!(!copy_into(
            pid,
            from_ref(&run),
            &mut regions,
            &mut failed,
            now
        ));
        assert!(regions[0].runs.is_empty());
        let mut patch = Patch::with_room(2 * BATCH_BYTES);
        assert!(!patch.read(pid, from_ref(&run), &mut failed, now));
        assert!(patch.read(pid, from_ref(&run), &mut failed, None));
        patch.apply(&mut regions);
        assert!(regions[0].bytes.iter().all(|&b| b == 7) && failed.is_empty());
        assert_eq!(added_bytes(from_ref(&run), &regions), 0);
        assert!(
            !patch.read(pid, &[0..1 << 60], &mut failed, None),
            "no such room"
        );
    }
}
