//! An unwind rule is one word:
//!
//! ```text
//! bits  0..8   how the CFA is found        bits 16..32  offset for rbp, signed, in bytes
//! bits  8..16  how the caller's rbp is     bits 32..64  offset for the CFA, signed, in bytes
//! ```
//!
//! On x86-64, the return address is at CFA - 8 (psABI, 3.2.2). On AArch64, rsp stands for sp and rbp for x29, and bits 8
//! to 16 also say where the return address is, which a call leaves in x30.

/// The frame cannot be unwound, so the backtrace is cut.
pub const STOP: u64 = 0;
/// CFA = rsp + offset.
pub const RSP: u64 = 1;
/// CFA = rbp + offset.
pub const RBP: u64 = 2;
/// CFA = the word at rbp + offset (realigned stacks).
pub const AT_RBP: u64 = 3;
/// A PLT entry: CFA = rsp + 8, and 8 more after its push instruction.
pub const PLT: u64 = 4;
/// The signal trampoline: the registers are in the ucontext at rsp.
pub const SIGNAL: u64 = 5;
/// The return address is undefined: the thread starts here.
pub const END: u64 = 6;
/// Code that was generated at run time and keeps frame pointers. It is unwound as long as these are plausible.
pub const MADE: u64 = 7;

/// rbp has the caller's value.
pub const RBP_SAME: u64 = 0;
/// The caller's rbp is at CFA + offset.
pub const RBP_AT_CFA: u64 = 1;
/// The caller's rbp is at rbp + offset.
pub const RBP_AT_RBP: u64 = 2;

/// AArch64: x29 has the caller's value, and the return address is in x30.
pub const LINK_SAME: u64 = 3;
/// AArch64: the caller's x29 is at CFA + offset, and the return address 8 bytes above it (a frame record).
pub const RECORD_AT_CFA: u64 = 4;
/// AArch64: x29 has the caller's value, and the return address is at CFA + offset.
pub const LINK_AT_CFA: u64 = 5;

/// Composes a rule.
pub const fn pack(cfa: u64, cfa_offset: i32, rbp: u64, rbp_offset: i16) -> u64 {
    cfa | rbp << 8 | (rbp_offset as u16 as u64) << 16 | (cfa_offset as u32 as u64) << 32
}

/// Returns how the CFA is found: [`STOP`] to [`END`].
pub const fn cfa_kind(rule: u64) -> u64 {
    rule & 0xff
}

/// Returns the offset for the CFA.
pub const fn cfa_offset(rule: u64) -> i64 {
    rule as i64 >> 32
}

/// Returns how the caller's rbp is found: [`RBP_SAME`] to [`LINK_AT_CFA`].
pub const fn rbp_kind(rule: u64) -> u64 {
    rule >> 8 & 0xff
}

/// Returns the offset for rbp.
pub const fn rbp_offset(rule: u64) -> i64 {
    (rule >> 16) as i16 as i64
}
