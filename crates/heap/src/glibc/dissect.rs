//! Finds the blocks of glibc's heap in a snapshot.

use crate::allocators::dissector::{AllocatorHeap, HeapDissector, NotDissected};
use crate::blocks::{Segment, SegmentKind};
use crate::glibc::arenas::{self, Arena, Parameters, brk_starts};
use crate::glibc::free_lists::{self, FreeLists, Kept};
use crate::glibc::layout::{ALIGNMENT, FLAGS, HEAP_SIZES, Layout, NEWEST};
use crate::glibc::live::Live;
use crate::glibc::mmapped::{self, Mmapped};
use crate::glibc::walk::{Counts, Finding, Piece, find_start, walk};
use crate::ranges::{Runs, add_run, intersection, joined, without};
use crate::snapshot::{AreaKind, ModuleInfo, Snapshot};
use serde::Serialize;
use std::collections::BTreeSet;
use std::ops::Range;

/// One arena, walked.
#[derive(Clone, Debug, Serialize)]
pub struct ArenaReport {
    /// Address of its `malloc_state`.
    pub address: u64,
    /// Bytes that the arena got from the system.
    pub system_bytes: u64,
    /// Ranges walked.
    pub heaps: u32,
    /// Chunk counts of the arena.
    pub counts: Counts,
    /// Number of free chunks in the bins, counted along their lists.
    pub binned_chunks: u64,
    /// Bytes of these chunks.
    pub binned_bytes: u64,
    /// True if a thread held its lock.
    pub locked: bool,
}

/// Parts of a heap that only glibc's has.
pub(crate) struct GlibcHeap {
    /// glibc 2.`minor`.
    pub minor: u32,
    /// The arenas, the main one first.
    pub arenas: Vec<ArenaReport>,
    /// User addresses of the thread caches.
    pub caches: Vec<u64>,
    /// The values of `mp_`, if it was found.
    pub parameters: Option<Parameters>,
    /// Number of chunks that have their own mapping, and the bytes of these mappings.
    pub mmapped: (u64, u64),
    /// True if the chunks found are exactly the chunks that `mp_` counts.
    pub mmapped_exact: bool,
    /// The chunks that have their own mapping.
    pub mapped: Vec<Mmapped>,
    /// The ranges of the arenas, in address order.
    pub pieces: Vec<Piece>,
    /// Chunks in thread caches and fast lists, sorted.
    pub kept: Vec<(u64, Kept)>,
    /// Tests whether a block of the running process is in a thread cache or a fast list.
    pub live: Live,
}

/// Dissects the heap of glibc's malloc.
pub(crate) struct Glibc;

impl HeapDissector for Glibc {
    fn name(&self) -> &'static str {
        "glibc's malloc"
    }

    /// Finds and walks the heap. The heap of an unknown version is accepted only if every part of
    /// it fits a known layout.
    fn dissect(&self, snapshot: &Snapshot) -> Option<Result<AllocatorHeap, NotDissected>> {
        let libc = snapshot.libc()?;
        let minor = libc.glibc_minor.unwrap_or(0);
        if Layout::candidates(minor).next().is_none() {
            return Some(Err(NotDissected::Because(format!(
                "is that of glibc 2.{minor}, which is older than any that scan knows (2.26 to 2.{NEWEST})"
            ))));
        }
        let is_known = minor <= NEWEST;
        let mut found: Option<Bare> = None;
        for layout in Layout::candidates(minor) {
            let Some(bare) = Bare::find(snapshot, layout, libc) else {
                continue;
            };
            if bare.is_sound() {
                found = Some(bare);
                break;
            }
            // Without a thread cache, no other layout is more likely than that of the version
            // itself.
            found = found.filter(|first| first.broken.is_none()).or(Some(bare));
        }
        let unknown = NotDissected::NewerGlibc { minor };
        let Some(bare) = found else {
            // If another allocator serves the program, glibc's malloc has no blocks.
            let mut modules = snapshot.meta.modules.iter();
            let is_served = modules.any(|m| m.allocator.is_some());
            return (!is_served && !is_known).then_some(Err(unknown));
        };
        let was_sound = bare.is_sound();
        let heap = bare.walked(snapshot, libc, minor);
        tracing::debug!(
            pid = snapshot.meta.pid,
            glibc = minor,
            findings = heap.findings.len(),
            "the heap of glibc's malloc is dissected"
        );
        let is_whole = heap.findings.is_empty()
            && heap.glibc.as_ref().is_some_and(|parts| parts.mmapped_exact);
        let is_believed = is_known || was_sound && is_whole;
        Some(if is_believed { Ok(heap) } else { Err(unknown) })
    }
}

/// Finds heaps of other copies of glibc, which libraries in other namespaces have (dlmopen(3)).
/// They are not walked, because mapped blocks of two copies cannot be distinguished.
pub(crate) struct OtherGlibc;

impl HeapDissector for OtherGlibc {
    fn name(&self) -> &'static str {
        Glibc.name()
    }

    fn dissect(&self, snapshot: &Snapshot) -> Option<Result<AllocatorHeap, NotDissected>> {
        let own = snapshot.libc()?.base;
        let has_heap = |libc: &&ModuleInfo| {
            let mut layouts = Layout::candidates(libc.glibc_minor.unwrap_or(0));
            layouts.any(|layout| {
                let main = arenas::find_main(snapshot, &layout, libc);
                main.is_some_and(|main| !main.is_unused(&layout))
            })
        };
        let others = snapshot.libcs().filter(|libc| libc.base != own);
        let names: Vec<String> = others
            .filter(has_heap)
            .map(|libc| format!("{} at {:#x}", libc.path, libc.start))
            .collect();
        let reason = format!(
            "also serves libraries in a namespace of their own, from a heap that is not read ({})",
            names.join(", ")
        );
        (!names.is_empty()).then_some(Err(NotDissected::Because(reason)))
    }
}

/// A heap as its allocator's lists describe it, before the walk.
struct Bare {
    layout: Layout,
    arenas: Vec<Arena>,
    /// Place where the list of arenas is broken.
    broken: Option<String>,
    lists: FreeLists,
}

impl Bare {
    fn find(snapshot: &Snapshot, layout: Layout, libc: &ModuleInfo) -> Option<Bare> {
        let main = arenas::find_main(snapshot, &layout, libc)?;
        let (arenas, broken) = arenas::all(snapshot, &layout, main);
        let lists = free_lists::read(snapshot, &layout, &arenas);
        Some(Bare {
            layout,
            arenas,
            broken,
            lists,
        })
    }

    /// Returns true if the layout is consistent: the arenas form a ring, and threads have caches.
    fn is_sound(&self) -> bool {
        self.broken.is_none() && !self.lists.caches.is_empty()
    }

    fn walked(self, snapshot: &Snapshot, libc: &ModuleInfo, minor: u32) -> AllocatorHeap {
        let Bare {
            layout,
            arenas,
            broken,
            lists,
        } = self;
        let parameters = arenas::find_parameters(snapshot, &layout, libc, &brk_starts(snapshot));
        let mut building = Building {
            snapshot,
            layout,
            lists,
            segments: Vec::new(),
            findings: Vec::new(),
            unparsed: Runs::new(),
            ranges: Runs::new(),
            pieces: Vec::new(),
        };
        // The bins are not roots. They point to free chunks, whose first word still belongs to the
        // previous block.
        let state = arenas[0].address;
        add_run(&mut building.ranges, state..state + layout.arena_bytes());
        if let Some(what) = broken {
            building.find(arenas[0].address, what);
        }
        let mut reports = Vec::new();
        for (index, arena) in arenas.iter().enumerate() {
            reports.push(building.arena(index as u32, arena, parameters));
        }
        for (address, what) in std::mem::take(&mut building.lists.damaged) {
            building.find(address, what);
        }
        let mut found = mmapped::find(snapshot, &layout, &building.ranges);
        if let Some(parameters) = parameters {
            found = mmapped::without_lookalikes(found, &layout, parameters);
        }
        let bytes = found.iter().map(|m| m.mapped_bytes()).sum();
        let mmapped = (found.len() as u64, bytes);
        let exact = parameters.is_some_and(|p| p.agree_with(&layout, mmapped));
        for chunk in &found {
            let mut segment = Segment::new(
                chunk.address,
                chunk.end(),
                SegmentKind::Mapped {
                    tight: chunk.foot == 0,
                },
            );
            if segment.push(chunk.address + 16, chunk.bytes) {
                building.segments.push(segment);
                add_run(&mut building.ranges, chunk.start()..chunk.end());
            } else {
                let what = format!(
                    "a block of {:#x} bytes is too large to be searched",
                    chunk.bytes
                );
                building.find(chunk.address, what);
            }
        }
        building.pieces.sort_unstable_by_key(|piece| piece.start);
        AllocatorHeap {
            allocator: Glibc.name(),
            version: format!("2.{minor}"),
            segments: building.segments,
            ranges: building.ranges,
            unparsed: building.unparsed,
            findings: building.findings,
            glibc: Some(Box::new(GlibcHeap {
                minor,
                arenas: reports,
                caches: building.lists.caches,
                parameters,
                mmapped,
                mmapped_exact: exact,
                mapped: found,
                pieces: building.pieces,
                kept: building.lists.chunks,
                live: Live {
                    layout,
                    arenas: arenas.iter().map(|arena| arena.address).collect(),
                    cache_distance: building.lists.cache_distance,
                },
            })),
            ..AllocatorHeap::default()
        }
    }
}

impl AllocatorHeap {
    /// Drops chunks that look as if they had their own mapping but are in memory of other
    /// allocators. `claimed` is sorted.
    pub(crate) fn leave_to_others(&mut self, claimed: &[Range<u64>]) {
        let Some(parts) = &mut self.glibc else {
            return;
        };
        let is_claimed = |range: Range<u64>| !intersection(&[range], claimed).is_empty();
        let dropped = parts.mapped.iter().map(|m| m.start()..m.end());
        let dropped: Runs = dropped.filter(|range| is_claimed(range.clone())).collect();
        if dropped.is_empty() {
            return;
        }
        parts.mapped.retain(|m| !is_claimed(m.start()..m.end()));
        let bytes = parts.mapped.iter().map(|m| m.mapped_bytes()).sum();
        parts.mmapped = (parts.mapped.len() as u64, bytes);
        let layout = &parts.live.layout;
        let agrees = |p: Parameters| p.agree_with(layout, parts.mmapped);
        parts.mmapped_exact = parts.parameters.is_some_and(agrees);
        let is_mapped = |s: &Segment| matches!(s.kind, SegmentKind::Mapped { .. });
        self.segments
            .retain(|s| !is_mapped(s) || !is_claimed(s.start..s.end));
        let dropped = joined(dropped);
        let ranges = self.ranges.iter();
        self.ranges = ranges
            .flat_map(|r| without(r.start, r.end, &dropped))
            .collect();
    }
}

struct Building<'a> {
    snapshot: &'a Snapshot,
    layout: Layout,
    lists: FreeLists,
    segments: Vec<Segment>,
    findings: Vec<Finding>,
    unparsed: Runs,
    ranges: Runs,
    pieces: Vec<Piece>,
}

impl Building<'_> {
    fn find(&mut self, address: u64, what: String) {
        self.findings.push(Finding { address, what });
    }

    fn arena(&mut self, index: u32, arena: &Arena, parameters: Option<Parameters>) -> ArenaReport {
        let most = free_lists::most_chunks(self.snapshot);
        let (chunks, bytes, damaged) = free_lists::binned(self.snapshot, &self.layout, arena, most);
        for (address, what) in damaged {
            self.find(address, what);
        }
        let mut report = ArenaReport {
            address: arena.address,
            system_bytes: arena.system_bytes,
            heaps: 0,
            counts: Counts::default(),
            binned_chunks: chunks,
            binned_bytes: bytes,
            locked: arena.locked,
        };
        let pieces = if index == 0 {
            self.main_pieces(arena, parameters)
        } else {
            self.heap_pieces(index, arena)
        };
        let mut walked_bytes = 0;
        for piece in pieces {
            let walked = walk(self.snapshot, piece, &self.lists.chunks, &[]);
            self.pieces.push(piece);
            walked_bytes += piece.end - piece.start;
            add_run(&mut self.ranges, piece.start..piece.end);
            self.findings.extend(walked.findings);
            for run in walked.unparsed {
                add_run(&mut self.unparsed, run);
            }
            self.segments.extend(walked.segments);
            report.heaps += 1;
            add(&mut report.counts, &walked.counts);
        }
        let (has, says) = (walked_bytes, arena.system_bytes);
        // The system bytes of an arena other than the main one include its headers (heap_info,
        // malloc_state).
        let slack = if index == 0 {
            16
        } else {
            4096 * u64::from(report.heaps)
        };
        if !arena.is_unused(&self.layout) && has + slack < says {
            let what = format!("{} bytes of the arena's {says} were not found", says - has);
            self.find(arena.address, what);
        }
        report
    }

    /// Returns the pieces of the main arena: the memory from brk, and, if brk failed, the mapping
    /// that contains its top.
    fn main_pieces(&mut self, arena: &Arena, parameters: Option<Parameters>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if arena.is_unused(&self.layout) {
            return pieces;
        }
        let snapshot = self.snapshot;
        let size = snapshot.word(arena.top.wrapping_add(8)).unwrap_or(0) & !FLAGS;
        let top_end = arena.top.saturating_add(size);
        let first = snapshot.meta.areas.iter().find(|a| a.kind == AreaKind::Brk);
        let brk = match (parameters.map(|p| p.brk_start).filter(|&s| s != 0), first) {
            (Some(start), _) => Some(start),
            (None, Some(area)) => Some(area.start),
            _ => None,
        };
        let in_brk = |a: u64| snapshot.area(a).is_some_and(|x| x.kind == AreaKind::Brk);
        if let Some(start) = brk.filter(|&start| in_brk(start)) {
            let start = start.next_multiple_of(ALIGNMENT);
            let mut end = start;
            while let Some(area) = snapshot.area(end).filter(|a| a.kind == AreaKind::Brk) {
                end = area.end;
            }
            let has_top = arena.top >= start && arena.top < end;
            pieces.push(Piece {
                start,
                end: if has_top { top_end.min(end) } else { end },
                top: has_top.then_some(arena.top),
                arena: 0,
            });
            if has_top {
                return pieces;
            }
        }
        // If brk fails, the arena continues in mappings (MMAP_AS_MORECORE_SIZE; `sysmalloc` of
        // malloc.c).
        let start = snapshot
            .area(arena.top)
            .and_then(|area| find_start(snapshot, area.start, arena.top, 0));
        match start {
            Some(start) => pieces.push(Piece {
                start,
                end: top_end,
                top: Some(arena.top),
                arena: 0,
            }),
            None => self.find(
                arena.top,
                "no chunk leads to the top of the main arena".into(),
            ),
        }
        pieces
    }

    /// Returns the heaps of another arena, from the heap with the top back to the first heap, which
    /// contains the `malloc_state` (arena.c, `heap_info`: ar_ptr, prev, size).
    fn heap_pieces(&mut self, index: u32, arena: &Arena) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut seen = BTreeSet::new();
        let begins = |most: u64| arena.top & !(most - 1);
        // An earlier heap of this arena may lie within the range of a larger heap.
        let is_its = |&most: &u64| {
            let size = self.snapshot.word(begins(most) + 16);
            self.snapshot.word(begins(most)) == Some(arena.address)
                && size.is_some_and(|size| arena.top - begins(most) < size)
        };
        let most = HEAP_SIZES.into_iter().find(is_its).unwrap_or(HEAP_SIZES[0]);
        let mut heap = begins(most);
        loop {
            let word = |offset| self.snapshot.word(heap.wrapping_add(offset));
            let (Some(owner), Some(before), Some(size)) = (word(0), word(8), word(16)) else {
                self.find(
                    heap,
                    format!("heap of the arena at {:#x}: not mapped", arena.address),
                );
                return pieces;
            };
            let sound = owner == arena.address && size <= most && size % 4096 == 0;
            // If a heap appears twice, the list is circular.
            if !sound || !seen.insert(heap) {
                let what = format!("no heap of the arena at {:#x}", arena.address);
                self.find(heap, what);
                return pieces;
            }
            let header = heap + self.layout.heap_info;
            let is_first = header == arena.address;
            let start = if is_first {
                header + self.layout.arena_bytes()
            } else {
                header
            };
            add_run(&mut self.ranges, heap..heap + size);
            let has_top = arena.top >= heap && arena.top < heap + size;
            pieces.push(Piece {
                start: start.next_multiple_of(ALIGNMENT),
                end: heap + size,
                top: has_top.then_some(arena.top),
                arena: index,
            });
            if is_first {
                return pieces;
            }
            heap = before;
        }
    }
}

fn add(to: &mut Counts, more: &Counts) {
    to.used_chunks += more.used_chunks;
    to.used_bytes += more.used_bytes;
    to.free_chunks += more.free_chunks;
    to.free_bytes += more.free_bytes;
    to.cached_chunks += more.cached_chunks;
    to.cached_bytes += more.cached_bytes;
    to.fast_chunks += more.fast_chunks;
    to.fast_bytes += more.fast_bytes;
    to.top_bytes += more.top_bytes;
    to.largest_free = to.largest_free.max(more.largest_free);
}
