//! Code that depends on the processor of a process: its registers, and where its C library keeps thread-local storage.
//!
//! Snapshots are searched on the kind of processor that they come from, so the rest of this crate uses that code only
//! through the names in [`native`].

#[cfg(target_arch = "aarch64")]
pub(crate) mod aarch64;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64 as native;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64 as native;

#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
compile_error!(
    "memhook-heap knows x86-64 and AArch64 only. A port writes a file beside arch/x86_64.rs with the registers that \
     may hold pointers, the system call that a thread is in, and the places of thread-local storage"
);
