//! AArch64 (DWARF for the Arm 64-bit Architecture, AAPCS64), as Linux uses it.
//!
//! A call leaves the return address in x30, and most functions save x29 and x30 side by side as a frame record
//! (AAPCS64, 6.4.6). Before it is saved, pointer authentication may put a signature into the bits above the address.
//! `DW_CFA_AARCH64_negate_ra_state` says where it has done so. No rule here needs that instruction, because removing
//! the signature leaves an address without one unchanged.

use super::Frames;
use gimli::{
    AArch64, CfaRule, Encoding, Reader, RegisterRule, UnwindSection, UnwindTableRow, Vendor,
};
use memhook_abi::unwind_rule as rule;
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{LittleEndian, elf::PF_X, elf::PT_LOAD};
use std::ops::Range;

/// Number of registers in call frame information, plus one for the program counter. The program counter is separate
/// from x30, because a leaf function returns to the address in x30.
pub(crate) const REGISTERS: usize = 33;

/// `mov x8, #139; svc #0`, the call of rt_sigreturn. Call frame information describes it only in old kernels, and
/// there leads to the frame record of the interrupted function instead of its program counter
/// (arch/arm64/kernel/vdso/sigreturn.S). Whatever code executes these instructions has a signal frame at its stack
/// pointer.
const SIGNAL_TRAMPOLINE: [u8; 8] = [0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4];

/// Offsets in a signal frame: a `siginfo_t`, a `struct ucontext` with its `uc_mcontext` at byte 176, which contains the
/// fault address, x0 to x30, the stack pointer and the program counter (asm/ucontext.h, asm/sigcontext.h).
const SAVED: [u64; REGISTERS] = {
    let mut saved = [128 + 176 + 8; REGISTERS];
    let mut number = 0;
    while number < REGISTERS {
        saved[number] += number as u64 * 8;
        number += 1;
    }
    saved
};

/// Code of this processor.
pub(crate) enum Code {}

impl Frames for Code {
    const STACK_POINTER: usize = AArch64::SP.0 as usize;
    const FRAME_POINTER: usize = AArch64::X29.0 as usize;
    const RETURN_ADDRESS: usize = AArch64::X30.0 as usize;
    const PC: usize = REGISTERS - 1;
    const SAVED: &'static [u64] = &SAVED;
    const VENDOR: Vendor = Vendor::AArch64;

    fn rule_of<R, S>(row: &UnwindTableRow<R::Offset>, _: &S, _: Encoding) -> Option<u64>
    where
        R: Reader<Offset = usize>,
        S: UnwindSection<R>,
    {
        let return_address = match row.register(AArch64::X30) {
            Some(RegisterRule::Undefined) => return Some(rule::END),
            None | Some(RegisterRule::SameValue) => None,
            Some(RegisterRule::Offset(offset)) => Some(offset),
            Some(_) => return None,
        };
        let CfaRule::RegisterAndOffset { register, offset } = row.cfa() else {
            return None;
        };
        let cfa = match *register {
            AArch64::SP => rule::RSP,
            AArch64::X29 => rule::RBP,
            _ => return None,
        };
        let frame_pointer = match row.register(AArch64::X29) {
            None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => None,
            Some(RegisterRule::Offset(offset)) => Some(offset),
            Some(_) => return None,
        };
        let (saved, place) = match (frame_pointer, return_address) {
            (None, None) => (rule::LINK_SAME, 0),
            (None, Some(place)) => (rule::LINK_AT_CFA, place),
            (Some(place), Some(beside)) if beside == place.checked_add(8)? => {
                (rule::RECORD_AT_CFA, place)
            }
            _ => return None,
        };
        let (offset, place) = (i32::try_from(*offset).ok()?, i16::try_from(place).ok()?);
        Some(rule::pack(cfa, offset, saved, place))
    }

    fn trampolines(elf: &[u8]) -> Vec<Range<u64>> {
        let Ok(file) = ElfFile64::<LittleEndian>::parse(elf) else {
            return Vec::new();
        };
        let endian = LittleEndian;
        let is_code = |header: &&object::elf::ProgramHeader64<LittleEndian>| {
            header.p_type(endian) == PT_LOAD && header.p_flags(endian).0 & PF_X.0 != 0
        };
        let mut found = Vec::new();
        for header in file.elf_program_headers().iter().filter(is_code) {
            let code = header.data(endian, elf).unwrap_or_default();
            let (instructions, _) = code.as_chunks::<4>();
            let at = instructions.windows(2).enumerate();
            let at = at.filter(|(_, pair)| pair.as_flattened() == SIGNAL_TRAMPOLINE);
            found.extend(at.map(|(number, _)| {
                let start = header.p_vaddr(endian).wrapping_add(number as u64 * 4);
                start..start.wrapping_add(SIGNAL_TRAMPOLINE.len() as u64)
            }));
        }
        found
    }
}
