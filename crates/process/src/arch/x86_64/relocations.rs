//! ELF files of x86-64 (psABI, "Relocation Types").

use crate::SlotKind;
use goblin::elf::{header, reloc};

/// `e_machine`.
pub(crate) const MACHINE: u16 = header::EM_X86_64;
/// The byte that executes as `ret`.
pub const RETURN: u8 = 0xc3;

/// Returns the slot that a relocation makes, if it makes one.
pub(crate) fn slot_kind(relocation: &reloc::Reloc) -> Option<SlotKind> {
    match relocation.r_type {
        reloc::R_X86_64_JUMP_SLOT => Some(SlotKind::JumpSlot),
        reloc::R_X86_64_GLOB_DAT => Some(SlotKind::GlobDat),
        reloc::R_X86_64_64 if relocation.r_addend.unwrap_or(0) == 0 => Some(SlotKind::Data64),
        _ => None,
    }
}

/// The address (svma) of the resolver whose answer the loader writes into the word that this relocation is about
/// (R_X86_64_IRELATIVE); `None` for others.
pub(crate) fn resolver(relocation: &reloc::Reloc) -> Option<u64> {
    let is_resolved = relocation.r_type == reloc::R_X86_64_IRELATIVE;
    let addend = relocation.r_addend.filter(|_| is_resolved)?;
    u64::try_from(addend).ok()
}
