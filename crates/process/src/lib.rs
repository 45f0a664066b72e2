//! A process seen from outside: mappings, loaded modules, GOT slots, threads.
//!
//! This crate neither writes to the target nor uses ptrace. Its ELF functions take the bytes of a
//! file.

mod allocator_calls;
mod allocator_functions;
mod arch;
mod c_library;
mod cgroup_memory;
mod cgroup_root;
mod children;
mod chosen;
mod control_group;
mod core_file;
mod elf;
mod emulated;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod hook_copies;
mod load_segments;
mod loaded_elf;
mod loader;
mod loader_calls;
mod maps;
mod memory;
mod module;
mod module_bytes;
mod module_facts;
mod module_file;
mod oom_kills;
mod preflight;
mod pressure;
mod proc_text;
mod process_names;
mod processor_time;
mod python;
mod reclaim_scans;
mod remote_address;
mod scheduling;
mod sections;
mod selector;
mod similar_names;
mod slots;
mod smaps;
mod target_root;
mod thread_state;
mod threads;
mod userfaultfd;

pub use allocator_calls::{AllocatorCalls, allocator_calls, avoids_pools, built_in_allocator};
pub use allocator_functions::{AllocatorFunction, allocator_functions, own_allocator_functions};
#[cfg(target_arch = "x86_64")]
pub use arch::native::relocations::RETURN;
pub use c_library::{
    CLibrary, CLibraryKind, ModulePart, STARTING, WAITING, WAITING_ELSEWHERE, allocator_code,
    glibc_version, loader_ranges, module_part,
};
pub use cgroup_memory::{CgroupMemory, MemoryLevel};
pub use cgroup_root::cgroup_root;
pub use children::{children, parent};
pub use chosen::{Chosen, Kept, Replaced, still_chosen};
pub use control_group::{ControlGroup, see_groups_as_init};
pub use core_file::{CoreError, CoreFile, CoreModules, CoreSegment, CoreThread, MissingModule};
pub use elf::{ElfView, Exported, Relocation, SlotKind, code_places};
pub use emulated::emulated_program;
pub use error::Error;
pub use hook_copies::{
    Behind, HOOK_FILE_PREFIX, HOOK_FILE_SUFFIX, HookCopy, MAPPED_MARK, Wrappers, behind,
    hook_copies, is_hook, is_ours, unfinished_copies,
};
pub use loader::{Auxiliary, Loader, is_audited, is_static};
pub use loader_calls::{foreign_calls_of_loader, has_changed_code, set_malloc_hook};
pub use maps::{Mapping, mappings, parse_maps};
pub use memory::{is_executed_still, open_memory, open_pagemap, read_memory, read_word};
pub use module::{ModuleImage, modules, vdso};
pub use module_bytes::ModuleBytes;
pub use module_facts::ModuleFacts;
pub use module_file::ModuleFiles;
pub use oom_kills::{OomKill, OomKills};
pub use preflight::{
    Check, details, filter_may_kill, first_failure, has_proc, is_attacher, preflight,
    preflight_of_search,
};
pub use pressure::{MemoryPressure, NoPressure};
pub use proc_text::proc_text;
pub use process_names::{arguments, command_line, executable, process_name, thread_name};
pub use processor_time::{
    allowed_processors, own_processor_time, processor_time, thread_processor_time,
};
pub use python::{Interpreter, PythonError, Verdict};
pub use reclaim_scans::{has_swap, reclaim_scans};
pub use remote_address::RemoteAddress;
pub use scheduling::{Scheduling, SchedulingFile};
pub use selector::{Candidate, SelectionError, Selector, select};
pub use slots::{Slot, SlotScan, Unhookable, find_slots};
pub use smaps::{
    MappingUse, MemoryUse, ResidentCounters, SmapsHold, locked_bytes, memory_use,
    resident_counters, smaps, smaps_by_mapping,
};
pub use target_root::TargetRoot;
pub use thread_state::{
    Activity, blocked_at, blocked_by_thread, blocked_signals, caught_signals, ended_with,
    is_untraced, last_ran, process_of, processor, sleeps, thread_state, tracer, waits_in,
};
pub use threads::{
    SeccompFilters, Thread, effective_user, has_ended, has_seccomp_filter, inner_tid, is_filtered,
    living_thread, proc_path, process_age, process_ids, seccomp_filters, thread_ids,
    thread_start_time, threads,
};
pub use userfaultfd::{has_userfaultfd, is_watched_by_userfaultfd};
