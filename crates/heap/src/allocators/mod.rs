//! Allocators other than glibc's that say what they hold, and give memory back, when a thread of the process calls
//! them.
//!
//! Their functions take the allocator's locks, and hold one while they wait for another. So the thread is one that has
//! no frame of an allocator on its stack, all other threads run on and release what they hold, and a call that has
//! begun is never abandoned: if it takes too long, the thread finishes it by itself
//! ([`memhook_inject::Held::call_to_its_end`]).

mod jemalloc;
mod known;
mod statistics;
mod tcmalloc;

pub use known::{KnownAllocator, ReleasedMemory};
pub use statistics::{AllocatorStatistics, Counter};
