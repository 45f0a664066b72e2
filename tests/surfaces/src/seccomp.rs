//! Seccomp filters of a target. What is predicted for unknown arguments must not contradict a run
//! of the filter with specific ones.

use crate::Input;

type Instruction = (u16, u8, u8, u32);

const ALLOWED: [u32; 3] = [0x0005_0000, 0x7ffc_0000, 0x7fff_0000];

/// Runs a filter. The input consists of the system call, followed by eight-byte instructions.
pub fn filter(bytes: &[u8]) {
    let mut input = Input(bytes);
    let nr = input.byte();
    let seed = input.u32();
    let mut program: Vec<Instruction> = Vec::new();
    while !input.is_empty() && program.len() < 512 {
        let (code, jumps, k) = (input.u16(), input.u16(), input.u32());
        program.push((code, jumps as u8, (jumps >> 8) as u8, k));
    }
    if !memhook_inject::fuzzing::filter_is_harmless(&program, nr.into()) {
        return;
    }
    for round in 0..4u32 {
        let mut data = [0u32; 16];
        (data[0], data[1]) = (nr.into(), 0xc000_003e);
        for (i, word) in (2u32..).zip(&mut data[2..]) {
            *word = seed.rotate_left(round * 8 + i).wrapping_mul(i * round);
        }
        let Some(result) = run(&program, &data) else {
            return;
        };
        let action = result & 0xffff_0000;
        assert!(ALLOWED.contains(&action), "{result:#x} of {program:x?}");
    }
}

/// Runs a filter the way the kernel does (Documentation/networking/filter.rst). Returns `None` if
/// the kernel would not load it.
fn run(program: &[Instruction], data: &[u32; 16]) -> Option<u32> {
    let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; 16]);
    let mut at = 0;
    loop {
        let &(code, jump_true, jump_false, k) = program.get(at)?;
        at += 1;
        let operand = if code & 8 == 0 { k } else { x };
        match code {
            0x20 => a = *data.get(k as usize / 4)?,
            0x00 => a = k,
            0x60 => a = *memory.get(k as usize)?,
            0x80 => a = 64,
            0x01 => x = k,
            0x61 => x = *memory.get(k as usize)?,
            0x81 => x = 64,
            0x02 => *memory.get_mut(k as usize)? = a,
            0x03 => *memory.get_mut(k as usize)? = x,
            0x04 | 0x0c => a = a.wrapping_add(operand),
            0x14 | 0x1c => a = a.wrapping_sub(operand),
            0x24 | 0x2c => a = a.wrapping_mul(operand),
            // A division by a register that is zero ends the filter with result 0, which kills the
            // process.
            0x34 | 0x3c if operand == 0 => return Some(0),
            0x34 | 0x3c => a /= operand,
            0x44 | 0x4c => a |= operand,
            0x54 | 0x5c => a &= operand,
            0x64 => a = a.checked_shl(operand)?,
            0x74 => a = a.checked_shr(operand)?,
            0x6c => a = a.wrapping_shl(operand),
            0x7c => a = a.wrapping_shr(operand),
            0x84 => a = a.wrapping_neg(),
            0xa4 | 0xac => a ^= operand,
            0x05 => at = at.checked_add(k as usize)?,
            0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0x45 | 0x4d => {
                let holds = match code & 0xf0 {
                    0x10 => a == operand,
                    0x20 => a > operand,
                    0x30 => a >= operand,
                    _ => a & operand != 0,
                };
                at += usize::from(if holds { jump_true } else { jump_false });
            }
            0x06 => return Some(k),
            0x16 => return Some(a),
            0x07 => x = a,
            0x87 => a = x,
            _ => return None,
        }
    }
}
