//! Places through which our code can make a call that every unwinder can unwind through.
//!
//! One of our functions may be between a caller and the called function, without call frame information that an
//! unwinder of the process would find. If the call returns into the code of another function with an equal frame, an
//! unwinder uses the information of that function and continues with the caller. If the instruction there calls the
//! address in a register, the thread returns to us.

use crate::Sections;
use crate::arch::native::X86_64;
use crate::descriptions::each_description;
use gimli::{CfaRule, EhFrame, LittleEndian, Register, RegisterRule, UnwindContext};

/// Instruction of a passage: `call *%rbx`.
pub const PASSAGE_CODE: [u8; 2] = [0xff, 0xd3];

/// Registers that a passage's function may save in its frame, in the order of [`Passage::saved`]. Together with rbp,
/// these are all that a callee has to preserve (psABI, 3.2.1).
const PRESERVED: [Register; 5] = [
    X86_64::RBX,
    X86_64::R12,
    X86_64::R13,
    X86_64::R14,
    X86_64::R15,
];

/// Number of words below the CFA in which a frame for a passage saves registers.
const MOST_WORDS: i64 = 8;

/// Place where a function has `call *%rbx`, an ordinary frame with a frame pointer, and no cleanup when an exception
/// passes through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// Address of the instruction (svma).
    pub address: u64,
    /// Words where the function saves the caller's rbx, r12, r13, r14 and r15. Words are counted below the CFA: the
    /// first is the return address, and the second is rbp. 0: that register is unchanged.
    pub saved: [u8; 5],
}

/// Returns the first passage among these addresses (svma) of `call *%rbx` instructions.
pub fn passage(sections: &Sections<'_>, candidates: &[u64]) -> Option<Passage> {
    let mut frames = EhFrame::new(&sections.eh_frame, LittleEndian);
    frames.set_address_size(8);
    let mut context = UnwindContext::new();
    let mut found = None;
    each_description(&frames, &sections.bases, |fde| {
        // A frame with a personality may end the program, or catch an exception.
        let is_plain = fde.personality().is_none() && fde.lsda().is_none();
        if !is_plain || fde.is_signal_trampoline() {
            return true;
        }
        // A return address is looked up by the byte before it.
        let mut within = candidates
            .iter()
            .filter(|at| fde.contains(**at) && fde.contains(at.wrapping_sub(1)));
        found = within.find_map(|&address| {
            let row = fde.unwind_info_for_address(
                &frames,
                &sections.bases,
                &mut context,
                address.wrapping_sub(1),
            );
            let row = row.ok()?;
            let saved = saved_registers(row.cfa(), |register| row.register(register))?;
            Some(Passage { address, saved })
        });
        found.is_none()
    });
    found
}

/// Returns the locations where a frame saves registers, if such a frame can be built for a call: it has a frame
/// pointer, so that it may have any size, and saves rbx, which will contain a different value.
fn saved_registers<O: gimli::ReaderOffset>(
    cfa: &CfaRule<O>,
    rule: impl Fn(Register) -> Option<RegisterRule<O>>,
) -> Option<[u8; 5]> {
    let is_of_frame_pointer = matches!(
        cfa,
        CfaRule::RegisterAndOffset { register, offset: 16 } if *register == X86_64::RBP
    );
    let kept_at = |register| match rule(register) {
        Some(RegisterRule::Offset(offset)) => Some(offset),
        _ => None,
    };
    if !is_of_frame_pointer || kept_at(X86_64::RA) != Some(-8) || kept_at(X86_64::RBP) != Some(-16)
    {
        return None;
    }
    let mut saved = [0; 5];
    for (place, register) in saved.iter_mut().zip(PRESERVED) {
        *place = match rule(register) {
            None | Some(RegisterRule::SameValue) => 0,
            Some(RegisterRule::Offset(offset)) => {
                let words = -offset / 8;
                let is_free = offset % 8 == 0 && (3..=MOST_WORDS).contains(&words);
                u8::try_from(words).ok().filter(|_| is_free)?
            }
            Some(_) => return None,
        };
    }
    let words = || saved.iter().filter(|&&word| word != 0);
    let is_shared = words().any(|word| words().filter(|other| *other == word).count() > 1);
    (saved[0] != 0 && !is_shared).then_some(saved)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every build of glibc has functions with frames of a variable size that call a function passed to them.
    #[test]
    fn libc_has_one() {
        let bytes = std::fs::read("/lib/x86_64-linux-gnu/libc.so.6").unwrap();
        let sections = Sections::of(&bytes).unwrap();
        // In this file, addresses of code equal file offsets.
        let candidates: Vec<u64> = (0..bytes.len() - 1)
            .filter(|&at| bytes[at..at + 2] == PASSAGE_CODE)
            .map(|at| at as u64)
            .collect();
        let passage = passage(&sections, &candidates).unwrap();
        assert!(candidates.contains(&passage.address));
        assert!((3..=8).contains(&passage.saved[0]));
        assert_eq!(super::passage(&sections, &[]), None);
        // The first instruction of a function has no frame.
        let starts: Vec<u64> = crate::code_ranges(&sections)
            .iter()
            .map(|code| code.range.start)
            .collect();
        assert_eq!(super::passage(&sections, &starts), None);
    }
}
