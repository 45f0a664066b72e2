//! AArch64: registers, and Linux's use of them. Processes can be inspected, but not modified.

pub(crate) mod changes;
pub(crate) mod raw_calls;
pub(crate) mod regs;
pub(crate) mod restart;
