//! Takes a snapshot of a live process, dissects its heap, and marks and sweeps it conservatively.
//!
//! [`capture`] copies the memory of a process that can contain pointers. The search works only on
//! that copy, and damaged bytes in it lead to findings, never to a panic. [`Reclaimer`] gives
//! leaked blocks back to the allocator of the live process. Saved snapshots can be searched on
//! machines that cannot attach.

// On architectures without attach, some results of a dissection are unused.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
// In tests, a list with a single range is intended.
#![cfg_attr(test, allow(clippy::single_range_in_vec_init))]

// Linked for its `#[test]` attribute, which lets a test pass if it needs a program that is not
// installed.
#[cfg(test)]
#[macro_use]
extern crate memhook_tests;

mod allocators;
mod arch;
mod blocks;
mod capture;
mod dissect;
mod ended_threads;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod glibc;
mod graph;
mod large_lists;
mod live_memory;
pub mod ranges;
mod reclaim;
mod resident;
mod room;
mod scan;
mod settled;
mod snapshot;
#[cfg(test)]
mod testing;

pub use allocators::dissector::{Counted, Extent, ExtentKind, NotDissected};
pub use allocators::{
    ALLOCATOR_NOT_ASKED, AllocatorStatistics, Counter, KnownAllocator, ReleasedMemory,
};
pub use blocks::{Block, BlockSet, BlockTable, Segment, SegmentKind};
pub use capture::core_dump::capture_core;
pub use capture::limits::Limits;
pub use capture::modules::module_file;
pub use capture::residency::Residency;
pub use capture::{Captured, Request, capture, capture_ending, usual_method};
pub use dissect::{Cause, Heap, OtherHeap, Undissected, dissect};
pub use error::Error;
pub use glibc::arenas::Parameters;
pub use glibc::dissect::ArenaReport;
pub use glibc::given_out::{Footprint, GivenOut, given_out};
pub use glibc::walk::{Counts, Finding};
pub use graph::census::{Census, CensusClass, CensusType, census};
pub use graph::declared::DeclaredLimits;
pub use graph::finder::{Finder, MarkOptions, Piece, Pointers};
pub use graph::leaks::{Leak, leaks};
pub use graph::mark::{Marked, mark, mark_also, possibly_lost};
pub use graph::retained::{
    Attributed, Change, HeapGrowth, Holder, HolderGrowth, HolderKind, HolderRow, LargestBlock,
    PictureKind, PictureNode, Retained, StructureStep, Sum, TypeGrowth, TypeRow, VariableRow,
};
pub use graph::roots::{RootKind, RootRange};
pub use graph::twice::{Fingerprints, fingerprints};
pub use graph::types::{Evidence, Types, TypesTold};
pub use graph::unknown_memory::unknown_memory;
pub use graph::why::{Why, WhyStep, why};
pub use reclaim::{
    Candidates, HoldAtSafePoint, Reclaimer, Refusal, Released, Verdict, foreign_callback, refusal,
};
pub use resident::{
    Account, ArenaUse, ClassName, Holding, LiveSizes, Looked, MemoryCopy, NetGrowth, OtherFree,
    Part, Pinned, TracedBlock, TracedHeap, Trimmed, Trimmer, account_of, account_of_mappings,
    account_of_trace, check_call, look_at_memory, time_to_give_back,
};
pub use room::Room;
pub use scan::Scan;
pub use settled::capture_settled;
pub use snapshot::{
    Area, AreaKind, Backing, CopiedRegion, EarlierLook, MUSL, Meta, Method, ModuleInfo,
    ProcessIdentity, Snapshot, ThreadState, Variable, load, save,
};
pub use snapshot::{inside_malloc_note, unmoved_note};
