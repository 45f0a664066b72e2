//! Functions in which a call may end up after the called function has jumped to them, so that the called function has
//! no frame on the stack.
//!
//! Functions that another function calls normally are not included, because the caller's frame is above their own.

use crate::clobbers::containing;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use std::collections::BTreeSet;
use std::ops::Range;

/// Maximum number of examined functions; beyond that, there is no result.
const MOST_FUNCTIONS: usize = 512;
/// Maximum number of instructions between the computation of a jump table's entry and the jump.
const NEAR: usize = 4;

/// Code of a module to examine. All addresses are relative to the same base, usually that of the file (svma).
pub struct JumpingCode<'a> {
    /// Pieces of code, sorted by address: functions, and cold parts that the compiler has moved away.
    pub functions: &'a [Range<u64>],
    /// Code that leads to other modules (the PLT).
    pub leading_away: &'a [Range<u64>],
    /// Returns the bytes of a piece.
    pub bytes: &'a dyn Fn(&Range<u64>) -> Option<Vec<u8>>,
}

impl JumpingCode<'_> {
    /// Returns the functions at these addresses, and all functions that are reached from them by jumps. Returns `None`
    /// if the set is unknown, because one of the functions jumps to an address that is not in its code.
    pub fn reached(&self, entries: impl IntoIterator<Item = u64>) -> Option<Vec<Range<u64>>> {
        let mut open = Vec::new();
        for entry in entries {
            open.push(containing(self.functions, entry)?.clone());
        }
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        while let Some(function) = open.pop() {
            if !seen.insert(function.start) {
                continue;
            }
            if seen.len() > MOST_FUNCTIONS {
                return None;
            }
            open.extend(self.jumps_of(&function)?);
            found.push(function);
        }
        found.sort_by_key(|range| range.start);
        Some(found)
    }

    fn jumps_of(&self, function: &Range<u64>) -> Option<Vec<Range<u64>>> {
        let bytes = (self.bytes)(function)?;
        let mut found = Vec::new();
        let mut computed = usize::MAX;
        for (index, instruction) in
            Decoder::with_ip(64, &bytes, function.start, DecoderOptions::NONE)
                .iter()
                .enumerate()
        {
            match instruction.flow_control() {
                FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                    let to = instruction.near_branch_target();
                    let leaves = |range: &Range<u64>| range.contains(&to);
                    if !function.contains(&to) && !self.leading_away.iter().any(leaves) {
                        found.push(containing(self.functions, to)?.clone());
                    }
                }
                FlowControl::IndirectBranch => {
                    let is_near = index.checked_sub(computed).is_some_and(|n| n <= NEAR);
                    if !(indexes_a_table(&instruction) || is_near) {
                        return None;
                    }
                }
                _ => {}
            }
            // Position-independent code adds the entry of a jump table to the table's address.
            if instruction.mnemonic() == Mnemonic::Add
                && instruction.op0_kind() == OpKind::Register
                && instruction.op1_kind() == OpKind::Register
            {
                computed = index;
            }
        }
        Some(found)
    }
}

/// `jmp *table(,%rax,8)`
fn indexes_a_table(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Memory
        && instruction.memory_base() == Register::None
        && instruction.memory_index() != Register::None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_are_followed_and_calls_are_not() {
        // 0x1000: call 0x1030; jmp 0x1010. 0x1010: je 0x1020; jmp 0x1050 (PLT). 0x1020: add %rdx,%rax; jmp *%rax.
        // 0x1030: ret. 0x1040: jmp *%rax.
        let mut text = [0x90; 0x60];
        for (at, code) in [
            (0x00, &b"\xe8\x2b\0\0\0\xe9\x06\0\0\0"[..]),
            (0x10, b"\x74\x0e\xe9\x39\0\0\0"),
            (0x20, b"\x48\x01\xd0\xff\xe0"),
            (0x30, b"\xc3"),
            (0x40, b"\xff\xe0"),
        ] {
            text[at..at + code.len()].copy_from_slice(code);
        }
        let functions: Vec<Range<u64>> = (0..5).map(|n| 0x1000 + n * 16..0x1010 + n * 16).collect();
        let bytes = |range: &Range<u64>| {
            let at = |address: u64| (address - 0x1000) as usize;
            Some(text[at(range.start)..at(range.end)].to_vec())
        };
        let plt = 0x1050..0x1060;
        let code = JumpingCode {
            functions: &functions,
            leading_away: std::slice::from_ref(&plt),
            bytes: &bytes,
        };
        assert_eq!(code.reached([0x1000]), Some(functions[..3].to_vec()));
        assert_eq!(code.reached([0x1030]), Some(functions[3..4].to_vec()));
        assert_eq!(code.reached([0x1040]), None, "it may lead anywhere");
        assert_eq!(code.reached([0x1050]), None, "no function");
    }
}
