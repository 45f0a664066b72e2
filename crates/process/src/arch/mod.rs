//! Code that depends on the target's processor: its ELF relocations and its call instructions.

#[cfg(any(target_arch = "aarch64", test))]
pub(crate) mod aarch64;
#[cfg(any(target_arch = "x86_64", test))]
pub(crate) mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64 as native;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64 as native;

#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
compile_error!(
    "memhook-process knows x86-64 and AArch64 only. A port writes a directory beside arch/x86_64 with the same \
     files: calls (call sites in code) and relocations (which of them make a slot)"
);
