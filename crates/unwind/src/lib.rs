//! Converts `.eh_frame` into a form that a hook without libraries can unwind with.
//!
//! [`compile`] turns a module's call frame information into rows of (code offset, rule), where a rule is one word
//! ([`memhook_abi::unwind_rule`]): nearly all rules that compilers emit are "CFA = rsp or rbp + constant, rbp saved at
//! CFA + constant". Rows that do not fit are marked as stops.
//!
//! [`walk`] unwinds a thread of another process with such tables.
//!
//! [`reference`] unwinds from the same sections with gimli, with all registers and all expressions, over
//! memory that a closure reads. The tables are checked against it.

#[cfg(test)]
mod aarch64_tests;
mod arch;
mod code_ranges;
mod compile;
mod descriptions;
mod error;
pub mod reference;
mod sections;
mod walk;

// The module is empty for a processor on which nothing is traced.
#[allow(unused_imports)]
pub use arch::passages::*;
pub use code_ranges::{CodeRange, code_ranges};
pub use compile::{UnwindTable, compile};
pub use error::Error;
pub use sections::Sections;
pub use walk::{Frame, Start, TableModule, walk, walk_frames};
