//! Effect of a target's seccomp filters on a system call.

use std::io;

use crate::ptrace;
use libc::sock_filter as Instruction;

/// PTRACE_SECCOMP_GET_FILTER of `<linux/ptrace.h>`, which the libc crate lacks.
const GET_FILTER: libc::c_uint = 0x420c;
/// AUDIT_ARCH_X86_64 of `<linux/audit.h>`.
const ARCH: u32 = 0xc000_003e;
/// `struct seccomp_data`: nr, arch, instruction_pointer, args[6].
const DATA_BYTES: u32 = 64;
const DATA_WORDS: usize = DATA_BYTES as usize / 4;

/// Known words of the data.
type Data = [Option<u32>; DATA_WORDS];

/// Maximum number of steps that are followed in a filter. The filters of browsers take a few hundred.
const MAX_STEPS: usize = 100_000;

/// Returns the filters of a stopped thread, the newest first. The kernel shows them to a tracer that has CAP_SYS_ADMIN
/// and no filter itself (ptrace(2), PTRACE_SECCOMP_GET_FILTER).
pub(crate) fn filters(tid: i32) -> io::Result<Vec<Vec<Instruction>>> {
    let mut all = Vec::new();
    loop {
        // SAFETY: without a buffer, the kernel only returns the number of instructions.
        let length = match unsafe { ptrace::request(GET_FILTER, tid, all.len(), 0) } {
            Ok(length) => length as usize,
            // No filter has this index.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT)) => return Ok(all),
            // The thread has no filter.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL)) && all.is_empty() => {
                return Ok(all);
            }
            Err(e) => return Err(e),
        };
        // SAFETY: this only creates a value.
        let none = unsafe { libc::BPF_STMT(0, 0) };
        let mut program = vec![none; length.min(libc::BPF_MAXINSNS as usize)];
        let buffer = program.as_mut_ptr() as usize;
        // SAFETY: a filter never changes, so the kernel writes the number of instructions that it announced, and no
        // program is longer than BPF_MAXINSNS.
        unsafe { ptrace::request(GET_FILTER, tid, all.len(), buffer)? };
        all.push(program);
    }
}

/// Returns true if a filter allows `nr` or refuses it with an error number, for all arguments and callers. Returns
/// false if it may have any other effect, such as a kill, or cannot be followed.
pub(crate) fn is_harmless(program: &[Instruction], nr: i64) -> bool {
    let mut data = [None; DATA_WORDS];
    data[..2].copy_from_slice(&[Some(nr as u32), Some(ARCH)]);
    lets_pass(program, data)
}

/// Like [`is_harmless`], for a call with these arguments.
pub(crate) fn is_harmless_call(program: &[Instruction], nr: i64, args: [u64; 6]) -> bool {
    let mut data = [None; DATA_WORDS];
    data[..2].copy_from_slice(&[Some(nr as u32), Some(ARCH)]);
    for (words, arg) in data[4..].chunks_mut(2).zip(args) {
        words.copy_from_slice(&[Some(arg as u32), Some((arg >> 32) as u32)]);
    }
    lets_pass(program, data)
}

fn lets_pass(program: &[Instruction], data: Data) -> bool {
    use libc::{SECCOMP_RET_ACTION_FULL, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SECCOMP_RET_LOG};
    let is_harmless = |result: &u32| {
        matches!(
            result & SECCOMP_RET_ACTION_FULL,
            SECCOMP_RET_ERRNO | SECCOMP_RET_LOG | SECCOMP_RET_ALLOW
        )
    };
    results(program, data).is_some_and(|all| all.iter().all(is_harmless))
}

/// State of a filter program. A value is `None` if it depends on unknown data.
#[derive(Clone, Copy, Default)]
struct Machine {
    at: usize,
    a: Option<u32>,
    x: Option<u32>,
    memory: [Option<u32>; 16],
}

/// Returns all possible results of a program in the kernel (Documentation/networking/filter.rst) if some of its data is
/// unknown. `None` if the kernel would not accept it for seccomp, if it returns an unknown value, or if it has too many
/// paths.
fn results(program: &[Instruction], data: Data) -> Option<Vec<u32>> {
    let mut results = Vec::new();
    let start = Machine {
        a: Some(0),
        x: Some(0),
        memory: [Some(0); 16],
        ..Machine::default()
    };
    let mut open = vec![start];
    // Jumps only go forward, so each path ends.
    for _ in 0..MAX_STEPS {
        let Some(mut machine) = open.pop() else {
            return Some(results);
        };
        let i = program.get(machine.at)?;
        machine.at += 1;
        let Machine { a, x, memory, .. } = &mut machine;
        let operand = if i.code & 0x08 == 0 { Some(i.k) } else { *x };
        match (i.code & 0x07, i.code) {
            // LD and LDX: absolute word, immediate, scratch memory, length
            (0, 0x20) => *a = word(data, i.k)?,
            (0, 0x00) => *a = Some(i.k),
            (0, 0x60) => *a = *memory.get(i.k as usize)?,
            (0, 0x80) => *a = Some(DATA_BYTES),
            (1, 0x01) => *x = Some(i.k),
            (1, 0x61) => *x = *memory.get(i.k as usize)?,
            (1, 0x81) => *x = Some(DATA_BYTES),
            (2, _) => *memory.get_mut(i.k as usize)? = *a,
            (3, _) => *memory.get_mut(i.k as usize)? = *x,
            (4, code) => *a = calculate(code, *a, operand)?,
            (5, 0x05) => machine.at = machine.at.checked_add(i.k as usize)?,
            (5, code) => {
                let condition = match (code & 0xf0, *a, operand) {
                    (0x10, Some(a), Some(b)) => Some(a == b),
                    (0x20, Some(a), Some(b)) => Some(a > b),
                    (0x30, Some(a), Some(b)) => Some(a >= b),
                    (0x40, Some(a), Some(b)) => Some(a & b != 0),
                    (0x10 | 0x20 | 0x30 | 0x40, _, _) => None,
                    _ => return None,
                };
                let at = machine.at;
                for (taken, jump) in [(true, i.jt), (false, i.jf)] {
                    if condition.is_none_or(|condition| condition == taken) {
                        machine.at = at + usize::from(jump);
                        open.push(machine);
                    }
                }
                continue;
            }
            (6, 0x06) => {
                results.push(i.k);
                continue;
            }
            (6, 0x16) => {
                results.push((*a)?);
                continue;
            }
            (7, 0x07) => *x = *a,
            (7, 0x87) => *a = *x,
            _ => return None,
        }
        open.push(machine);
    }
    None
}

/// Returns the result of an operation; `Some(None)` if it is unknown, `None` if the kernel does not accept the program.
fn calculate(code: u16, a: Option<u32>, b: Option<u32>) -> Option<Option<u32>> {
    let (a, b) = match (a, b) {
        (Some(a), Some(b)) => (a, b),
        // After a division by zero the kernel returns 0 for the filter, which means kill (bpf_convert_filter in
        // net/core/filter.c).
        (_, None | Some(0)) if code & 0xf0 == 0x30 => return None,
        _ => return Some(None),
    };
    Some(Some(match code & 0xf0 {
        0x00 => a.wrapping_add(b),
        0x10 => a.wrapping_sub(b),
        0x20 => a.wrapping_mul(b),
        0x30 => a.checked_div(b)?,
        0x40 => a | b,
        0x50 => a & b,
        0x60 => a.checked_shl(b)?,
        0x70 => a.checked_shr(b)?,
        0x80 => a.wrapping_neg(),
        0xa0 => a ^ b,
        _ => return None,
    }))
}

/// Returns a word of the data: `Some(None)` if it is unknown.
fn word(known: Data, offset: u32) -> Option<Option<u32>> {
    if !offset.is_multiple_of(4) || offset >= DATA_BYTES {
        return None;
    }
    Some(known.get(offset as usize / 4).copied().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
        Instruction { code, jt, jf, k }
    }

    /// Returns a filter that kills for one call, refuses another, and lets the rest pass.
    fn filter(killed: u32, refused: u32) -> Vec<Instruction> {
        vec![
            instruction(0x20, 0, 0, 4),
            instruction(0x15, 1, 0, ARCH),
            instruction(0x06, 0, 0, 0x8000_0000),
            instruction(0x20, 0, 0, 0),
            instruction(0x15, 2, 0, killed),
            instruction(0x15, 2, 0, refused),
            instruction(0x06, 0, 0, 0x7fff_0000),
            instruction(0x06, 0, 0, 0x8000_0000),
            instruction(0x06, 0, 0, 0x0005_0001),
        ]
    }

    #[test]
    fn filter_actions_are_distinguished() {
        let filter = filter(35, 10);
        assert!(!is_harmless(&filter, 35));
        assert!(is_harmless(&filter, 10));
        assert!(is_harmless(&filter, 1));
    }

    /// A filter may check arguments, and the arguments of the hook's calls vary.
    #[test]
    fn a_decision_by_an_argument_may_go_either_way() {
        // Kills if the low word of the first argument is 7.
        let by_argument = |otherwise| {
            vec![
                instruction(0x20, 0, 0, 16),
                instruction(0x15, 0, 1, 7),
                instruction(0x06, 0, 0, 0x8000_0000),
                instruction(0x06, 0, 0, otherwise),
            ]
        };
        assert!(!is_harmless(&by_argument(0x7fff_0000), 35));
        let mut refuses = by_argument(0x7fff_0000);
        refuses[2].k = 0x0005_0001;
        assert!(is_harmless(&refuses, 35));
        let kills = by_argument(0x7fff_0000);
        assert!(is_harmless_call(&kills, 35, [8, 7, 7, 7, 7, 7]));
        assert!(!is_harmless_call(&kills, 35, [7, 0, 0, 0, 0, 0]));
        // More paths than can be followed: 40 conditional jumps in a row.
        let mut many = vec![instruction(0x20, 0, 0, 16)];
        for bit in 0..40 {
            many.push(instruction(0x45, 0, 0, 1 << (bit % 32)));
        }
        many.push(instruction(0x06, 0, 0, 0x7fff_0000));
        assert!(!is_harmless(&many, 35));
    }

    #[test]
    fn a_division_by_an_unknown_value_may_kill() {
        let by_argument = |operation| {
            [
                instruction(0x20, 0, 0, 16),
                instruction(0x07, 0, 0, 0),
                instruction(0x00, 0, 0, 1),
                instruction(operation, 0, 0, 0),
                instruction(0x06, 0, 0, 0x7fff_0000),
            ]
        };
        assert!(is_harmless(&by_argument(0x2c), 1));
        assert!(!is_harmless(&by_argument(0x3c), 1));
        let argument_by_zero = [
            instruction(0x20, 0, 0, 16),
            instruction(0x34, 0, 0, 0),
            instruction(0x06, 0, 0, 0x7fff_0000),
        ];
        assert!(!is_harmless(&argument_by_zero, 1));
    }

    #[test]
    fn an_invalid_program_is_not_harmless() {
        assert!(!is_harmless(&[], 1));
        for code in 0..=u16::MAX {
            // No instruction may cause a panic or an endless loop.
            is_harmless(&[instruction(code, 255, 255, u32::MAX)], 1);
        }
        assert!(!is_harmless(&[instruction(0x20, 0, 0, 66)], 1));
        assert!(!is_harmless(&[instruction(0x05, 0, 0, u32::MAX)], 1));
    }
}
