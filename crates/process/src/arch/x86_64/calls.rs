//! Finds calls in x86-64 code.
//!
//! The code is not disassembled. A `call rel32` or `jmp rel32` has five bytes, and the last four must name one of a few
//! addresses, so other bytes that look like such an instruction are rare: about ten in 2^32.

use std::collections::HashSet;

fn displaced(svma: u64, code: &[u8], at: usize, length: usize) -> Option<u64> {
    let field = code.get(at + length - 4..at + length)?;
    let displacement = i32::from_le_bytes(field.try_into().ok()?);
    Some(
        svma.wrapping_add((at + length) as u64)
            .wrapping_add_signed(displacement.into()),
    )
}

/// Finds calls through slots. `call *slot(%rip)` is a call. `jmp *slot(%rip)` is a PLT entry, and calls of that entry
/// count too. It may also be a tail call. Nothing calls the address of a tail call.
pub(crate) fn slot_jumps(
    svma: u64,
    code: &[u8],
    slots: &HashSet<u64>,
    stubs: &mut HashSet<u64>,
) -> u64 {
    let mut calls = 0;
    for at in 0..code.len().saturating_sub(5) {
        if code[at] != 0xff || (code[at + 1] != 0x25 && code[at + 1] != 0x15) {
            continue;
        }
        if !displaced(svma, code, at, 6).is_some_and(|slot| slots.contains(&slot)) {
            continue;
        }
        if code[at + 1] == 0x15 {
            calls += 1;
            continue;
        }
        // Entries may begin with `endbr64` and `bnd`.
        let start = at - usize::from(at > 0 && code[at - 1] == 0xf2);
        let marked = start >= 4 && code[start - 4..start] == [0xf3, 0x0f, 0x1e, 0xfa];
        for entry in [at, start, start - if marked { 4 } else { 0 }] {
            stubs.insert(svma + entry as u64);
        }
    }
    calls
}

/// Passes every `call rel32` and `jmp rel32` to `found`, as source and target.
pub(crate) fn relative_calls(svma: u64, code: &[u8], mut found: impl FnMut(u64, u64)) {
    for at in 0..code.len().saturating_sub(4) {
        if (code[at] == 0xe8 || code[at] == 0xe9)
            && let Some(to) = displaced(svma, code, at, 5)
        {
            found(svma + at as u64, to);
        }
    }
}
