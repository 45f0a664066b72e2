//! Pads for allocator functions that no GOT slot leads to: functions of a static program, and of an allocator that is
//! linked into an executable or a library.
//!
//! Each such function gets its own slot. A jump at its entry leads to a pad, and the pad jumps to the address in its
//! *cell* ([`memhook_probe::Redirects`]). The cell is then a slot like a GOT slot: it has an entry in the journal,
//! contains the original (a trampoline into the function) or a wrapper, and is exchanged while all threads are held.
//!
//! If the attacher is killed:
//! - after mapping the memory: nothing leads to the memory, and the next attach uses it;
//! - after exchanging the code: calls go through pad and trampoline, and do the same as before;
//! - after exchanging the cells: the wrappers pass calls through, as with slots.
//!
//! The next attach or `detach`, here or in a forked process, finds the jumps and cells through a journal in that
//! memory, and restores all of them. Like the hook, the memory stays mapped, because a thread may still be executing in
//! it. It is reused if the same functions are traced again.

mod described;
mod placed;
mod planned;

pub use described::{DescribedReach, TracedHeap};
pub(crate) use described::{plan_described, reach_of_described};
pub(crate) use placed::Pads;
pub(crate) use planned::{PadPlan, RefusedPad, plan_pads};
