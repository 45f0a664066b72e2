//! Code that depends on the target's processor architecture.
//!
//! The rest of this crate uses this code only through the names in [`native`] and [`changes`].

#[cfg(target_arch = "aarch64")]
pub(crate) mod aarch64;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64 as native;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64 as native;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::changes;
#[cfg(target_arch = "x86_64")]
#[path = "../changes.rs"]
pub(crate) mod changes;

#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
compile_error!(
    "memhook-inject knows x86-64 and AArch64 only. A port that only looks at processes writes a directory beside \
     arch/aarch64 with the same files: regs (the register sets of ptrace), restart (calls that a stop would end), \
     raw_calls (system calls past libc), changes (which refuses). One that changes them needs everything that \
     arch/x86_64 has: signal_frame (what rt_sigreturn takes), scratch (the code that runs in the target), restarted \
     (how the kernel repeats an interrupted call), native_stack, gadgets, clock, processor, syscall_probe"
);
