//! Code that depends on the processor: registers, call frame information, and where a signal saves registers.

#[cfg(any(target_arch = "aarch64", test))]
pub(crate) mod aarch64;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64 as native;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64 as native;

/// Call sites through which every unwinder can unwind, for processors for which they are implemented.
#[cfg(target_arch = "x86_64")]
#[path = "../passages.rs"]
pub(crate) mod passages;
#[cfg(target_arch = "aarch64")]
pub(crate) mod passages {}

#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
compile_error!(
    "memhook-unwind knows x86-64 and AArch64 only. A port writes a file beside arch/x86_64.rs with the numbers of the \
     registers, the layout of a signal frame and the rules for rows of call frame information, and gives \
     hook-cxx/unwind.hpp those rules"
);

use gimli::{Encoding, Reader, UnwindSection, UnwindTableRow, Vendor};
use std::ops::Range;

/// Stack frames of a processor's code.
pub(crate) trait Frames {
    /// DWARF number of the stack pointer.
    const STACK_POINTER: usize;
    /// DWARF number of the frame pointer.
    const FRAME_POINTER: usize;
    /// DWARF number of the return address.
    const RETURN_ADDRESS: usize;
    /// DWARF number of the program counter. It equals the number of the return address unless a register holds the
    /// return address.
    const PC: usize;
    /// True if a call pushes the return address, so that every caller's frame is higher on the stack.
    const CALLS_PUSH: bool = Self::PC == Self::RETURN_ADDRESS;
    /// Where the kernel saves each register when it delivers a signal, by register number: offsets from the stack
    /// pointer of the signal trampoline.
    const SAVED: &'static [u64];
    /// Call frame instructions that are specific to this processor.
    const VENDOR: Vendor;

    /// Returns the rule for a row of call frame information, or `None` if no rule can express it.
    fn rule_of<R, S>(
        row: &UnwindTableRow<R::Offset>,
        frames: &S,
        encoding: Encoding,
    ) -> Option<u64>
    where
        R: Reader<Offset = usize>,
        S: UnwindSection<R>;

    /// Returns the signal trampolines (svma) of an ELF file that its call frame information does not describe.
    fn trampolines(elf: &[u8]) -> Vec<Range<u64>>;
}
