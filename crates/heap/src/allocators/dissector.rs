//! Interface of allocators whose heaps are dissected, and its rules.
//!
//! 1. **Layouts are recognized by structure.** Libraries are usually stripped, so a dissector searches the writable
//!    data of modules for the allocator's roots. Symbols and debug information may shorten the search, but never
//!    replace the proof.
//! 2. **A block counts only after a proof.** The allocator's structures have to agree with each other first: its own
//!    counts match the blocks found, addresses match alignment and size classes, and no two extents overlap.
//! 3. **A doubt costs blocks, never the truth of the verdict.** If the heap as a whole cannot be proved, it is
//!    [`NotDissected`], with the reason in words, and the search behaves as if the dissector did not exist. If only a
//!    part cannot be proved, because a thread was in the middle of an operation, that part goes into
//!    [`AllocatorHeap::unparsed`] with a finding. Its contents count as reachable, and there is no verdict on them.
//! 4. **Free blocks are distinguished from live ones.** A block in a thread's cache or in a free list is not a block of
//!    the program, and stale pointers in caches are not roots. Memory that the allocator uses for itself is neither
//!    live nor free: it is in [`AllocatorHeap::ranges`], but not among the blocks.
//! 5. **Liveness can be checked again.** Before a block is released, [`AllocatorHeap::live_check`] checks in the
//!    structures of the running process that the block is still live. A heap without such a check is searched, but none
//!    of its blocks are released.
//! 6. **Damaged bytes lead to findings, never to a panic.** Every address is read through the snapshot, and every loop
//!    has a bound.

use super::live_check::LiveCheck;
use crate::blocks::{Segment, SegmentKind};
use crate::glibc::dissect::GlibcHeap;
use crate::glibc::walk::Finding;
use crate::ranges::Runs;
use crate::snapshot::Snapshot;
use serde::Serialize;
use std::ops::Range;
use std::sync::Arc;

/// Reads the heap of one kind of allocator from a snapshot.
pub(crate) trait HeapDissector: Sync {
    /// The allocator's name, as users know it.
    fn name(&self) -> &'static str;

    /// Returns the heap, or `None` if the process does not have this allocator or the allocator has handed out nothing.
    fn dissect(&self, snapshot: &Snapshot) -> Option<Result<AllocatorHeap, NotDissected>>;
}

/// Reason why the heap of an allocator that the process has was not dissected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotDissected {
    /// glibc 2.`minor` is newer than every known version, and has a different layout.
    NewerGlibc {
        /// The minor version.
        minor: u32,
    },
    /// The structures have a known layout but contradict each other. The text is the first contradiction. A snapshot
    /// that caught threads in the middle of a change may show this, while the next one does not.
    Unproved(String),
    /// Any other reason, worded so that it can follow the allocator's name, such as "is older than any that is known".
    Because(String),
}

/// The heap of one allocator.
#[derive(Default)]
pub struct AllocatorHeap {
    /// The allocator's name.
    pub allocator: &'static str,
    /// Version, or range of versions that share the layout; empty if unknown.
    pub version: String,
    /// The live blocks of the program, and no other blocks. They are [`SegmentKind::Sized`] with an arbitrary index.
    /// The real index is set when the heap is added to the other heaps.
    pub segments: Vec<Segment>,
    /// All memory of the allocator: its own data, thread caches, and live and free blocks. Nothing in this memory is a
    /// root.
    pub ranges: Runs,
    /// Parts that were not understood. All words in them count as roots.
    pub unparsed: Runs,
    /// Damage, and contradictions that could not be explained.
    pub findings: Vec<Finding>,
    /// Pieces of the allocator's memory, in address order.
    pub extents: Vec<Extent>,
    /// The allocator's own counts, each with the dissection's count.
    pub counted: Vec<Counted>,
    /// Liveness check for blocks of the running process, if there is one for this allocator.
    pub(crate) live_check: Option<Arc<dyn LiveCheck>>,
    /// Data that only a glibc heap has.
    pub(crate) glibc: Option<Box<GlibcHeap>>,
}

/// Use of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExtentKind {
    /// Regions of one size.
    Slab,
    /// One block.
    Large,
    /// Free pages that the allocator could return to the kernel.
    FreeDirty,
    /// Free address space whose pages the allocator has returned to the kernel.
    FreeClean,
    /// The allocator's own data.
    Metadata,
}

/// A piece of memory that an allocator manages as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Extent {
    /// First address.
    pub start: u64,
    /// Past the last address.
    pub end: u64,
    /// Use of the piece.
    pub kind: ExtentKind,
    /// Size of each region in bytes; 0 if the extent has no regions.
    pub class_bytes: u64,
    /// Regions in use by the program.
    pub live: u32,
    /// Free regions in thread caches.
    pub cached: u32,
    /// Other free regions.
    pub free: u32,
}

impl Extent {
    /// Returns the addresses of the extent.
    pub fn range(&self) -> Range<u64> {
        self.start..self.end
    }
}

/// A count that the allocator keeps, with the dissection's count of the same thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Counted {
    /// The counted quantity, in the allocator's terms.
    pub what: String,
    /// The allocator's count.
    pub allocator: u64,
    /// The dissection's count.
    pub found: u64,
}

/// Upper bound on the size of a segment, because a segment counts its units in 32 bits. Larger segments are split.
const MOST_SEGMENT_BYTES: u64 = 1 << 30;

/// Segments built from extents in address order.
#[derive(Default)]
pub(crate) struct SizedSegments {
    segments: Vec<Segment>,
    /// End of the copied region that contains the last extent.
    region_end: u64,
}

impl SizedSegments {
    /// Adds the blocks (address, bytes) of an extent, which must not begin before the end of the last one. Adds nothing
    /// and returns `false` if the extent was not copied as a whole, or if a block does not fit.
    #[must_use]
    pub fn add_extent(
        &mut self,
        snapshot: &Snapshot,
        extent: Range<u64>,
        blocks: &[(u64, u64)],
    ) -> bool {
        if blocks.is_empty() {
            return true;
        }
        let Some(region) = snapshot.region(extent.start) else {
            return false;
        };
        let last = self.segments.last();
        if extent.end > region.end() || last.is_some_and(|last| extent.start < last.end) {
            return false;
        }
        let joins = last.is_some_and(|last| {
            last.end == extent.start
                && extent.end <= self.region_end
                && extent.end - last.start <= MOST_SEGMENT_BYTES
        });
        if !joins {
            let kind = SegmentKind::Sized(0);
            self.segments
                .push(Segment::new(extent.start, extent.start, kind));
            self.region_end = region.end();
        }
        let Some(segment) = self.segments.last_mut() else {
            return false;
        };
        let fit = blocks
            .iter()
            .all(|&(address, bytes)| segment.push(address, bytes));
        segment.end = extent.end;
        fit
    }

    /// Returns the segments.
    pub fn finish(self) -> Vec<Segment> {
        self.segments
    }
}
