//! What the fuzzer calls of this crate (`fuzz/README.md`).

use crate::seccomp::is_harmless;

/// Whether a filter is taken for one that lets a system call pass or refuses it. Each instruction is given as its
/// code, jumps and operand.
pub fn filter_is_harmless(program: &[(u16, u8, u8, u32)], nr: i64) -> bool {
    let program: Vec<_> = program
        .iter()
        .map(|&(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k })
        .collect();
    is_harmless(&program, nr)
}
