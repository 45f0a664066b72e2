//! ELF files of AArch64 (ELF for the Arm 64-bit Architecture, "Dynamic relocations").

use crate::SlotKind;
use goblin::elf::{header, reloc};

/// `e_machine`.
pub(crate) const MACHINE: u16 = header::EM_AARCH64;

/// `e_machine` of core dumps whose notes are understood: none.
pub(crate) const CORES: Option<u16> = None;

/// Returns the kind of slot that a relocation creates, if any.
pub(crate) fn slot_kind(relocation: &reloc::Reloc) -> Option<SlotKind> {
    match relocation.r_type {
        reloc::R_AARCH64_JUMP_SLOT => Some(SlotKind::JumpSlot),
        reloc::R_AARCH64_GLOB_DAT => Some(SlotKind::GlobDat),
        reloc::R_AARCH64_ABS64 if relocation.r_addend.unwrap_or(0) == 0 => Some(SlotKind::Data64),
        _ => None,
    }
}

/// Returns the address (svma) of the resolver whose result the loader writes into the word of this relocation
/// (R_AARCH64_IRELATIVE); `None` for other relocations.
pub(crate) fn resolver(relocation: &reloc::Reloc) -> Option<u64> {
    let is_resolved = relocation.r_type == reloc::R_AARCH64_IRELATIVE;
    let addend = relocation.r_addend.filter(|_| is_resolved)?;
    u64::try_from(addend).ok()
}
