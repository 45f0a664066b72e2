//! Parts of the resident memory of a process, and the heap blocks that pin it.

mod account;
mod arena_heaps;
mod arena_use;
mod chunk_list;
mod classes;
mod live_sizes;
mod look;
mod mappings;
mod other_heaps;
mod pages;
mod pins;
mod stacks;
mod traced;
mod trim;
mod trimming;
mod zero_pages;

pub use account::{Account, Holding, OtherFree, Part};
pub use arena_use::ArenaUse;
pub use classes::{ClassName, TracedBlock};
pub use live_sizes::{LiveSizes, NetGrowth};
pub use look::{Looked, MemoryCopy, account_of, account_of_mappings, look_at_memory};
pub use pins::Pinned;
pub use traced::{TracedHeap, account_of_trace};
pub use trimming::{Trimmed, Trimmer, check_call, time_to_give_back};
