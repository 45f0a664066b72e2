//! Allocators: those whose heap is [dissected](dissector), and those that say what they hold, and give memory back, when
//! a thread of the process calls them.
//!
//! The latter's functions take the allocator's locks, and hold one while they wait for another. So the thread is one that
//! has no frame of an allocator on its stack, all other threads run on and release what they hold, and a call that has
//! begun is never abandoned: if it takes too long, the thread finishes it by itself
//! ([`memhook_inject::Held::call_to_its_end`]).

pub(crate) mod dissector;
pub(crate) mod gperftools;
mod in_hand;
pub(crate) mod jemalloc;
#[cfg(target_arch = "x86_64")]
mod known;
pub(crate) mod live_check;
#[cfg(all(test, target_arch = "x86_64"))]
mod live_tests;
#[cfg(target_arch = "x86_64")]
mod mallctl;
pub(crate) mod mallocng;
pub(crate) mod mimalloc;
#[cfg(target_arch = "x86_64")]
mod statistics;
#[cfg(all(test, target_arch = "x86_64"))]
mod steps_tests;
#[cfg(target_arch = "x86_64")]
mod tcmalloc;

#[cfg(target_arch = "x86_64")]
pub use known::{KnownAllocator, ReleasedMemory};
#[cfg(target_arch = "x86_64")]
pub use statistics::{AllocatorStatistics, Counter};
