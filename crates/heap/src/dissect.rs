//! Turns a snapshot into the blocks of all its heaps: asks every dissector, and merges the results into one heap.

use crate::Error;
use crate::allocators::dissector::{
    AllocatorHeap, Counted, Extent, ExtentKind, HeapDissector, NotDissected,
};
use crate::allocators::emulated::Emulated;
use crate::allocators::gperftools::Gperftools;
use crate::allocators::jemalloc::Jemalloc;
use crate::allocators::live_check::LiveCheck;
use crate::allocators::mallocng::Mallocng;
use crate::allocators::mimalloc::Mimalloc;
use crate::blocks::{BlockTable, Segment, SegmentKind};
use crate::glibc::arenas::Parameters;
use crate::glibc::dissect::{ArenaReport, Glibc, GlibcHeap, OtherGlibc};
use crate::glibc::free_lists::Kept;
use crate::glibc::live::Live;
use crate::glibc::mmapped::Mmapped;
use crate::glibc::walk::{Finding, Piece, walk};
use crate::ranges::{Runs, intersection, joined};
use crate::snapshot::{MUSL, ModuleInfo, Snapshot};
use serde::Serialize;
use std::sync::Arc;

/// All known dissectors. If two of them claim the same memory, the first one gets it. glibc's dissector
/// is the last, because it needs little evidence to recognize chunks with their own mapping.
const DISSECTORS: [&dyn HeapDissector; 7] = [
    &Jemalloc,
    &Mimalloc,
    &Mallocng,
    &Gperftools,
    &Glibc,
    &OtherGlibc,
    &Emulated,
];

/// The heaps of a process, dissected.
pub struct Heap {
    /// glibc 2.`minor`; 0 if there is no heap of glibc's malloc.
    pub glibc_minor: u32,
    /// The arenas of glibc's malloc, the main one first.
    pub arenas: Vec<ArenaReport>,
    /// The blocks in use, of all allocators.
    pub blocks: BlockTable,
    /// Damage, and memory that no dissector could explain.
    pub findings: Vec<Finding>,
    /// Findings of the previous snapshot, if there was one.
    pub(crate) earlier_findings: Option<Vec<Finding>>,
    /// Parts of the heaps that could not be walked.
    pub unparsed: Runs,
    /// All memory of the allocators.
    pub ranges: Runs,
    /// User addresses of the thread caches of glibc's malloc.
    pub caches: Vec<u64>,
    /// The values of `mp_`, if it was found.
    pub parameters: Option<Parameters>,
    /// Number of chunks that have their own mapping, and the bytes of these mappings.
    pub mmapped: (u64, u64),
    /// True if exactly as many chunks were found as `mp_` counts.
    pub mmapped_exact: bool,
    /// The heaps of other allocators. [`SegmentKind::Sized`] has an index into them.
    pub others: Vec<OtherHeap>,
    /// Allocators that are present and whose heaps are not in `others`.
    pub undissected: Vec<Undissected>,
    /// The chunks that have their own mapping.
    pub(crate) mapped: Vec<Mmapped>,
    /// The ranges of the arenas, in address order.
    pub(crate) pieces: Vec<Piece>,
    /// Chunks in thread caches and fast lists, sorted.
    pub(crate) kept: Vec<(u64, Kept)>,
    /// Tests whether a block of the running process is in a thread cache or a fast list of glibc's malloc.
    pub(crate) live: Option<Arc<Live>>,
}

/// Reason why a part of a heap does not parse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Two consecutive snapshots had this finding.
    Damage,
    /// The finding is not in the previous snapshot, so a thread was changing the heap.
    Change,
    /// There is only one snapshot.
    Unknown,
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Cause::Damage => "damaged",
            Cause::Change => "changed while it was read",
            Cause::Unknown => "damaged, or changed while it was read",
        })
    }
}

/// The heap of an allocator other than glibc's, without its blocks.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OtherHeap {
    /// The allocator's name.
    pub allocator: &'static str,
    /// Version, or the range of versions that have its layout; empty if not known.
    pub version: String,
    /// The extents of its memory, in address order.
    pub extents: Vec<Extent>,
    /// The allocator's own counters, next to the values found.
    pub counted: Vec<Counted>,
    /// All memory of the allocator.
    #[serde(skip)]
    pub ranges: Runs,
    /// Tests whether blocks of the running process are still live; present if the allocator supports such a test.
    #[serde(skip)]
    pub(crate) live_check: Option<Arc<dyn LiveCheck>>,
}

/// An allocator that is present but whose heap was not dissected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undissected {
    /// The allocator's name.
    pub allocator: &'static str,
    /// Reason why it was not dissected.
    pub reason: NotDissected,
}

impl Undissected {
    /// Returns the minor version of a glibc that is newer than all known versions.
    pub fn newer_glibc(&self) -> Option<u32> {
        match self.reason {
            NotDissected::NewerGlibc { minor } => Some(minor),
            NotDissected::Because(_) | NotDissected::Unproved(_) => None,
        }
    }
}

impl OtherHeap {
    /// Returns the bytes of free regions in slabs that are in use, and of free pages that the
    /// allocator keeps.
    pub fn free_bytes(&self) -> (u64, u64) {
        let mut between = 0u64;
        let mut pages = 0u64;
        for extent in &self.extents {
            let regions = u64::from(extent.free) + u64::from(extent.cached);
            between = between.saturating_add(regions.saturating_mul(extent.class_bytes));
            if extent.kind == ExtentKind::FreeDirty {
                pages = pages.saturating_add(extent.end - extent.start);
            }
        }
        (between, pages)
    }
}

impl std::fmt::Display for OtherHeap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.version.as_str() {
            "" => f.write_str(self.allocator),
            version => write!(f, "{} {version}", self.allocator),
        }
    }
}

impl std::fmt::Display for Undissected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.reason {
            NotDissected::NewerGlibc { minor } => {
                write!(f, "the heap of glibc 2.{minor} has an unknown layout")
            }
            NotDissected::Because(why) => write!(f, "{} {why}", self.allocator),
            NotDissected::Unproved(why) => {
                write!(f, "{} has an inconsistent heap: {why}", self.allocator)
            }
        }
    }
}

impl Heap {
    /// Returns the heap of a process without an allocator that can be dissected.
    pub fn empty() -> Heap {
        Heap {
            glibc_minor: 0,
            arenas: Vec::new(),
            blocks: BlockTable::default(),
            findings: Vec::new(),
            earlier_findings: None,
            unparsed: Runs::new(),
            ranges: Runs::new(),
            caches: Vec::new(),
            parameters: None,
            mmapped: (0, 0),
            mmapped_exact: true,
            others: Vec::new(),
            undissected: Vec::new(),
            mapped: Vec::new(),
            pieces: Vec::new(),
            kept: Vec::new(),
            live: None,
        }
    }

    /// Walks the arenas of glibc's malloc again with blocks that are certainly in use, given by ascending user address.
    /// A half-written header can then mislead the walk only up to the next of these blocks. Findings of the first walk
    /// remain.
    pub fn walk_again(&mut self, snapshot: &Snapshot, known: &[u64]) {
        // Blocks of memory pools are inside blocks of malloc.
        let is_of_arena = |&user: &u64| {
            let found = self.blocks.find(user).filter(|found| found.1 == 0);
            found.is_none_or(|(number, _)| self.blocks.segment_of(number).kind.is_arena())
        };
        let known: Vec<u64> = known.iter().copied().filter(is_of_arena).collect();
        let pieces = self.pieces.iter();
        let walked = pieces.flat_map(|&piece| walk(snapshot, piece, &self.kept, &known).segments);
        let arenas = walked.collect();
        let blocks = std::mem::take(&mut self.blocks);
        self.blocks = blocks.with_arenas(arenas);
    }

    /// Returns true if everything parsed and agrees with the allocators' own figures.
    pub fn is_whole(&self) -> bool {
        self.findings.is_empty() && self.mmapped_exact
    }

    /// Returns the reason why something did not parse, as far as one or two snapshots show it.
    pub fn cause_of(&self, finding: &Finding) -> Cause {
        match &self.earlier_findings {
            None => Cause::Unknown,
            Some(earlier) if earlier.contains(finding) => Cause::Damage,
            Some(_) => Cause::Change,
        }
    }

    /// Returns true if two consecutive snapshots found equal damage.
    pub fn is_damaged(&self) -> bool {
        let mut findings = self.findings.iter();
        findings.any(|finding| self.cause_of(finding) == Cause::Damage)
    }

    /// Returns the allocator, other than glibc's, that a module provides or that is linked into it, if the allocator's
    /// heap was dissected.
    pub fn allocator_of(&self, module: &ModuleInfo) -> Option<&'static str> {
        let has_roots = |other: &&OtherHeap| {
            let mut data = module.data.iter();
            data.any(|data| !intersection(&other.ranges, std::slice::from_ref(data)).is_empty())
        };
        let is_named = |other: &&OtherHeap| module.allocator.as_deref() == Some(other.allocator);
        let mut others = self.others.iter();
        let found = others.find(|other| is_named(other) || has_roots(other))?;
        Some(found.allocator)
    }

    /// Returns true if a thread may have been inside one of the allocators without being noticed, because the code of
    /// that allocator cannot be located. This is the case in a stripped program, or in a C library other than glibc.
    pub(crate) fn has_unwatched(&self, snapshot: &Snapshot) -> bool {
        let has_code = |module: &&ModuleInfo| !module.allocator_code.is_empty();
        let is_watched = |other: &OtherHeap| {
            let mut modules = snapshot.meta.modules.iter().filter(has_code);
            // The functions that the allocator calls are known only for a program that also uses glibc.
            snapshot.libc().is_some()
                && modules.any(|module| self.allocator_of(module) == Some(other.allocator))
        };
        !self.others.iter().all(is_watched)
    }

    /// Returns the name of another allocator in the process whose heap was not dissected.
    pub fn unknown_allocator<'a>(&self, modules: &'a [ModuleInfo]) -> Option<&'a str> {
        let mut unknown = modules
            .iter()
            .filter(|module| self.allocator_of(module).is_none());
        unknown.find_map(|module| module.allocator.as_deref())
    }

    fn take_glibc(&mut self, parts: GlibcHeap) {
        self.glibc_minor = parts.minor;
        self.arenas = parts.arenas;
        self.caches = parts.caches;
        self.parameters = parts.parameters;
        self.mmapped = parts.mmapped;
        self.mmapped_exact = parts.mmapped_exact;
        self.mapped = parts.mapped;
        self.pieces = parts.pieces;
        self.kept = parts.kept;
        self.live = Some(Arc::new(parts.live));
    }

    /// Adds the heap of one allocator, and its segments to `segments`. Returns `false` if another allocator already
    /// owns some of its memory.
    fn join(&mut self, mut found: AllocatorHeap, segments: &mut Vec<Segment>) -> bool {
        let claimed = joined(self.ranges.clone());
        found.leave_to_others(&claimed);
        let ranges = joined(found.ranges);
        if !intersection(&claimed, &ranges).is_empty() {
            return false;
        }
        let index = self.others.len() as u32;
        let is_glibcs = found.glibc.is_some();
        segments.extend(found.segments.into_iter().map(|mut segment| {
            if let SegmentKind::Sized(of) = &mut segment.kind {
                *of = index;
            }
            segment
        }));
        self.unparsed.extend(found.unparsed);
        self.findings.extend(found.findings);
        self.ranges.extend(ranges.iter().cloned());
        if let Some(parts) = found.glibc {
            self.take_glibc(*parts);
        }
        if !is_glibcs {
            self.others.push(OtherHeap {
                allocator: found.allocator,
                version: found.version,
                extents: found.extents,
                counted: found.counted,
                ranges,
                live_check: found.live_check,
            });
        }
        true
    }
}

/// Finds and dissects the heaps of a process.
///
/// # Errors
/// Fails if no heap could be dissected.
pub fn dissect(snapshot: &Snapshot) -> Result<Heap, Error> {
    let heap = dissect_all(snapshot);
    if heap.others.is_empty() && heap.live.is_none() {
        return Err(no_heap(snapshot, &heap.undissected));
    }
    Ok(heap)
}

/// Like [`Heap::dissect`], but returns an empty heap if there is none.
pub(crate) fn dissect_all(snapshot: &Snapshot) -> Heap {
    let mut heap = Heap::empty();
    // If the memory of a snapshot changed while it was read, the snapshot never proves damage, however often this
    // happens.
    let earlier = snapshot.meta.earlier.as_ref();
    heap.earlier_findings = match snapshot.meta.changed.is_empty() {
        true => earlier.map(|earlier| earlier.findings.clone()),
        false => Some(Vec::new()),
    };
    let mut segments = Vec::new();
    for dissector in DISSECTORS {
        let allocator = dissector.name();
        let reason = match dissector.dissect(snapshot) {
            None => continue,
            Some(Err(reason)) => reason,
            Some(Ok(found)) => {
                if heap.join(found, &mut segments) {
                    continue;
                }
                NotDissected::Because("seems to have memory of another allocator".into())
            }
        };
        tracing::debug!(pid = snapshot.meta.pid, allocator, ?reason, "not dissected");
        heap.undissected.push(Undissected { allocator, reason });
    }
    heap.ranges = joined(std::mem::take(&mut heap.ranges));
    heap.blocks = BlockTable::new(segments);
    heap
}

/// Returns the reason why no heap could be dissected.
fn no_heap(snapshot: &Snapshot, undissected: &[Undissected]) -> Error {
    let pid = snapshot.meta.pid;
    let none = |reason: String| Error::NoHeap { pid, reason };
    if let Some(undissected) = undissected.first() {
        return match undissected.reason {
            NotDissected::NewerGlibc { minor } => Error::UnknownLayout { pid, minor },
            NotDissected::Because(_) | NotDissected::Unproved(_) => none(undissected.to_string()),
        };
    }
    let mut allocators = snapshot.meta.modules.iter();
    match allocators.find_map(|m| m.allocator.as_deref()) {
        Some(MUSL) => Error::HeapOfMusl { pid },
        Some(_) if snapshot.libc().is_none() => {
            none("it has no glibc, and so no heap that scan knows".into())
        }
        Some(other) => none(format!(
            "its blocks are of {other}, which scan does not know"
        )),
        None if snapshot.libc().is_none() => {
            none("it has no glibc, and so no heap that scan knows".into())
        }
        None => none("its C library has no heap yet (no arena found in libc's data)".into()),
    }
}
