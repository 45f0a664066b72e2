//! An unwind rule is one word:
//!
//! ```text
//! bits  0..8   how the CFA is found        bits 16..32  offset for rbp, signed, in bytes
//! bits  8..16  how the caller's rbp is     bits 32..64  offset for the CFA, signed, in bytes
//! ```
//!
//! The return address is at CFA - 8 (x86-64 psABI, 3.2.2).

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
/// Code that was generated at run time and keeps frame pointers, as long as they are plausible.
pub const MADE: u64 = 7;

/// rbp has the caller's value.
pub const RBP_SAME: u64 = 0;
/// The caller's rbp is at CFA + offset.
pub const RBP_AT_CFA: u64 = 1;
/// The caller's rbp is at rbp + offset.
pub const RBP_AT_RBP: u64 = 2;

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

/// Returns how the caller's rbp is found: [`RBP_SAME`], [`RBP_AT_CFA`] or [`RBP_AT_RBP`].
pub const fn rbp_kind(rule: u64) -> u64 {
    rule >> 8 & 0xff
}

/// Returns the offset for rbp.
pub const fn rbp_offset(rule: u64) -> i64 {
    (rule >> 16) as i16 as i64
}
