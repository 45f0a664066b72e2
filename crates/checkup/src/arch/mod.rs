//! Code that depends on the processor: whether processes can be traced and called.

#[cfg(target_arch = "x86_64")]
#[path = "../traced/mod.rs"]
pub(crate) mod traced;

#[cfg(not(target_arch = "x86_64"))]
#[path = "only_looked_at.rs"]
pub(crate) mod traced;
