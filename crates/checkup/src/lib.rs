//! Advice on one running process. The process is recorded for a time, and at the end its memory is
//! searched and its heap is walked. This is the work of `advise`, available to any caller.
//!
//! [`examine`] traces a process and detaches, and returns an unnamed recording. [`advice_of`] reads
//! this recording, or any other. The crate also has parts that other commands share: the last look
//! at a traced process's memory, and calls of allocators that report their contents.
//!
//! Where processes cannot be traced, the crate advises on recordings, and on processes that it only inspects.
//!
//! This crate does not handle options, terminals, or rules that choose processes.

mod advice;
mod arch;
mod descendants;

pub use advice::{AdviceError, advice_of, advice_of_look, resident_now};
pub use arch::traced::*;
