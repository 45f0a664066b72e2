//! A snapshot of a live process, its heap dissected, conservatively marked and swept.
//!
//! [`capture`] copies the memory of a process that can hold pointers; everything else here works on
//! that copy alone, and damaged bytes in it lead to findings, never to a panic.

mod allocator_areas;
mod areas;
mod arenas;
mod backing;
mod block_sets;
mod blocks;
mod capture;
mod census;
mod copy;
mod dissect;
mod ended_threads;
mod error;
mod foreign;
#[cfg(test)]
mod foreign_file_tests;
mod fork;
mod free_lists;
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod graph_tests;
mod kernel_words;
mod layout;
mod leaks;
mod limits;
mod mark;
mod mmapped;
mod modules;
mod pagemap;
mod pipes;
mod precopy;
mod reclaim;
mod report;
mod room;
mod roots;
mod runs;
mod segment;
mod segments;
mod settle;
mod shared_pages;
mod snapshot;
mod sockets;
mod stop;
mod store;
#[cfg(test)]
mod testing;
mod text;
mod twice;
mod types;
mod walk;
mod why;

pub use arenas::Parameters;
pub use backing::Backing;
pub use blocks::{Block, BlockSet, BlockTable, Segment, SegmentKind};
pub use capture::{Captured, capture, capture_standing, capture_within};
pub use census::{Census, Class, census, census_text};
pub use dissect::{ArenaReport, Heap, dissect};
pub use error::Error;
pub use leaks::{Leak, leaks};
pub use limits::Limits;
pub use mark::{Finder, MarkOptions, Marked, Pointers, mark};
pub use reclaim::{reclaimable, refusal, unchanged};
pub use report::{LeakGroup, SCHEMA, ScanReport, SnapshotPart, Totals, report};
pub use room::Room;
pub use roots::{RootKind, RootRange, root_ranges};
pub use snapshot::{Area, AreaKind, Meta, Method, ModuleInfo, Region, Snapshot, ThreadState};
pub use store::{load, save};
pub use text::{bytes_text, text};
pub use twice::{Fingerprints, fingerprints, still_leaked};
pub use types::Types;
pub use walk::{Counts, Finding};
pub use why::{Step, Why, why};
