//! Allocator functions that no GOT slot leads to: those of a static program, and of an allocator that is linked into
//! an executable or a library.
//!
//! Each gets a slot of its own. A jump at its entry leads to a pad, and the pad to what its *cell* holds
//! ([`memhook_probe::Redirects`]). From then on the cell is a slot like those of the GOT: it has an entry in the
//! journal, holds the original (a trampoline into the function) or a wrapper, and is exchanged with all threads held.
//!
//! What is left if we are killed:
//! - after the memory was mapped: memory that nothing leads to, which the next attach uses;
//! - after the code was exchanged: calls take the way over pad and trampoline, and do what they always did;
//! - after the cells were exchanged: what is left with slots, wrappers that pass calls through.
//!
//! Whoever comes next finds jumps and cells by the journal in the memory itself, here or in a forked process, and puts
//! all of it back. The memory stays mapped, as the hook does, because a thread may still be on its way through it; it
//! is used again if the same functions are to be traced.

mod described;
mod placed;
mod planned;

pub use described::{DescribedReach, TracedHeap};
pub(crate) use described::{plan_described, reach_of_described};
pub(crate) use placed::Pads;
pub(crate) use planned::{PadPlan, RefusedPad, plan_pads};
