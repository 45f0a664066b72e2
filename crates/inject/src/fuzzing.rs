//! Functions for the fuzzer (`fuzz/README.md`).

use crate::seccomp::is_harmless;

/// Returns true if a filter provably allows or refuses a system call. Each instruction is given as opcode, jump offsets
/// and operand.
pub fn filter_is_harmless(program: &[(u16, u8, u8, u32)], nr: i64) -> bool {
    let program: Vec<_> = program
        .iter()
        .map(|&(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k })
        .collect();
    is_harmless(&program, nr)
}
