//! Allocators: [dissectors](dissector) for their heaps, and calls that ask an allocator for statistics or make it
//! return memory.
//!
//! Such a call takes the allocator's locks, and holds one lock while it waits for another. So the calling thread must
//! have no allocator frame on its stack, and all other threads keep running and release their locks. A call that has
//! begun is never abandoned: if it takes too long, the thread finishes it alone
//! ([`memhook_inject::Held::call_to_its_end`]).

pub(crate) mod dissector;
pub(crate) mod emulated;
pub(crate) mod gperftools;
mod in_hand;
pub(crate) mod jemalloc;
mod known;
pub(crate) mod live_check;
#[cfg(test)]
mod live_tests;
mod mallctl;
pub(crate) mod mallocng;
pub(crate) mod mimalloc;
mod statistics;
#[cfg(all(test, target_arch = "x86_64"))]
mod steps_tests;
mod tcmalloc;

pub use known::{KnownAllocator, ReleasedMemory};
pub use statistics::{ALLOCATOR_NOT_ASKED, AllocatorStatistics, Counter};
