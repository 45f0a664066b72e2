//! The account of resident memory: every resident byte of a process is in one part of the account.

use crate::allocators::AllocatorStatistics;
use crate::capture::residency::Residency;
use crate::dissect::Heap;
use crate::glibc::layout::HEADER_BYTES;
use crate::glibc::walk::Piece;
use crate::graph::types::Types;
use crate::ranges::{Runs, joined};
use crate::resident::arena_use::{self, ArenaUse};
use crate::resident::chunk_list::ChunkList;
use crate::resident::classes::{ClassName, Classes, TracedBlock};
use crate::resident::live_sizes::LiveSizes;
use crate::resident::mappings::Mappings;
use crate::resident::other_heaps;
use crate::resident::pages::{PAGE_BYTES, ResidentPages};
use crate::resident::pins::{PinCount, Pinned};
use crate::resident::stacks::stacks;
use crate::resident::trim::TopLimits;
use crate::resident::zero_pages::zero_bytes;
use crate::snapshot::Snapshot;
use memhook_process::{MemoryUse, memory_use};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

/// A part of the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Live blocks of malloc.
    LiveHeap,
    /// Live blocks from before the attach, as counted by the allocator, in addition to the live
    /// heap of a trace.
    EarlierHeap,
    /// Memory of an allocator beyond the live blocks of a trace: headers, free memory, blocks from
    /// before the attach. Used only where the heap is not dissected.
    RestOfAllocator,
    /// Headers of blocks, and other memory that the allocator needs for itself.
    AllocatorOverhead,
    /// Free memory of the allocator on pages without a live block.
    FreeInAllocator,
    /// Free memory of the allocator on pages that also hold a live block.
    Fragmentation,
    /// Stacks of threads, with their thread-local storage.
    Stacks,
    /// Private memory without a file.
    Mappings,
    /// Private anonymous memory that contains the heap of an allocator other than glibc's.
    ForeignHeap,
    /// Private anonymous memory of a process whose memory was not copied. It may contain heaps.
    NotCopied,
    /// Pages of files.
    Files,
    /// Shared memory without a file on a disk.
    Shared,
    /// Memory of memhook-rs in the process.
    Ourselves,
    /// Memory that none of the other parts explains.
    Unknown,
}

impl Part {
    /// Returns the part's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Part::LiveHeap => "live heap",
            Part::EarlierHeap => "live heap from before the attach",
            Part::RestOfAllocator => "rest of the allocator's memory",
            Part::AllocatorOverhead => "allocator overhead",
            Part::FreeInAllocator => "free inside the allocator",
            Part::Fragmentation => "fragmentation",
            Part::Stacks => "stacks",
            Part::Mappings => "mappings",
            Part::ForeignHeap => "heap of another allocator, and mappings",
            Part::NotCopied => "heap and mappings",
            Part::Files => "file pages",
            Part::Shared => "shared memory",
            Part::Ourselves => "ourselves",
            Part::Unknown => "unknown",
        }
    }
}

/// Resident bytes with a name, such as a mapping or the stack of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The part that the bytes belong to.
    pub part: Part,
    /// The thread, the file, the name of the mapping.
    pub name: String,
    /// Number of resident bytes.
    pub bytes: u64,
}

/// Free pages that an allocator other than glibc's keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherFree {
    /// Name of the allocator.
    pub allocator: &'static str,
    /// Resident bytes of the pages that it could return.
    pub bytes: u64,
    /// True if a trim asks this allocator.
    pub is_trimmed: bool,
}

/// Resident memory of a process at one moment, divided into parts.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Memory counters of the kernel.
    pub memory: MemoryUse,
    /// True if `memory` also counts the bytes that were written, and the bytes that other processes
    /// map.
    pub has_shares: bool,
    /// Bytes by part; they add up to `memory.rss`.
    pub parts: BTreeMap<Part, u64>,
    /// Stacks, mappings and files, the largest first.
    pub holdings: Vec<Holding>,
    /// The arenas of malloc, the main one first.
    pub arenas: Vec<ArenaUse>,
    /// Resident bytes of live chunks that have their own mapping.
    pub mapped_bytes: u64,
    /// Bytes that the allocator which a trim asks would return: glibc's, or one in a library of its
    /// own.
    pub trim_bytes: u64,
    /// True if the process has a heap of another allocator.
    pub has_other_allocator: bool,
    /// Bytes of zero pages inside huge pages. The process has most likely never written these
    /// pages, and without huge pages they would not be resident. `None` if the memory was not
    /// copied.
    pub huge_zero_bytes: Option<u64>,
    /// Memory that each class of blocks pins, largest first. Empty unless the caller asked for
    /// pins.
    pub pins: Vec<(ClassName, Pinned)>,
    /// Free pages of the allocators other than glibc's whose heap was dissected.
    pub other_allocators: Vec<OtherFree>,
    /// The live blocks by size; `None` if no heap was dissected.
    pub live_sizes: Option<LiveSizes>,
    /// Statistics of another allocator, if it could be asked.
    pub allocator: Option<AllocatorStatistics>,
    /// Notes that qualify these figures.
    pub notes: Vec<String>,
}

/// Computes the account of a process. `heap` contains the dissected heaps, and `trimmed` is the name
/// of the allocator that a trim asks, if that is not glibc's. `pins` contains the names of types, if
/// the account is to show which blocks pin which pages. `traced` contains the blocks with known call
/// stacks, by address.
pub fn account<'a>(
    snapshot: Option<&'a Snapshot>,
    heap: Option<&Heap>,
    trimmed: Option<&'static str>,
    residency: &Residency,
    pins: Option<&mut Types<'a>>,
    traced: &[TracedBlock],
) -> Account {
    let resident = ResidentPages::new(residency.pages.clone());
    let mut account = Account::default();
    let mut heap_ranges = Runs::new();
    if let Some((snapshot, heap)) = snapshot.zip(heap) {
        account.add_heap(snapshot, heap, trimmed, &resident, pins, traced);
        heap_ranges.extend(heap.pieces.iter().map(pages_of));
        heap_ranges.extend(heap.mapped.iter().map(|m| m.start()..m.end()));
        let of_others = heap
            .others
            .iter()
            .flat_map(|other| other.ranges.iter().cloned());
        heap_ranges.extend(of_others);
        if !heap.is_whole() {
            let note = "part of the heap could not be parsed, so the parts may be wrong";
            account.notes.push(note.into());
        }
    }
    let mappings = Mappings {
        resident: &residency.pages,
        heap: joined(heap_ranges),
        stacks: snapshot.map(stacks).unwrap_or_default(),
        pid: snapshot.map_or(0, |snapshot| snapshot.meta.pid),
        modules: snapshot.map_or(&[], |snapshot| &snapshot.meta.modules[..]),
        dissected: heap,
        is_copied: snapshot.is_some(),
    };
    mappings.add_to(&mut account, &residency.mappings);
    account.huge_zero_bytes = snapshot.map(|snapshot| zero_bytes(snapshot, &residency.huge));
    account.finish(residency);
    account
}

/// Returns the pages of a piece of an arena. The headers before its first chunk are on the first
/// page.
fn pages_of(piece: &Piece) -> Range<u64> {
    piece.start & !(PAGE_BYTES - 1)..piece.end.next_multiple_of(PAGE_BYTES)
}

impl Account {
    fn add(&mut self, part: Part, bytes: u64) {
        *self.parts.entry(part).or_default() += bytes;
    }

    fn add_heap<'a>(
        &mut self,
        snapshot: &'a Snapshot,
        heap: &Heap,
        trimmed: Option<&'static str>,
        resident: &ResidentPages,
        types: Option<&mut Types<'a>>,
        traced: &[TracedBlock],
    ) {
        let arenas = heap.arenas.iter();
        self.arenas = arenas.map(|arena| ArenaUse::of(arena.address)).collect();
        let counts_pins = types.is_some();
        let mut classes = types.map(|types| Classes::new(snapshot, types, traced));
        let mut class = |address, usable| match &mut classes {
            Some(classes) => classes.of(address, usable),
            None => 0,
        };
        let mut pinned: Vec<Pinned> = Vec::new();
        let limits = TopLimits::of(heap.parameters);
        for piece in &heap.pieces {
            let list = ChunkList::of(snapshot, heap, *piece, &mut class);
            if let Some(arena) = self.arenas.get_mut(piece.arena as usize) {
                arena_use::count(arena, heap, &list, pages_of(piece), resident);
            }
            if !counts_pins {
                continue;
            }
            let classes = list.classes();
            if pinned.len() < classes {
                pinned.resize(classes, Pinned::default());
            }
            PinCount::new(resident, limits, &mut pinned).add(&list);
        }
        for mapped in &heap.mapped {
            let bytes = resident.bytes(&(mapped.start()..mapped.end()));
            let header = resident.bytes(&(mapped.start()..mapped.address + HEADER_BYTES));
            self.mapped_bytes += bytes - header;
            self.add(Part::AllocatorOverhead, header);
            let class = class(mapped.address + HEADER_BYTES, mapped.bytes - HEADER_BYTES) as usize;
            if pinned.len() <= class {
                pinned.resize(class + 1, Pinned::default());
            }
            pinned[class].add_mapped(mapped.bytes - HEADER_BYTES, bytes);
        }
        self.add(Part::LiveHeap, self.mapped_bytes);
        for other in &heap.others {
            let pinned = counts_pins.then_some(&mut pinned);
            let found = other_heaps::count(other, &heap.blocks, resident, &mut class, pinned);
            self.add(Part::LiveHeap, found.live_bytes);
            self.add(Part::AllocatorOverhead, found.overhead_bytes);
            self.add(Part::Fragmentation, found.fragmentation_bytes);
            self.add(Part::FreeInAllocator, found.free_bytes);
            self.other_allocators.push(OtherFree {
                allocator: other.allocator,
                bytes: found.purgeable_bytes,
                is_trimmed: trimmed == Some(other.allocator),
            });
        }
        let asked = self.other_allocators.iter().filter(|one| one.is_trimmed);
        self.trim_bytes += asked.map(|one| one.bytes).sum::<u64>();
        self.has_other_allocator |= !heap.others.is_empty();
        self.live_sizes = Some(LiveSizes::of(heap, traced));
        for arena in self.arenas.clone() {
            self.add(Part::LiveHeap, arena.live_bytes);
            self.add(Part::AllocatorOverhead, arena.overhead_bytes);
            self.add(Part::Fragmentation, arena.fragmentation_bytes);
            let free = arena.free_bytes() - arena.fragmentation_bytes;
            self.add(Part::FreeInAllocator, free);
            if trimmed.is_none() {
                self.trim_bytes += arena.trim_bytes;
            }
        }
        if let Some(classes) = classes {
            self.pins = classes.names().into_iter().zip(pinned).collect();
            self.pins.retain(|(_, pinned)| pinned.pinned_bytes > 0);
            self.pins.sort_by_key(|(name, pinned)| {
                (
                    Reverse(pinned.pinned_bytes),
                    Reverse(pinned.own_bytes),
                    name.name.clone(),
                    name.traced,
                )
            });
        }
    }

    /// Asks the kernel which bytes the process wrote and which bytes other processes map, if that
    /// is not known yet. To answer, the kernel inspects each page.
    pub(crate) fn ask_for_shares(&mut self, pid: i32) {
        if self.has_shares {
            return;
        }
        if let Ok(found) = memory_use(pid) {
            self.memory.pss = found.pss;
            self.memory.private_dirty = found.private_dirty;
            self.has_shares = true;
        }
    }

    pub(crate) fn finish(&mut self, residency: &Residency) {
        self.memory = residency.memory;
        self.has_shares = residency.has_shares;
        self.has_other_allocator |= self.parts.contains_key(&Part::ForeignHeap);
        let known: u64 = self.parts.values().sum();
        // The process keeps running, so its pages are counted a moment after the kernel's sum was
        // read.
        self.memory.rss = self.memory.rss.max(known);
        self.add(Part::Unknown, self.memory.rss.saturating_sub(known));
        self.holdings
            .sort_by_key(|holding| (Reverse(holding.bytes), holding.name.clone()));
        if !residency.is_of_snapshot && !self.arenas.is_empty() {
            let note = "the pages were counted after the memory was copied, while the process kept running";
            self.notes.push(note.into());
        }
    }
}
