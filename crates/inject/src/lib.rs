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

// On architectures where processes are only inspected, the code that holds threads is unused.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

mod arch;
mod audit;
mod error;
mod guarding;
mod looking;
mod open_files;
mod precedence;
mod seen;

// Each part has one short path in this crate.
use arch::native::{raw_calls, regs, restart};
use guarding::{continued, guard, signals, starvation, terminal_stops, urgency, watchdog};
use seen::{address_space, huge_pages, pace, page_scan, robust_list, watchable};

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

pub use address_space::{memory_sharers, share_memory};
pub use arch::changes::*;
pub use audit::{
    Act, Entry as AuditEntry, Note as AuditNote, is_holding, note, read_acts, wait_for_reader,
};
pub use error::Error;
pub use huge_pages::prefer_huge_pages;
pub use looking::{Seen, SeenThread, ThreadsSeen, see_threads};
pub use open_files::allow_many_open_files;
pub use pace::{Pace, with_gaps};
pub use page_scan::{PageScan, PageState};
pub use precedence::take_precedence;
pub use regs::Registers;
pub use robust_list::robust_list;
pub use signals::{LentKeys, catch_stops, catch_stops_and_reloads, reloads, stops};
pub use watchable::{Neighbours, Watchable, to_let_go};
pub use watchdog::{dismiss as hold_nothing_for_long, start as prepare_to_hold};
