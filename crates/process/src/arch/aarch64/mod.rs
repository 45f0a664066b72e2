//! ELF files and code of AArch64.

pub(crate) mod calls;
#[cfg(target_arch = "aarch64")]
pub(crate) mod relocations;
