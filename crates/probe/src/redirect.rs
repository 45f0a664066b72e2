//! Functions redirected to a replacement that can still call the original.
//!
//! A jump at the function's entry leads to a pad, and the pad jumps to the address in its *cell*. Initially, that is
//! the address of the function's *trampoline*: the displaced instructions, and a jump to the code after them. So a call
//! still has the same effect as before. The cell serves the function as a GOT slot serves an imported one: writing the
//! address of a wrapper into it redirects the calls, and the wrapper calls the trampoline.
//!
//! This memory contains no calls, so nothing ever returns into it, and no frame on any stack belongs to it. The bytes
//! are complete before any jump leads to them. A journal of the replaced code comes first, so that a later attacher can
//! restore every byte after this attacher was killed, or in a forked process.

use crate::assembler::{Assembler, distance, moved_by};
use crate::{JUMP_BYTES, Plan, Refusal};
use std::ops::Range;

const MAGIC: u64 = u64::from_le_bytes(*b"mhkpads\0");
const VERSION: u64 = 1;
const HEADER_BYTES: u64 = 64;
const ENTRY_BYTES: u64 = 48;
const PAGE_BYTES: u64 = 4096;
/// Upper bound on the size of a pad and a trampoline.
const CODE_BYTES: u64 = 192;
/// Maximum number of functions; memory with a higher number is not ours.
const MOST_ENTRIES: u64 = 1 << 16;

/// A function to redirect.
#[derive(Clone, Copy, Debug)]
pub struct Redirected<'p> {
    /// Displaced instructions.
    pub plan: &'p Plan,
    /// Load bias of its module.
    pub bias: u64,
    /// Code of the module (svma) whose calls bypass the cell: a part of the allocator itself, which uses its own
    /// functions for blocks that the program has never seen. The pad may use r11, like a call through a module's PLT.
    pub inner: Option<&'p Range<u64>>,
}

/// A function with a pad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedirectEntry {
    /// Address of the jump, present or planned (avma).
    pub at: u64,
    /// Original bytes.
    pub original: [u8; JUMP_BYTES],
    /// Bytes of the jump.
    pub jump: [u8; JUMP_BYTES],
    /// Address of the function's trampoline (avma).
    pub trampoline: u64,
    /// Address of its cell (avma).
    pub cell: u64,
    /// Load bias of the function's module.
    pub bias: u64,
}

/// Memory of pads, as bytes.
pub struct Redirects {
    /// All bytes: whole pages.
    pub bytes: Vec<u8>,
    /// Functions in the given order, or the reason why there is no pad.
    pub entries: Vec<Result<RedirectEntry, Refusal>>,
}

/// Number of bytes to read for the size of a journal.
pub const REDIRECT_HEADER_BYTES: usize = HEADER_BYTES as usize;

/// Returns the size of the pads for the given number of functions, rounded up to whole pages.
pub fn redirect_bytes(functions: usize) -> u64 {
    (code_offset(functions as u64) + functions as u64 * CODE_BYTES).next_multiple_of(PAGE_BYTES)
}

fn cells_offset(functions: u64) -> u64 {
    (HEADER_BYTES + functions * ENTRY_BYTES).next_multiple_of(8)
}

fn code_offset(functions: u64) -> u64 {
    (cells_offset(functions) + functions * 8).next_multiple_of(64)
}

impl Redirects {
    /// Creates the pads for this address (avma).
    pub fn new(functions: &[Redirected<'_>], at: u64) -> Redirects {
        let count = functions.len() as u64;
        let mut bytes = vec![0xcc; redirect_bytes(functions.len()) as usize];
        let mut put = |offset: u64, part: &[u8]| {
            bytes[offset as usize..][..part.len()].copy_from_slice(part);
        };
        let mut entries = Vec::new();
        for (function, number) in functions.iter().zip(0..) {
            let code = code_offset(count) + number * CODE_BYTES;
            let cell = at + cells_offset(count) + number * 8;
            let made = redirect(function, at + code, cell);
            if let Ok((entry, machine_code)) = &made {
                debug_assert!(machine_code.len() as u64 <= CODE_BYTES);
                put(code, machine_code);
                put(entry.cell - at, &entry.trampoline.to_le_bytes());
            }
            entries.push(made.map(|(entry, _)| entry));
        }
        let journal: Vec<RedirectEntry> = entries.iter().flatten().copied().collect();
        let words = [MAGIC, VERSION, journal.len() as u64];
        for (word, number) in words.iter().zip(0..) {
            put(number * 8, &word.to_le_bytes());
        }
        for (entry, number) in journal.iter().zip(0..) {
            put(HEADER_BYTES + number * ENTRY_BYTES, &entry.write());
        }
        Redirects { bytes, entries }
    }
}

fn redirect(
    function: &Redirected<'_>,
    at: u64,
    cell: u64,
) -> Result<(RedirectEntry, Vec<u8>), Refusal> {
    let Redirected { plan, bias, inner } = *function;
    let entry = plan.at.wrapping_add(bias);
    let mut code = Assembler::new(at);
    let mut inner_call = None;
    if let Some(inner) = inner {
        let bytes = u32::try_from(inner.end - inner.start).map_err(|_| Refusal::OutOfReach)?;
        code.put_relative(b"\x4c\x8d\x1d", inner.start.wrapping_add(bias))?; // lea r11, [rip + inner]
        code.put(b"\x49\xf7\xdb"); // neg r11
        code.put(b"\x4c\x03\x1c\x24"); // add r11, [rsp]
        code.put(b"\x49\x81\xfb"); // cmp r11, bytes
        code.put(&bytes.to_le_bytes());
        inner_call = Some(code.put_forward(b"\x0f\x82")); // jb trampoline
    }
    code.put_relative(b"\xff\x25", cell)?; // jmp [rip + cell]
    code.align();
    if let Some(branch) = inner_call {
        code.arrive(branch);
    }
    let trampoline = code.here();
    let moved: Vec<_> = plan.displaced.iter().map(|i| moved_by(i, bias)).collect();
    code.put_relocated(&moved)?;
    if plan.goes_on {
        let back = entry.wrapping_add(plan.displaced_bytes as u64);
        code.put_relative(b"\xe9", back)?;
    }
    let mut jump = [0xe9; JUMP_BYTES];
    jump[1..].copy_from_slice(&distance(entry.wrapping_add(JUMP_BYTES as u64), at)?);
    let entry = RedirectEntry {
        at: entry,
        original: plan.original,
        jump,
        trampoline,
        cell,
        bias,
    };
    Ok((entry, code.code))
}

impl RedirectEntry {
    fn write(&self) -> [u8; ENTRY_BYTES as usize] {
        let mut bytes = [0; ENTRY_BYTES as usize];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, &self.at.to_le_bytes());
        put(8, &self.original);
        put(16, &self.jump);
        put(24, &self.trampoline.to_le_bytes());
        put(32, &self.cell.to_le_bytes());
        put(40, &self.bias.to_le_bytes());
        bytes
    }

    fn read(bytes: &[u8; ENTRY_BYTES as usize]) -> RedirectEntry {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| bytes[at + n]));
        RedirectEntry {
            at: word(0),
            original: std::array::from_fn(|n| bytes[8 + n]),
            jump: std::array::from_fn(|n| bytes[16 + n]),
            trampoline: word(24),
            cell: word(32),
            bias: word(40),
        }
    }

    /// Returns true if the jump leads into this memory. If it does not, the process's entry is not credible.
    pub fn leads_into(&self, memory: &Range<u64>) -> bool {
        let [0xe9, distance @ ..] = self.jump else {
            return false;
        };
        let behind = self.at.wrapping_add(JUMP_BYTES as u64);
        let to = behind.wrapping_add_signed(i64::from(i32::from_le_bytes(distance)));
        memory.contains(&to) && memory.contains(&self.cell) && memory.contains(&self.trampoline)
    }
}

/// Returns the size of the journal after the header in bytes; `None` if this is not the header of memory with pads.
pub fn redirect_journal_bytes(header: &[u8]) -> Option<usize> {
    let words = header.as_chunks::<8>().0;
    let word = |n: usize| words.get(n).map(|w| u64::from_le_bytes(*w));
    let entries = word(2)?;
    let is_ours = word(0)? == MAGIC && word(1)? == VERSION && entries <= MOST_ENTRIES;
    is_ours.then_some((entries * ENTRY_BYTES) as usize)
}

/// Reads a journal.
pub fn read_redirects(journal: &[u8]) -> Vec<RedirectEntry> {
    let (entries, _) = journal.as_chunks::<{ ENTRY_BYTES as usize }>();
    entries.iter().map(RedirectEntry::read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Code, plan};
    use iced_x86::{Decoder, DecoderOptions};

    const AT: u64 = 0x7000_0000;
    const BIAS: u64 = 0x6f00_0000;

    /// push r12; mov r12, rdi; push rbp; ret, between padding.
    const FUNCTION: &[u8] = b"\x41\x54\x49\x89\xfc\x55\x5d\x41\x5c\xc3\x90\x90\x90\x90\x90\x90";

    fn planned() -> Plan {
        let text = [(0x1000u64, FUNCTION)];
        let function = 0x1000..0x100a;
        let code = Code::new(&text, &[], std::slice::from_ref(&function), &[]);
        plan(&code, &function).unwrap()
    }

    #[test]
    fn a_pad_leads_to_its_cell_and_a_trampoline_to_the_rest_of_the_function() {
        let plan = planned();
        let function = Redirected {
            plan: &plan,
            bias: BIAS,
            inner: None,
        };
        let made = Redirects::new(&[function, function], AT);
        assert_eq!(made.bytes.len() as u64, redirect_bytes(2));
        for entry in &made.entries {
            let entry = entry.as_ref().unwrap();
            assert_eq!(entry.at, 0x1000 + BIAS);
            let memory = AT..AT + made.bytes.len() as u64;
            assert!(entry.leads_into(&memory));
            assert!(!entry.leads_into(&(memory.end..memory.end + 4096)));
            let at = |address: u64| &made.bytes[(address - AT) as usize..];
            assert_eq!(at(entry.cell)[..8], entry.trampoline.to_le_bytes());
            let distance = i32::from_le_bytes(*entry.jump[1..].first_chunk().unwrap());
            let pad = (entry.at + 5).wrapping_add_signed(distance.into());
            let mut decoder = Decoder::with_ip(64, at(pad), pad, DecoderOptions::NONE);
            assert_eq!(decoder.decode().ip_rel_memory_address(), entry.cell);
            let code = at(entry.trampoline);
            assert_eq!(code[..5], FUNCTION[..5], "the displaced instructions");
            let mut decoder =
                Decoder::with_ip(64, &code[5..], entry.trampoline + 5, DecoderOptions::NONE);
            assert_eq!(decoder.decode().near_branch_target(), entry.at + 5);
        }
    }

    #[test]
    fn the_journal_can_be_read_back() {
        let plan = planned();
        let function = Redirected {
            plan: &plan,
            bias: BIAS,
            inner: Some(&(0x2000..0x2100)),
        };
        let made = Redirects::new(&[function], AT);
        let bytes = redirect_journal_bytes(&made.bytes).unwrap();
        let journal = read_redirects(&made.bytes[REDIRECT_HEADER_BYTES..][..bytes]);
        assert_eq!(journal, [made.entries[0].clone().unwrap()]);
        assert_eq!(redirect_journal_bytes(b"something else"), None);
        assert_eq!(redirect_journal_bytes(&[0; REDIRECT_HEADER_BYTES]), None);
        // The distance is too great for a jump.
        let far = Redirects::new(&[function], 1 << 40);
        assert_eq!(far.entries[0], Err(Refusal::OutOfReach));
        assert_eq!(redirect_journal_bytes(&far.bytes), Some(0));
    }
}
