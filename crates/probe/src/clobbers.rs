//! Decides whether callers can know which registers a function preserves.
//!
//! GCC's -fipa-ra keeps values across a call in registers that the psABI lets the callee clobber, if GCC has seen all
//! code that the call can reach: a function of the same file that calls only functions of the same file. A call of
//! unknown code may change everything that the psABI allows. So a function that reaches an indirect call, or a call
//! through the PLT, can be redirected to our code, which follows the psABI.

use crate::Code;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};
use std::collections::BTreeSet;
use std::ops::Range;

/// Maximum number of examined functions. Beyond it, some calls were not followed.
const MOST_FUNCTIONS: usize = 4096;

/// Returns true if a function, or a function that it calls or jumps to directly, calls code that was unknown when it
/// was compiled. `functions`: all functions of the module, sorted by address.
pub fn calls_unknown_code(
    code: &Code<'_>,
    function: &Range<u64>,
    functions: &[Range<u64>],
) -> bool {
    let mut open = vec![function.clone()];
    let mut seen = BTreeSet::from([function.start]);
    while let Some(range) = open.pop() {
        let Some(bytes) = code.bytes(&range) else {
            continue;
        };
        for instruction in Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE) {
            match instruction.flow_control() {
                FlowControl::IndirectCall => return true,
                FlowControl::IndirectBranch if instruction.is_ip_rel_memory_operand() => {
                    return true;
                }
                _ => {}
            }
            let Some(callee) = target_of(&instruction)
                .filter(|to| !range.contains(to))
                .and_then(|to| containing(functions, to))
            else {
                continue;
            };
            if seen.len() < MOST_FUNCTIONS && seen.insert(callee.start) {
                open.push(callee.clone());
            }
        }
    }
    false
}

fn target_of(instruction: &Instruction) -> Option<u64> {
    let is_branch = matches!(
        instruction.flow_control(),
        FlowControl::Call | FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
    );
    (is_branch && instruction.op0_kind() == OpKind::NearBranch64)
        .then(|| instruction.near_branch_target())
}

/// Returns the function that contains an address; `functions` are sorted.
pub(crate) fn containing(functions: &[Range<u64>], address: u64) -> Option<&Range<u64>> {
    let behind = functions.partition_point(|range| range.start <= address);
    functions[..behind]
        .last()
        .filter(|range| range.contains(&address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_code_is_found_through_calls() {
        // 0x1000: call 0x1010; ret. 0x1010: jmp 0x1020. 0x1020: call *%rax; ret. 0x1030: call 0x1040; ret.
        // 0x1040: ret. 0x1050: jmp *(%rip), as in a PLT.
        let mut text = vec![0x90; 0x60];
        for (at, code) in [
            (0x00, &b"\xe8\x0b\0\0\0\xc3"[..]),
            (0x10, b"\xe9\x0b\0\0\0"),
            (0x20, b"\xff\xd0\xc3"),
            (0x30, b"\xe8\x0b\0\0\0\xc3"),
            (0x40, b"\xc3"),
            (0x50, b"\xff\x25\0\0\0\0"),
        ] {
            text[at..at + code.len()].copy_from_slice(code);
        }
        let functions: Vec<Range<u64>> = (0..6).map(|n| 0x1000 + n * 16..0x1010 + n * 16).collect();
        let text = [(0x1000u64, text.as_slice())];
        let code = Code::new(&text, &[], &functions, &[]);
        let found = functions
            .iter()
            .map(|function| calls_unknown_code(&code, function, &functions));
        assert_eq!(
            found.collect::<Vec<_>>(),
            [true, true, true, false, false, true]
        );
    }
}
