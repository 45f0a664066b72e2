//! Stops one thread of a running process, calls functions and system calls in it, and loads the hook.
//!
//! This is the only crate that uses ptrace. A [`Held`] thread is seized and stopped (by `PTRACE_SEIZE`, so the target
//! is neither sent a signal nor killed if we die). Its registers, vector state, signal mask, `errno` and interrupted
//! system call are restored when it is released or dropped. The other threads of the target keep running, except for a
//! few milliseconds while the loader is called ([`Held::stop_others`]), or while a caller holds all of them
//! ([`AllHeld`]).
//!
//! The caller provides a pid, the address ranges in which a thread must not be stopped, and the addresses of functions
//! to call. This crate never interprets ELF files of the target, and does not depend on the purpose of the loaded
//! object.
//!
//! ptrace requests must come from the tracing thread, so [`Held`] is not `Send`.

mod arch;
mod audit;
mod end_watch;
mod error;
mod hold;
mod launch;
mod looking;
mod open_files;
mod own_memory;
mod precedence;
mod ptrace;
mod remote;
mod watchpoint;

// Each part has one short path in this crate.
use arch::native::{
    clock, gadgets, native_stack, processor, regs, restart, restarted, scratch, signal_frame,
    syscall_probe,
};
use hold::{
    all_threads, continued, guard, held, idle, late, others, own_answers, resend, safe_point,
    saved, seccomp, signals, slept, starvation, stop, survey, synchronous, terminal_stops, timing,
    urgency, wait, watchdog,
};
use remote::{
    access_marks, address_space, call_with_data, code_area, code_exchange, descriptor,
    forced_write, guide, huge_pages, kernel_places, load, map, memory, pace, page_scan, region,
    remote_call, remote_fork, remote_work, robust_list, shown_name, watchable, way_home,
    write_watch,
};

#[cfg(test)]
mod blocked_attacher_tests;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;
#[cfg(test)]
mod guide_tests;
#[cfg(test)]
mod kill_tests;
#[cfg(test)]
mod map_tests;
#[cfg(test)]
mod orphan_tests;
#[cfg(test)]
mod shown_name_tests;
#[cfg(test)]
mod steps;
#[cfg(test)]
mod waiting_call_tests;
#[cfg(test)]
extern crate self as memhook_inject;

pub use access_marks::{RangeMarks, clear_access_marks};
pub use address_space::{memory_sharers, share_memory};
pub use all_threads::{AllHeld, InVain, hold_all, hold_all_within};
pub use audit::{
    Act, Entry as AuditEntry, Note as AuditNote, is_holding, note, read_acts, wait_for_reader,
};
pub use call_with_data::MAX_CALL_DATA;
pub use clock::Clock as TimeStampClock;
pub use code_area::{CodeArea, map_code_area};
pub use code_exchange::{CodeExchange, CodeExchanges, Exchanged, exchange_code, memory_of_code};
pub use descriptor::duplicate_descriptor;
pub use end_watch::EndWatch;
pub use error::Error;
pub use forced_write::{WordExchange, force_words, force_words_of_held};
pub use guide::{Guide, GuidedRegion, create_guided_region, empty_guide, without_seals};
pub use held::Held;
pub use huge_pages::prefer_huge_pages;
pub use idle::IdleThreads;
pub use kernel_places::kernel_places;
pub use late::{has_late_threads, let_late_threads_go, wait_for_late_threads};
pub use launch::{
    Child, EndingThread, Event, StartPoint, end_by, forward_signals, launch, wait_for_program,
};
pub use load::{Dlopen, NAME as HOOK_NAME, load_file, load_object};
pub use looking::{Seen, SeenThread, ThreadsSeen, see_threads};
pub use map::{ObjectImage, map_object, unmap_unfinished};
pub use memory::write_bytes;
pub use open_files::allow_many_open_files;
pub use others::Others;
pub use own_answers::thread_with_own_answers;
pub use own_memory::{give_memory_back, keep_little_memory};
pub use pace::{Pace, with_gaps};
pub use page_scan::{PageScan, PageState};
pub use precedence::take_precedence;
pub use region::{
    Region, create_region, move_guided_region, move_region, set_inherited, unmap_region,
};
pub use regs::Registers;
pub use remote_fork::{ForkPlan, FrozenChild};
pub use robust_list::robust_list;
pub use safe_point::Judge;
pub use signals::{LentKeys, catch_stops, catch_stops_and_reloads, reloads, stops};
pub use stop::{FirstChoice, HoldOptions, first_choice, hold};
pub use watchable::{Neighbours, Watchable, to_let_go};
pub use watchdog::{dismiss as hold_nothing_for_long, start as prepare_to_hold};
pub use watchpoint::{Access, AccessRing, Watchpoint, Width, own_thread};
pub use write_watch::WriteWatch;

#[doc(hidden)]
pub mod fuzzing;
