//! What the fuzzer calls of this crate (`fuzz/README.md`).

use crate::seccomp::{Instruction, is_harmless};

/// Whether a filter is taken for one that lets a system call pass or refuses it. Each instruction is given as its
/// code, jumps and operand.
pub fn filter_is_harmless(program: &[(u16, u8, u8, u32)], nr: i64) -> bool {
    let instruction = |&(code, jump_true, jump_false, k): &(u16, u8, u8, u32)| Instruction {
        code,
        jump_true,
        jump_false,
        k,
    };
    let program: Vec<Instruction> = program.iter().map(instruction).collect();
    is_harmless(&program, nr)
}
