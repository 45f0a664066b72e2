//! AArch64: registers, and Linux's use of them. Processes can be looked at, but not changed.

pub(crate) mod changes;
pub(crate) mod raw_calls;
pub(crate) mod regs;
pub(crate) mod restart;
