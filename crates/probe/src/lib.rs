//! Jump pads at the entries of functions: decides whether a function can have one, and computes the bytes to write.
//!
//! This crate converts bytes to bytes. A pad counts a call, executes the instructions that the jump at the function's
//! entry has displaced, and jumps to the instruction after them. Nothing ever returns into a pad, so no stack contains
//! a pad's frame: backtraces, exceptions, longjmp and shadow stacks are unaffected.
//!
//! [`Code`] holds the branch targets of a module's code, [`plan`] decides about one function, [`Pad`] is its machine
//! code at an address, and [`Area`] is the memory that contains the pads, with the journal for their removal.
//! Everything that cannot be proved safe is a [`Refusal`].

mod allocator;
mod area;
mod assembler;
mod clobbers;
mod code;
mod condition;
mod counts;
mod displaced;
mod exits;
mod flags;
mod histogram;
mod pad;
mod plan;
mod redirect;
mod refusal;
mod selector;
mod stack_arguments;
mod tail_jumps;
mod thread_block;
mod values;

pub use allocator::{Allocator, AllocatorFunction, MAIN_HEAP, check_allocators};
pub use area::{Area, AreaFunction, AreaHeader, AreaPlan, JournalEntry};
pub use clobbers::calls_unknown_code;
pub use code::Code;
pub use condition::Condition;
pub use counts::{CountsLayout, MOST_EVENTS};
pub use displaced::assembly;
pub use exits::plan_exits;
pub use histogram::{Histogram, MOST_LATENCIES};
pub use pad::{MOST_CONDITIONS, Pad, Role};
pub use plan::{JUMP_BYTES, Plan, plan};
pub use redirect::{
    REDIRECT_HEADER_BYTES, RedirectEntry, Redirected, Redirects, read_redirects, redirect_bytes,
    redirect_journal_bytes,
};
pub use refusal::Refusal;
pub use selector::{FunctionSelector, Wanted, nearest, original_of};
pub use stack_arguments::may_take_stack_arguments;
pub use tail_jumps::JumpingCode;
pub use values::{StackCounts, ValueClass, Values};
