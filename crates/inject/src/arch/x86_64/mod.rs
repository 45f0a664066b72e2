//! x86-64: registers, calling convention, instruction encodings, and how Linux uses them.

pub(crate) mod clock;
pub(crate) mod gadgets;
pub(crate) mod native_stack;
pub(crate) mod processor;
pub(crate) mod raw_calls;
pub(crate) mod regs;
pub(crate) mod restart;
pub(crate) mod restarted;
pub(crate) mod scratch;
pub(crate) mod signal_frame;
pub(crate) mod syscall_probe;
