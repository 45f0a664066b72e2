//! Code of a function that a jump displaces.

use crate::displaced::{self, check_movable, ends_here, is_call};
use crate::{Code, Refusal, flags};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};
use std::ops::Range;

/// `jmp rel32`.
pub const JUMP_BYTES: usize = 5;
/// `endbr64`, the target of indirect calls, which stays in place.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Returns true if a function begins with a mark for indirect calls.
pub(crate) fn has_endbr64(function: &[u8]) -> bool {
    function.starts_with(&ENDBR64)
}

/// Code of a function that a jump displaces. Its addresses are of the same kind as those of the [`Code`].
#[derive(Clone, Debug)]
pub struct Plan {
    /// Address of the jump.
    pub at: u64,
    /// Bytes that the jump overwrites.
    pub original: [u8; JUMP_BYTES],
    /// Displaced instructions; none if the jump replaces padding that was reserved for it
    /// (`-fpatchable-function-entry`).
    pub(crate) displaced: Vec<Instruction>,
    /// Number of bytes of the displaced instructions, or of the padding.
    pub displaced_bytes: usize,
    /// True if the pad jumps to the instruction after the displaced ones. A relocated call returns to that instruction
    /// by itself.
    pub(crate) goes_on: bool,
    /// True if nothing reads the arithmetic flags at the entry.
    pub(crate) flags_are_dead: bool,
}

impl Plan {
    /// Returns the displaced instructions as text.
    pub fn assembly(&self) -> Vec<String> {
        self.displaced.iter().map(displaced::assembly).collect()
    }
}

/// Plans the jump for the function that occupies this range of the code.
pub fn plan(code: &Code<'_>, function: &Range<u64>) -> Result<Plan, Refusal> {
    let bytes = code
        .bytes(function)
        .ok_or(Refusal::Undecodable { at: function.start })?;
    let skipped = if has_endbr64(bytes) { ENDBR64.len() } else { 0 };
    let at = function.start + skipped as u64;
    let rest = &bytes[skipped..];
    let Some(original) = rest.first_chunk::<JUMP_BYTES>() else {
        return Err(Refusal::TooShort { bytes: rest.len() });
    };
    let head = head(rest, at)?;
    let is_padding = head.iter().all(|i| i.mnemonic() == Mnemonic::Nop);
    if !is_padding {
        head.iter().try_for_each(check_movable)?;
    }
    let displaced_bytes = head.iter().map(Instruction::len).sum();
    if let Some(call) = head.iter().rev().skip(1).find(|i| is_call(i)) {
        return Err(Refusal::ReturnsIntoJump {
            instruction: displaced::assembly(call),
        });
    }
    // A write within one page is one copy in the kernel, which is never interrupted; see access_remote_vm in
    // mm/memory.c.
    if at / PAGE_BYTES != (at + JUMP_BYTES as u64 - 1) / PAGE_BYTES {
        return Err(Refusal::CrossesPage);
    }
    if let Some(at) = code.undecodable_in(function) {
        return Err(Refusal::Undecodable { at });
    }
    let end = at + displaced_bytes as u64;
    if let Some(from) = code.branch_into(at + 1..end) {
        return Err(Refusal::BranchTarget { from });
    }
    let begins = function.start..at + 1;
    if code.branch_within(function, begins) {
        return Err(Refusal::LoopsToEntry);
    }
    Ok(Plan {
        at,
        original: *original,
        displaced_bytes,
        goes_on: !head
            .last()
            .is_some_and(|last| ends_here(last) || is_call(last)),
        flags_are_dead: flags::are_dead(rest, at),
        displaced: if is_padding { Vec::new() } else { head },
    })
}

/// Returns the instructions that the jump overlaps.
fn head(bytes: &[u8], at: u64) -> Result<Vec<Instruction>, Refusal> {
    let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
    let mut found = Vec::new();
    while decoder.position() < JUMP_BYTES {
        if !decoder.can_decode() {
            return Err(Refusal::TooShort {
                bytes: decoder.position(),
            });
        }
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return Err(Refusal::Undecodable {
                at: instruction.ip(),
            });
        }
        let leaves = ends_here(&instruction);
        found.push(instruction);
        if leaves && decoder.position() < JUMP_BYTES {
            return Err(if decoder.can_decode() {
                Refusal::LeavesTooEarly {
                    bytes: decoder.position(),
                }
            } else {
                Refusal::TooShort {
                    bytes: decoder.position(),
                }
            });
        }
    }
    Ok(found)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
