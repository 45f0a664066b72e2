//! What a target's seccomp filters do with a system call.

use std::io;

use crate::ptrace;

const SECCOMP_GET_FILTER: libc::c_uint = 0x420c;
/// AUDIT_ARCH_X86_64 of `<linux/audit.h>`.
const ARCH: u32 = 0xc000_003e;
/// `struct seccomp_data`: nr, arch, instruction_pointer, args[6].
const DATA_WORDS: usize = 16;
/// `BPF_MAXINSNS`.
const MAX_INSTRUCTIONS: usize = 4096;

/// One instruction of a classic BPF program (`struct sock_filter`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub code: u16,
    pub jump_true: u8,
    pub jump_false: u8,
    pub k: u32,
}

/// The filters of a stopped thread, the newest first. The kernel shows them to a tracer with
/// CAP_SYS_ADMIN that has none itself (ptrace(2), PTRACE_SECCOMP_GET_FILTER).
pub(crate) fn filters(tid: i32) -> io::Result<Vec<Vec<Instruction>>> {
    let mut all = Vec::new();
    loop {
        // SAFETY: without a buffer the kernel only says how many instructions there are.
        let length = match unsafe { ptrace::request(SECCOMP_GET_FILTER, tid, all.len(), 0) } {
            Ok(length) => length as usize,
            // No filter of that number.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT)) => return Ok(all),
            // No filter at all.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL)) && all.is_empty() => {
                return Ok(all);
            }
            Err(e) => return Err(e),
        };
        let mut program = vec![Instruction::default(); length.min(MAX_INSTRUCTIONS)];
        let buffer = program.as_mut_ptr() as usize;
        // SAFETY: a filter never changes, so the kernel writes as many instructions as it announced,
        // and no program is longer than BPF_MAXINSNS.
        unsafe { ptrace::request(SECCOMP_GET_FILTER, tid, all.len(), buffer)? };
        all.push(program);
    }
}

/// Whether a filter lets `nr` pass or refuses it with an error number; false: it does anything else,
/// such as to kill, or cannot be followed. Arguments are taken to be 0.
pub(crate) fn is_harmless(program: &[Instruction], nr: i64) -> bool {
    const ACTION: u32 = 0xffff_0000;
    const ERRNO: u32 = 0x0005_0000;
    const LOG: u32 = 0x7ffc_0000;
    const ALLOW: u32 = 0x7fff_0000;
    let mut data = [0u32; DATA_WORDS];
    data[0] = nr as u32;
    data[1] = ARCH;
    matches!(
        run(program, &data).map(|result| result & ACTION),
        Some(ERRNO | LOG | ALLOW)
    )
}

/// Runs a program as the kernel does (Documentation/networking/filter.rst); `None` if it is not one that
/// the kernel takes for seccomp.
fn run(program: &[Instruction], data: &[u32; DATA_WORDS]) -> Option<u32> {
    let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; 16]);
    let mut at = 0usize;
    // Jumps only go forward, so this ends.
    loop {
        let i = program.get(at)?;
        at += 1;
        let operand = if i.code & 0x08 == 0 { i.k } else { x };
        match (i.code & 0x07, i.code) {
            // LD and LDX: absolute word, immediate, scratch memory, length
            (0, 0x20) => a = word(data, i.k)?,
            (0, 0x00) => a = i.k,
            (0, 0x60) => a = *memory.get(i.k as usize)?,
            (0, 0x80) => a = (DATA_WORDS * 4) as u32,
            (1, 0x01) => x = i.k,
            (1, 0x61) => x = *memory.get(i.k as usize)?,
            (1, 0x81) => x = (DATA_WORDS * 4) as u32,
            (2, _) => *memory.get_mut(i.k as usize)? = a,
            (3, _) => *memory.get_mut(i.k as usize)? = x,
            (4, code) => {
                a = match code & 0xf0 {
                    0x00 => a.wrapping_add(operand),
                    0x10 => a.wrapping_sub(operand),
                    0x20 => a.wrapping_mul(operand),
                    0x30 => a.checked_div(operand)?,
                    0x40 => a | operand,
                    0x50 => a & operand,
                    0x60 => a.checked_shl(operand)?,
                    0x70 => a.checked_shr(operand)?,
                    0x80 => a.wrapping_neg(),
                    0xa0 => a ^ operand,
                    _ => return None,
                }
            }
            (5, code) => {
                let taken = match code & 0xf0 {
                    0x00 => {
                        at = at.checked_add(i.k as usize)?;
                        continue;
                    }
                    0x10 => a == operand,
                    0x20 => a > operand,
                    0x30 => a >= operand,
                    0x40 => a & operand != 0,
                    _ => return None,
                };
                at += usize::from(if taken { i.jump_true } else { i.jump_false });
            }
            (6, 0x06) => return Some(i.k),
            (6, 0x16) => return Some(a),
            (7, 0x07) => x = a,
            (7, 0x87) => a = x,
            _ => return None,
        }
    }
}

fn word(data: &[u32; DATA_WORDS], offset: u32) -> Option<u32> {
    let offset = offset as usize;
    (offset.is_multiple_of(4)).then(|| data.get(offset / 4).copied())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instruction(code: u16, jump_true: u8, jump_false: u8, k: u32) -> Instruction {
        Instruction {
            code,
            jump_true,
            jump_false,
            k,
        }
    }

    /// Kills at `killed`, refuses `refused`, lets the rest pass.
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
    fn actions_are_told_apart() {
        let filter = filter(35, 10);
        assert!(!is_harmless(&filter, 35));
        assert!(is_harmless(&filter, 10));
        assert!(is_harmless(&filter, 1));
    }

    #[test]
    fn what_is_no_program_is_not_harmless() {
        assert!(!is_harmless(&[], 1));
        for code in 0..=u16::MAX {
            // Whatever it is: no panic, no endless loop.
            is_harmless(&[instruction(code, 255, 255, u32::MAX)], 1);
        }
        assert!(!is_harmless(&[instruction(0x20, 0, 0, 66)], 1));
        assert!(!is_harmless(&[instruction(0x05, 0, 0, u32::MAX)], 1));
    }
}
