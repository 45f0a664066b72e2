//! Interface of allocators whose heaps are dissected, and its rules.
//!
//! 1. **Layouts are told from structure.** A stripped library is the rule, so a dissector searches the writable
//!    data of modules for the allocator's roots. Symbols and debug information may shorten the search, and never
//!    replace the proof.
//! 2. **Proved, then believed.** Before a block counts, the allocator's structures have to agree with each other:
//!    its own counts with what was found, addresses with alignment and size classes, and no two extents overlap.
//! 3. **A doubt costs the block, never the verdict's truth.** If the heap as a whole does not prove itself, it is
//!    [`NotDissected`], with the reason in words, and everything is as if the dissector did not exist. If a part of
//!    it does not, because a thread was in the middle of an operation, that part goes into
//!    [`AllocatorHeap::unparsed`] with a finding: what it holds is reachable then, and there is no verdict.
//! 4. **Free is told apart from live.** A block in a thread's cache or in a list of the allocator is no block of
//!    the program, and stale pointers in caches are no roots. What the allocator has allocated for itself is
//!    neither: it is in [`AllocatorHeap::ranges`], and not among the blocks.
//! 5. **Live can be asked again.** Before a block is released, [`AllocatorHeap::live_check`] says by the structures of
//!    the running process whether it is still live. A heap without one is searched, and nothing of it is released.
//! 6. **Damaged bytes lead to findings, never to a panic.** Every address is read through the snapshot, every loop
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

/// Reads the heap of one kind of allocator out of a snapshot.
pub(crate) trait HeapDissector: Sync {
    /// The allocator's name, as users know it.
    fn name(&self) -> &'static str;

    /// The heap. `None`: the process has no such allocator, or that has handed out nothing.
    fn dissect(&self, snapshot: &Snapshot) -> Option<Result<AllocatorHeap, NotDissected>>;
}

/// Reason why the heap of a present allocator was not dissected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotDissected {
    /// glibc 2.`minor` is newer than any known one, and laid out differently.
    NewerGlibc {
        /// The version.
        minor: u32,
    },
    /// Its structures are of a known version and contradict each other: the first contradiction. A snapshot that caught
    /// threads in the middle of a change may show this, and the next one not.
    Unproved(String),
    /// Anything else, in words that follow the allocator's name: "is older than any that is known".
    Because(String),
}

/// The heap of one allocator.
#[derive(Default)]
pub struct AllocatorHeap {
    /// The allocator's name.
    pub allocator: &'static str,
    /// Version, or the range of versions that have its layout; empty if not known.
    pub version: String,
    /// The blocks of the program that are live, and no others. They are [`SegmentKind::Sized`] with any index, which
    /// is replaced when the heap joins others.
    pub segments: Vec<Segment>,
    /// All memory of the allocator: its own data, thread caches, live and free blocks. Nothing in it is a root.
    pub ranges: Runs,
    /// Parts of it that were not understood: all of what they hold counts as roots.
    pub unparsed: Runs,
    /// Damage, and what could not be explained.
    pub findings: Vec<Finding>,
    /// Pieces of its memory, in address order.
    pub extents: Vec<Extent>,
    /// The allocator's counters beside what was found.
    pub counted: Vec<Counted>,
    /// Check whether blocks of the running process are still live, if there is one.
    pub(crate) live_check: Option<Arc<dyn LiveCheck>>,
    /// Data that only glibc's heap has.
    pub(crate) glibc: Option<Box<GlibcHeap>>,
}

/// Use of a piece of an allocator's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExtentKind {
    /// Regions of one size.
    Slab,
    /// One block.
    Large,
    /// Free pages that the allocator could give back.
    FreeDirty,
    /// Free address space whose pages it has given back.
    FreeClean,
    /// The allocator's own data.
    Metadata,
}

/// A piece of an allocator's memory that it manages as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Extent {
    /// First address.
    pub start: u64,
    /// Past the last address.
    pub end: u64,
    /// Use of the piece.
    pub kind: ExtentKind,
    /// Bytes of each of its regions; 0 if it has none.
    pub class_bytes: u64,
    /// Regions that the program has.
    pub live: u32,
    /// Free regions in threads' caches.
    pub cached: u32,
    /// Other free regions.
    pub free: u32,
}

impl Extent {
    /// Its addresses.
    pub fn range(&self) -> Range<u64> {
        self.start..self.end
    }
}

/// A count that the allocator keeps, beside the dissection's own count of the same thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Counted {
    /// Quantity that is counted, in the allocator's terms.
    pub what: String,
    /// By the allocator.
    pub allocator: u64,
    /// By the dissection.
    pub found: u64,
}

/// Larger segments than this are split: a segment counts its units in 32 bits.
const MOST_SEGMENT_BYTES: u64 = 1 << 30;

/// Segments made of extents in address order.
#[derive(Default)]
pub(crate) struct SizedSegments {
    segments: Vec<Segment>,
    /// The end of the copied region that the last one lies in.
    region_end: u64,
}

impl SizedSegments {
    /// Adds the blocks (address, bytes) of an extent that begins where the last one ended, or later. Returns whether
    /// all of it was copied and all of them fit: then they are added.
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

    /// The segments.
    pub fn finish(self) -> Vec<Segment> {
        self.segments
    }
}
