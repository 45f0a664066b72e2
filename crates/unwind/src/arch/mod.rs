//! Code that depends on the processor: registers, and where a signal saves them.

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64 as native;

#[cfg(not(target_arch = "x86_64"))]
compile_error!(
    "memhook-unwind knows x86-64 only. A port writes a file beside arch/x86_64.rs with the numbers of the \
     registers, the layout of a signal frame and the CFA expressions that its toolchain emits, and gives \
     memhook_abi::unwind_rule and hook-cxx/unwind.hpp rules for a return address that a register holds"
);
