//! Exits of a function, and the instructions that a jump displaces there.
//!
//! Return addresses stay unchanged, because a function whose latency is measured has a pad at each of its exits
//! instead. So code that reads the stack (exceptions, longjmp, backtraces, shadow stacks) is unaffected. A call that
//! ends with an exception or longjmp is not measured.

use crate::displaced::{self, check_movable, ends_here, is_call};
use crate::plan::{PAGE_BYTES, has_endbr64};
use crate::{Code, JUMP_BYTES, Plan, Refusal};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use std::ops::Range;

/// Prefix (notrack) of an indirect jump whose target needs no endbr64, such as the jump of a switch.
const NOTRACK: u8 = 0x3e;

/// Plans the jumps at the exits of a function whose entry is planned.
pub fn plan_exits(
    code: &Code<'_>,
    function: &Range<u64>,
    entry: &Plan,
) -> Result<Vec<Plan>, Refusal> {
    let undecodable = Refusal::Undecodable { at: function.start };
    let bytes = code.bytes(function).ok_or(undecodable)?;
    let decoder = Decoder::with_ip(64, bytes, function.start, DecoderOptions::NONE);
    let all: Vec<Instruction> = decoder.into_iter().collect();
    let entry_end = entry.at + entry.displaced_bytes as u64;
    let mut plans = Vec::new();
    for (n, instruction) in all.iter().enumerate() {
        if !is_exit(instruction, function, bytes)? {
            continue;
        }
        plans.push(plan_exit(code, &all[..=n], entry_end)?);
    }
    Ok(plans)
}

fn is_exit(
    instruction: &Instruction,
    function: &Range<u64>,
    bytes: &[u8],
) -> Result<bool, Refusal> {
    Ok(match instruction.flow_control() {
        FlowControl::Return => true,
        FlowControl::UnconditionalBranch => !function.contains(&instruction.near_branch_target()),
        FlowControl::IndirectBranch if instruction.is_ip_rel_memory_operand() => true,
        FlowControl::IndirectBranch => {
            let at = (instruction.ip() - function.start) as usize;
            if bytes[at] == NOTRACK {
                return Ok(false);
            }
            // Compilers that emit endbr64 also add the prefix notrack to the jumps of switches.
            if !has_endbr64(bytes) {
                return Err(Refusal::UnclearExit {
                    instruction: displaced::assembly(instruction),
                });
            }
            true
        }
        _ => false,
    })
}

/// Plans the jump at an exit, which is the last of these instructions. Displaces as many of the instructions before the
/// exit as necessary. If that is not possible, the jump also uses the padding after the exit, which is never executed.
fn plan_exit(code: &Code<'_>, until: &[Instruction], entry_end: u64) -> Result<Plan, Refusal> {
    let no_room = |exit: &Instruction| Refusal::NoRoomAtExit { at: exit.ip() };
    let Some((exit, before)) = until.split_last() else {
        return Err(Refusal::NoRoomAtExit { at: entry_end });
    };
    if exit.ip() < entry_end {
        return Err(no_room(exit));
    }
    check_movable(exit)?;
    let mut first = before.len();
    let end = exit.next_ip();
    while end - until[first].ip() < JUMP_BYTES as u64 && first > 0 {
        let previous = &until[first - 1];
        let is_target = code
            .branch_into(until[first].ip()..until[first].ip() + 1)
            .is_some();
        if is_target
            || previous.ip() < entry_end
            || is_call(previous)
            || ends_here(previous)
            || check_movable(previous).is_err()
        {
            break;
        }
        first -= 1;
    }
    let at = until[first].ip();
    let jump = at..at + JUMP_BYTES as u64;
    let original = code.bytes(&jump).and_then(|bytes| bytes.first_chunk());
    let original = *original.ok_or_else(|| no_room(exit))?;
    let is_free = jump.end <= end
        || (is_padding(code, end..jump.end) && code.branch_into(end..jump.end).is_none());
    if !is_free || at / PAGE_BYTES != (jump.end - 1) / PAGE_BYTES {
        return Err(no_room(exit));
    }
    Ok(Plan {
        at,
        original,
        displaced: until[first..].to_vec(),
        displaced_bytes: (end - at) as usize,
        goes_on: false,
        flags_are_dead: false,
    })
}

/// Returns true if the bytes are padding, that is, only instructions without effect.
fn is_padding(code: &Code<'_>, range: Range<u64>) -> bool {
    // The last instruction may extend further.
    let longer = (0..16)
        .rev()
        .find_map(|more| code.bytes(&(range.start..range.end + more)));
    let Some(bytes) = longer else { return false };
    let decoder = Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE);
    decoder
        .into_iter()
        .take_while(|instruction| instruction.ip() < range.end)
        .all(|instruction| matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3))
}
