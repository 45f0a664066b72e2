//! mimalloc, either as a library or linked into the program.
//!
//! Version 3 has a map of all its pages ([`page_map`]). The memory of version 2 is in segments that begin at multiples
//! of 32 MiB ([`segments`]). The header of a segment contains the segment's address, mixed with a per-process secret
//! that is also in the allocator's data. Where both match, there is a segment. A segment has pages of blocks of one
//! size, and a page has three lists of free blocks ([`lists`]). Links between them are consistent at any moment. A
//! thread in the middle of malloc or free therefore leaves at most a counter that is off by one, and a block that is
//! only in a register.

mod layout;
mod lists;
mod live;
mod page_map;
#[cfg(test)]
mod page_map_tests;
mod segments;

use crate::allocators::dissector::{
    AllocatorHeap, Counted, Extent, ExtentKind, HeapDissector, NotDissected, SizedSegments,
};
use crate::allocators::live_check::LiveCheck;
use crate::glibc::walk::Finding;
use crate::ranges::{Runs, joined};
use crate::snapshot::{Snapshot, words};
use layout::{LAYOUTS, Layout};
use lists::{Listed, delayed};
use live::{Live, LiveByMap};
use page_map::{MAP_LAYOUTS, MapLayout, PageMap, Part};
use rustc_hash::{FxHashMap, FxHashSet};
use segments::{Page, SEGMENT_BYTES, Segment};
use std::ops::Range;
use std::sync::Arc;

/// Name of the allocator, also used by other parts of memhook-rs.
const NAME: &str = "mimalloc";
/// Share (1/n) of the pages that the program may have damaged.
const PAGES_PER_DAMAGED: usize = 8;

/// mimalloc.
pub(crate) struct Mimalloc;

impl HeapDissector for Mimalloc {
    fn name(&self) -> &'static str {
        NAME
    }

    fn dissect(&self, snapshot: &Snapshot) -> Option<Result<AllocatorHeap, NotDissected>> {
        // The program's free blocks may look like a page map, too.
        let mut wrong_map = None;
        for map in PageMap::candidates(snapshot) {
            match with_map(snapshot, &map) {
                Ok(heap) => return Some(Ok(heap)),
                Err(reason) => wrong_map = wrong_map.or(Some(reason)),
            }
        }
        let candidates = candidates(snapshot);
        let mut secrets = FxHashMap::default();
        let mut nearest: Option<Dissection> = None;
        for layout in &LAYOUTS {
            let Some(secret) = most_frequent_secret(snapshot, layout, &candidates) else {
                continue;
            };
            let is_known = *secrets
                .entry(secret)
                .or_insert_with(|| is_in_data(snapshot, secret));
            if !is_known {
                continue;
            }
            let found = Dissection::of(snapshot, layout, secret, &candidates);
            if found.damage().is_none() {
                return Some(Ok(found.finish()));
            }
            let is_nearer = |other: &Dissection| found.unclear < other.unclear;
            if nearest.as_ref().is_none_or(is_nearer) {
                nearest = Some(found);
            }
        }
        if let Some(reason) = nearest.and_then(|found| found.damage()) {
            return Some(Err(reason));
        }
        let mut modules = snapshot.meta.modules.iter();
        let is_there = modules.any(|m| m.allocator.as_deref() == Some(NAME));
        let nothing = "has neither a page map nor a segment with a known layout";
        match wrong_map {
            Some(reason @ NotDissected::Unproved(_)) => Some(Err(reason)),
            _ if !is_there => None,
            Some(reason) => Some(Err(reason)),
            None => Some(Err(NotDissected::Because(nothing.into()))),
        }
    }
}

/// Dissects a heap that has a map of its pages.
fn with_map(snapshot: &Snapshot, map: &PageMap) -> Result<AllocatorHeap, NotDissected> {
    let mut nearest: Option<Dissection> = None;
    for layout in &MAP_LAYOUTS {
        let found = Dissection::of_map(snapshot, layout, map);
        if found.damage().is_none() {
            return Ok(found.finish());
        }
        // With the layout of another release, there may be no page at all, and so no contradiction.
        let is_nearer = |other: &Dissection| found.unclear < other.unclear;
        if found.pages > 0 && nearest.as_ref().is_none_or(is_nearer) {
            nearest = Some(found);
        }
    }
    let reason = nearest.and_then(|found| found.damage());
    Err(reason.unwrap_or_else(|| NotDissected::Because("has an unknown layout".to_owned())))
}

/// Returns the addresses at which segments may begin. Only copied memory is considered, because a core file may claim
/// to contain terabytes.
fn candidates(snapshot: &Snapshot) -> Vec<u64> {
    let regions = snapshot.regions.iter();
    regions
        .flat_map(|region| {
            let first = region.start.checked_next_multiple_of(SEGMENT_BYTES);
            (first.unwrap_or(u64::MAX)..region.end()).step_by(SEGMENT_BYTES as usize)
        })
        .collect()
}

/// Returns the secret of most sound headers.
fn most_frequent_secret(snapshot: &Snapshot, layout: &Layout, candidates: &[u64]) -> Option<u64> {
    let mut counts: FxHashMap<u64, u32> = FxHashMap::default();
    for &address in candidates {
        if Segment::at(snapshot, layout, address).is_some()
            && let Some(secret) = Segment::secret(snapshot, layout, address)
        {
            *counts.entry(secret).or_default() += 1;
        }
    }
    let most = counts.into_iter().max_by_key(|&(_, count)| count);
    most.map(|(secret, _)| secret)
}

/// Returns true if the data of a module contains this word, the `cookie` of the first heap, which is a static variable.
fn is_in_data(snapshot: &Snapshot, secret: u64) -> bool {
    let data = snapshot.meta.modules.iter().flat_map(|m| &m.data);
    let mut copied = data.filter_map(|range| {
        let region = snapshot.region(range.start)?;
        let end = range.end.min(region.end());
        snapshot.bytes(range.start, end.checked_sub(range.start)?)
    });
    copied.any(|bytes| words(bytes).any(|word| word == secret))
}

/// A partly dissected heap.
struct Dissection<'a> {
    snapshot: &'a Snapshot,
    layout: &'a Layout,
    /// Check for live blocks of the running process.
    live_check: Option<Arc<dyn LiveCheck>>,
    segments: SizedSegments,
    ranges: Runs,
    unparsed: Runs,
    findings: Vec<Finding>,
    extents: Vec<Extent>,
    pages: usize,
    /// Number of pages and segments that contradict each other.
    unclear: usize,
    /// Number of pages whose block count is off by one.
    off_by_one: usize,
    /// Number of blocks in use according to the pages, and the number found.
    used: (u64, u64),
    /// Number of pages in use according to the segments, and the number found.
    counted_pages: (u64, u64),
}

impl<'a> Dissection<'a> {
    fn new(snapshot: &'a Snapshot, layout: &'a Layout) -> Dissection<'a> {
        Dissection {
            snapshot,
            layout,
            live_check: None,
            segments: SizedSegments::default(),
            ranges: Runs::new(),
            unparsed: Runs::new(),
            findings: Vec::new(),
            extents: Vec::new(),
            pages: 0,
            unclear: 0,
            off_by_one: 0,
            used: (0, 0),
            counted_pages: (0, 0),
        }
    }

    fn of(
        snapshot: &'a Snapshot,
        layout: &'a Layout,
        secret: u64,
        candidates: &[u64],
    ) -> Dissection<'a> {
        let mut found = Dissection::new(snapshot, layout);
        found.live_check = Some(Arc::new(Live {
            layout: *layout,
            secret,
        }));
        let mut pages = Vec::new();
        let mut end = 0;
        for &address in candidates {
            if address < end || Segment::secret(snapshot, layout, address) != Some(secret) {
                continue;
            }
            let Some(segment) = Segment::at(snapshot, layout, address) else {
                end = address + SEGMENT_BYTES;
                found.ranges.push(address..end);
                found.leave(address..end, "the header of a segment is damaged");
                continue;
            };
            end = segment.end;
            found.take(&segment, &mut pages);
        }
        let (delayed, broken) = delayed(snapshot, layout, &pages);
        for heap in broken {
            found.find(
                heap,
                "the list of blocks that other threads released is broken",
            );
        }
        found.take_pages(&pages, &delayed);
        found
    }

    fn of_map(snapshot: &'a Snapshot, layout: &'a MapLayout, map: &PageMap) -> Dissection<'a> {
        let mut found = Dissection::new(snapshot, &layout.lists);
        found.live_check = Some(Arc::new(LiveByMap {
            layout: *layout,
            entries: map.entries(),
        }));
        let mapped = map.read(snapshot, layout);
        found.ranges.extend(mapped.ranges);
        for part in mapped.parts {
            match part {
                Part::Own(range) => found.extent(range, ExtentKind::Metadata),
                Part::Free(range) => found.extent(range, ExtentKind::FreeDirty),
            }
        }
        for (range, what) in mapped.damaged {
            found.leave(range, what);
        }
        found.take_pages(&mapped.pages, &FxHashSet::default());
        found
    }

    fn take_pages(&mut self, pages: &[Page], delayed: &FxHashSet<u64>) {
        self.pages = pages.len();
        for page in pages {
            match page.listed(self.snapshot, self.layout, delayed) {
                Ok(listed) => self.take_page(page, &listed),
                Err(what) => self.leave(page.range.clone(), what),
            }
        }
    }

    fn find(&mut self, address: u64, what: &str) {
        self.unclear += 1;
        self.findings.push(Finding {
            address,
            what: what.to_owned(),
        });
    }

    /// Marks a range as unparsed.
    fn leave(&mut self, range: Range<u64>, what: &str) {
        self.find(range.start, what);
        self.unparsed.push(range);
    }

    fn extent(&mut self, range: Range<u64>, kind: ExtentKind) {
        self.extents.push(Extent {
            start: range.start,
            end: range.end,
            kind,
            class_bytes: 0,
            live: 0,
            cached: 0,
            free: 0,
        });
    }

    fn take(&mut self, segment: &Segment, pages: &mut Vec<Page>) {
        self.ranges.push(segment.address..segment.end);
        self.extent(segment.address..segment.info_end, ExtentKind::Metadata);
        let mut free = Runs::new();
        let mut used = 0;
        let mut damaged = Vec::new();
        let walked = segment.walk(
            self.snapshot,
            self.layout,
            |page| {
                used += 1;
                match page {
                    Ok(page) => pages.push(page),
                    Err(range) => damaged.push(range),
                }
            },
            |range| free.push(range),
        );
        for range in free {
            self.extent(range, ExtentKind::FreeDirty);
        }
        for (range, what) in damaged {
            self.leave(range, what);
        }
        if let Err(from) = walked {
            self.leave(
                from..segment.end,
                "the table of a segment's pages is broken",
            );
        } else if used != segment.used {
            let what = format!("{used} pages of {} of a segment were found", segment.used);
            self.find(segment.address, &what);
        }
        self.counted_pages.0 += segment.used;
        self.counted_pages.1 += used;
    }

    fn take_page(&mut self, page: &Page, listed: &Listed) {
        let count = listed.live.len() as u64 + listed.released;
        let difference = page.used.abs_diff(count);
        if difference > 1 {
            let what = "a page does not have as many blocks in use as it counts";
            self.leave(page.range.clone(), what);
            return;
        }
        self.off_by_one += difference as usize;
        self.used.0 += page.used;
        self.used.1 += count;
        let is_added = self
            .segments
            .add_extent(self.snapshot, page.range.clone(), &listed.live);
        if !is_added {
            self.leave(page.range.clone(), "a block is too large to be searched");
            return;
        }
        self.extents.push(Extent {
            start: page.range.start,
            end: page.range.end,
            kind: if page.capacity == 1 {
                ExtentKind::Large
            } else {
                ExtentKind::Slab
            },
            class_bytes: page.block_bytes,
            live: listed.live.len() as u32,
            cached: 0,
            free: (listed.free + listed.released) as u32,
        });
    }

    /// Returns the damage that cannot be explained by threads in the middle of an operation or by a few damaged pages.
    fn damage(&self) -> Option<NotDissected> {
        let threads = self.snapshot.meta.threads.len().max(1);
        let most = threads + self.pages / PAGES_PER_DAMAGED;
        let first = self.findings.first();
        if self.unclear > most {
            let (address, what) = first.map_or((0, ""), |f| (f.address, f.what.as_str()));
            return Some(NotDissected::Unproved(format!(
                "{what} ({address:#x}); {} such faults in all",
                self.unclear
            )));
        }
        if self.pages == 0 {
            let reason = "has no page with a known layout";
            return Some(NotDissected::Because(reason.to_owned()));
        }
        (self.off_by_one > threads).then(|| {
            NotDissected::Unproved(format!(
                "{} pages do not have as many blocks in use as they count",
                self.off_by_one
            ))
        })
    }

    fn finish(mut self) -> AllocatorHeap {
        self.extents.sort_unstable_by_key(|extent| extent.start);
        let counted = |what: &str, (allocator, found)| Counted {
            what: what.to_owned(),
            allocator,
            found,
        };
        let mut counted = vec![counted("blocks in use (mi_page_t.used)", self.used)];
        // Only segments have this count.
        if self.counted_pages != (0, 0) {
            let (allocator, found) = self.counted_pages;
            let what = "pages in use (mi_segment_t.used)".to_owned();
            counted.push(Counted {
                what,
                allocator,
                found,
            });
        }
        let secure = if self.layout.keys.is_some() {
            ", secure"
        } else {
            ""
        };
        AllocatorHeap {
            allocator: NAME,
            version: format!("{}{secure}", self.layout.versions),
            segments: self.segments.finish(),
            ranges: joined(self.ranges),
            unparsed: joined(self.unparsed),
            findings: self.findings,
            extents: self.extents,
            counted,
            live_check: self.live_check,
            ..AllocatorHeap::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tables of a damaged core file may claim any area.
    #[test]
    fn segments_are_looked_for_in_copied_memory() {
        let at = 5 * SEGMENT_BYTES;
        let mut snapshot = crate::testing::snapshot(vec![(at, vec![0; 4096])]);
        (snapshot.meta.areas[0].start, snapshot.meta.areas[0].end) = (0, u64::MAX);
        assert_eq!(candidates(&snapshot), [at]);
        let highest = crate::testing::snapshot(vec![(u64::MAX - 4095, vec![0; 4095])]);
        assert_eq!(candidates(&highest), [0; 0]);
    }
}
