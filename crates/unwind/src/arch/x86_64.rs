//! x86-64 (psABI), as Linux uses it.

pub(crate) use gimli::X86_64;

/// DWARF numbers of registers (psABI, figure 3.36).
pub(crate) const RBP: usize = X86_64::RBP.0 as usize;
pub(crate) const RSP: usize = X86_64::RSP.0 as usize;
pub(crate) const RETURN_ADDRESS: usize = X86_64::RA.0 as usize;
/// Number of registers in call frame information.
pub(crate) const REGISTERS: usize = 17;

/// Offset of the return address that a `call` pushes, from the CFA.
pub(crate) const RETURN_ADDRESS_FROM_CFA: i64 = -8;

/// Offset of the interrupted registers from the stack pointer of the signal trampoline. It is in a `struct ucontext`,
/// whose `gregs` begin at byte 40 (asm/sigcontext.h) with r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp and rip.
pub(crate) const SIGNAL_RBP: u64 = 40 + 10 * 8;
pub(crate) const SIGNAL_RSP: u64 = 40 + 15 * 8;
pub(crate) const SIGNAL_RIP: u64 = 40 + 16 * 8;

/// Returns the number of bytes by which a PLT entry has moved the stack pointer at `pc`. An entry is 16 bytes
/// long, and its push instruction ends at byte 11 (GCC's and LLVM's own CFA expression for .plt).
pub(crate) const fn plt_stack_bytes(pc: u64) -> u64 {
    if pc & 15 >= 11 { 16 } else { 8 }
}
