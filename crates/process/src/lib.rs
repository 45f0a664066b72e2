//! A process seen from outside: mappings, loaded modules, GOT slots, threads.
//!
//! Nothing here writes to the target or uses ptrace; the ELF part takes bytes.

mod calls;
mod cgroup_memory;
mod elf;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod hook_copies;
mod maps;
mod memory;
mod module;
mod module_file;
mod preflight;
mod proc_text;
mod slots;
mod threads;

pub use calls::{AllocatorCalls, allocator_calls};
pub use cgroup_memory::{CgroupMemory, MemoryLevel};
pub use elf::{ElfView, Exported, Relocation, SlotKind};
pub use error::Error;
pub use hook_copies::{Behind, HookCopy, behind, hook_copies};
pub use maps::{Mapping, mappings, parse_maps};
pub use memory::read_memory;
pub use module::{ModuleImage, modules, vdso};
pub use preflight::{Check, details, filter_may_kill, first_failure, preflight};
pub use proc_text::proc_text;
pub use slots::{Slot, SlotScan, Unhookable, find_slots};
pub use threads::{
    Thread, has_ended, has_seccomp_filter, inner_tid, seccomp_filters, thread_ids,
    thread_start_time, threads,
};
