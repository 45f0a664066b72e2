//! Code that depends on the target's processor architecture.
//!
//! The rest of this crate uses this code only through the names in [`native`].

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64 as native;

#[cfg(not(target_arch = "x86_64"))]
compile_error!(
    "memhook-inject knows x86-64 only. A port writes a directory beside arch/x86_64 with the same files: \
     regs (the register sets of ptrace), signal_frame (what rt_sigreturn takes), scratch (the code that runs \
     in the target), restart and restarted (how the kernel repeats an interrupted call), native_stack, \
     gadgets, clock, call_instruction, processor, syscall_probe"
);
