//! From a snapshot to the blocks of its heap.

use crate::Error;
use crate::blocks::{BlockTable, Segment, SegmentKind};
use crate::glibc::arenas::{self, Arena, Parameters};
use crate::glibc::free_lists::{self, FreeLists, Kept};
use crate::glibc::layout::{ALIGNMENT, FLAGS, HEAP_MAX_BYTES, Layout, NEWEST};
use crate::glibc::mmapped::{self, Mmapped};
use crate::glibc::walk::{Counts, Finding, Piece, find_start, walk};
use crate::ranges::{Runs, add_run};
use crate::snapshot::{AreaKind, MUSL, ModuleInfo, Snapshot};
use serde::Serialize;
use std::collections::BTreeSet;

/// One arena, walked.
#[derive(Clone, Debug, Serialize)]
pub struct ArenaReport {
    /// Address of its `malloc_state`.
    pub address: u64,
    /// Bytes it got from the system.
    pub system_bytes: u64,
    /// Ranges walked.
    pub heaps: u32,
    /// What is in it.
    pub counts: Counts,
    /// Free chunks in its bins, by following the lists.
    pub binned_chunks: u64,
    /// Their bytes.
    pub binned_bytes: u64,
    /// A thread held its lock.
    pub locked: bool,
}

/// A dissected heap.
pub struct Heap {
    /// glibc 2.`minor`.
    pub glibc_minor: u32,
    /// The arenas, the main one first.
    pub arenas: Vec<ArenaReport>,
    /// The blocks in use.
    pub blocks: BlockTable,
    /// Damage, and what could not be explained.
    pub findings: Vec<Finding>,
    /// Parts of the heap that could not be walked.
    pub unparsed: Runs,
    /// All memory of the allocator.
    pub ranges: Runs,
    /// User addresses of the thread caches.
    pub caches: Vec<u64>,
    /// What `mp_` says, if it was found.
    pub parameters: Option<Parameters>,
    /// Chunks that are mappings of their own: count and bytes of the mappings.
    pub mmapped: (u64, u64),
    /// They are exactly those that `mp_` counts.
    pub mmapped_exact: bool,
    /// The chunks that are mappings of their own.
    pub(crate) mapped: Vec<Mmapped>,
    /// The ranges of the arenas, in address order.
    pub(crate) pieces: Vec<Piece>,
    /// Chunks in thread caches and fast lists, sorted.
    pub(crate) kept: Vec<(u64, Kept)>,
}

impl Heap {
    /// The heap of a process without one of glibc's.
    pub fn empty() -> Heap {
        Heap {
            glibc_minor: 0,
            arenas: Vec::new(),
            blocks: BlockTable::default(),
            findings: Vec::new(),
            unparsed: Runs::new(),
            ranges: Runs::new(),
            caches: Vec::new(),
            parameters: None,
            mmapped: (0, 0),
            mmapped_exact: true,
            mapped: Vec::new(),
            pieces: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// Whether everything parsed and agrees with the allocator's own figures.
    pub fn is_whole(&self) -> bool {
        self.findings.is_empty() && self.mmapped_exact
    }
}

/// Finds and walks the heap of glibc's malloc. The heap of a version that is not known is believed only if
/// everything in it fits one of the known layouts.
pub fn dissect(snapshot: &Snapshot) -> Result<Heap, Error> {
    let none = |reason: String| Error::NoHeap {
        pid: snapshot.meta.pid,
        reason,
    };
    let is_musls = |m: &ModuleInfo| m.allocator.as_deref() == Some(MUSL);
    let libc = snapshot.libc().ok_or_else(|| {
        if snapshot.meta.modules.iter().any(is_musls) {
            Error::HeapOfMusl {
                pid: snapshot.meta.pid,
            }
        } else {
            none("no glibc in it, so no heap that scan knows".into())
        }
    })?;
    let minor = libc.glibc_minor.unwrap_or(0);
    if Layout::candidates(minor).next().is_none() {
        return Err(none(format!(
            "glibc 2.{minor} is older than any that scan knows (2.26 to 2.{NEWEST})"
        )));
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
        // Without a thread cache, the layout of its own version is as good as any other.
        found = found.filter(|first| first.broken.is_none()).or(Some(bare));
    }
    let unknown = || Error::UnknownLayout {
        pid: snapshot.meta.pid,
        minor,
    };
    let bare = found.ok_or_else(|| {
        let mut modules = snapshot.meta.modules.iter();
        match modules.find_map(|m| m.allocator.as_ref()) {
            Some(other) => none(format!(
                "its blocks are of {other}, which scan does not know"
            )),
            None if !is_known => unknown(),
            None => none("its C library has no heap yet (no arena found in libc's data)".into()),
        }
    })?;
    let was_sound = bare.is_sound();
    let heap = bare.walked(snapshot, libc, minor);
    tracing::debug!(
        pid = snapshot.meta.pid,
        glibc = minor,
        arenas = heap.arenas.len(),
        findings = heap.findings.len(),
        "the heap is dissected"
    );
    if is_known || was_sound && heap.is_whole() {
        Ok(heap)
    } else {
        Err(unknown())
    }
}

/// A heap by the allocator's own lists, before it is walked.
struct Bare {
    layout: Layout,
    arenas: Vec<Arena>,
    /// Where the list of arenas is broken.
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

    /// Whether it is laid out as expected: the arenas are a ring, and threads have caches.
    fn is_sound(&self) -> bool {
        self.broken.is_none() && !self.lists.caches.is_empty()
    }

    fn walked(self, snapshot: &Snapshot, libc: &ModuleInfo, minor: u32) -> Heap {
        let Bare {
            layout,
            arenas,
            broken,
            lists,
        } = self;
        let parameters = arenas::find_parameters(snapshot, &layout, libc);
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
        // Its bins point to free chunks, whose first word is still of the block before: no roots.
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
        let found = mmapped::find(snapshot, &layout, &building.ranges);
        let bytes = found.iter().map(|m| m.mapped_bytes()).sum();
        let mmapped = (found.len() as u64, bytes);
        let exact = parameters.is_some_and(|p| (p.mmapped_chunks, p.mmapped_bytes) == mmapped);
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
        Heap {
            glibc_minor: minor,
            arenas: reports,
            blocks: BlockTable::new(building.segments),
            findings: building.findings,
            unparsed: building.unparsed,
            ranges: building.ranges,
            caches: building.lists.caches,
            parameters,
            mmapped,
            mmapped_exact: exact,
            mapped: found,
            pieces: building.pieces,
            kept: building.lists.chunks,
        }
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
        let (chunks, bytes, damaged) = free_lists::binned(self.snapshot, &self.layout, arena);
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
            let walked = walk(self.snapshot, piece, &self.lists.chunks);
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
        // The system's bytes of another arena include its headers (heap_info, malloc_state).
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

    /// The pieces of the main arena: what brk gave, and, if that failed, the mapping that holds its top.
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
        // malloc.c, sysmalloc: if brk fails, the arena goes on in mappings (MMAP_AS_MORECORE_SIZE).
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

    /// The heaps of another arena, from the one with the top back to the first, which holds the
    /// `malloc_state` (arena.c, `heap_info`: ar_ptr, prev, size).
    fn heap_pieces(&mut self, index: u32, arena: &Arena) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut seen = BTreeSet::new();
        let mut heap = arena.top & !(HEAP_MAX_BYTES - 1);
        loop {
            let word = |offset| self.snapshot.word(heap.wrapping_add(offset));
            let (Some(owner), Some(before), Some(size)) = (word(0), word(8), word(16)) else {
                self.find(
                    heap,
                    format!("heap of the arena at {:#x}: not mapped", arena.address),
                );
                return pieces;
            };
            let sound = owner == arena.address && size <= HEAP_MAX_BYTES && size % 4096 == 0;
            // A heap that is met again means that the list is a ring.
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
