//! The memory layout that the attacher and the hook share, written once.
//!
//! The hook (C++, inside the target) and the attacher (Rust, outside) map the same shared region. Every
//! structure in it is declared here; the module `cxx` prints the C++ twin with a `static_assert` on every
//! size and offset, so that the two sides cannot diverge unnoticed.
//!
//! ```text
//! the guide: from the attacher to the hook; no other process can write it
//!   offset 0            Control          configuration
//!   SLOTS_OFFSET        SlotEntry[]      journal of GOT slots: address, original
//!   MODULES_OFFSET      ModuleEntry[][2] modules: unwind rows, and a `ret` instruction for dlopen
//!   SAMPLE_OFFSET       u64[]            intervals between sampled allocations
//!   BOUNDS_OFFSET       StackBounds[]    bounds of the stacks of threads
//!   RULES_OFFSET        u64[]            unwind rules, then the rows: u32 code offsets, u16 rule numbers
//! the report: from the hook to the attacher, numbers only
//!   TALLY_OFFSET        Tally            clock word, counters
//!   SLOT_STATES_OFFSET  u32[]            states of the slots
//!   SEQUENCE_OFFSET     u32[]            sequence words, by a hash of the block's page
//!   INDEX_OFFSET        u64[]            hash index of the stack table
//!   ARENA_OFFSET        StackEntry..     interned backtraces, 16-byte granules
//!   FILTER_OFFSET       u8[], u64[]      the recorded live blocks, when not all are recorded
//!   ACCESS_OFFSET       AccessRecord[]   reads and writes of live blocks
//!   RINGS_OFFSET        Ring[]           one SPSC ring a thread: RingHeader, then events
//! ```
//!
//! The parts are sparse memory objects, and are mapped next to each other: untouched pages cost nothing.

mod allocators;
#[cfg(test)]
mod cxx;
mod event;
mod functions;
mod layout;
#[cfg(test)]
mod numbers_only;
mod prefetch;
pub mod unwind_rule;

pub use allocators::{
    ALLOCATORS, Allocator, AllocatorNames, function_by_name, known_allocator, known_names,
};
pub use event::{Accesses, Event, Op, RawEvent, SEQUENCE_BITS, sequence_before};
pub use functions::{
    ACCESS_LISTENER, Function, HOOKED_FUNCTIONS, MARK_LISTENER, Role, Signature,
    forwarding_operators, may_throw, touches,
};
pub use layout::*;
pub use prefetch::prefetch;
