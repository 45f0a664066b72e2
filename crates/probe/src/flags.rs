//! Decides whether a pad has to preserve the arithmetic flags.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register, RflagsBits};

/// OF, SF, ZF, AF, CF and PF.
const ARITHMETIC: u32 = RflagsBits::OF
    | RflagsBits::SF
    | RflagsBits::ZF
    | RflagsBits::AF
    | RflagsBits::CF
    | RflagsBits::PF;

/// Maximum number of examined instructions.
const MOST_INSTRUCTIONS: usize = 32;

/// Returns true if the code at `address` overwrites all arithmetic flags before anything can read them. The ABI does
/// not preserve flags across calls, but code that is not bound by the ABI might rely on flags: assembly, and calls
/// between functions of one file, whose registers GCC's -fipa-ra tracks.
pub(crate) fn are_dead(code: &[u8], address: u64) -> bool {
    let mut live = ARITHMETIC;
    let decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    for instruction in decoder.into_iter().take(MOST_INSTRUCTIONS) {
        if instruction.is_invalid() || instruction.rflags_read() & live != 0 {
            return false;
        }
        if always_writes_flags(&instruction) {
            live &= !overwritten(&instruction);
        }
        if live == 0 {
            return true;
        }
        if instruction.flow_control() != FlowControl::Next {
            return false;
        }
    }
    false
}

/// Returns the flags that an instruction overwrites. Flags that the instruction leaves undefined do not count, because
/// most processors leave them unchanged: after `bt`, SF has its earlier value. Code should not rely on this behaviour,
/// but a pad should not be detectable by it either. AF is the exception: it counts, because it is undefined after every
/// logical operation, and only LAHF and PUSHF can read it.
fn overwritten(instruction: &Instruction) -> u32 {
    let defined =
        instruction.rflags_written() | instruction.rflags_cleared() | instruction.rflags_set();
    defined | instruction.rflags_undefined() & RflagsBits::AF
}

/// Returns false for instructions that may leave the flags unchanged: shifts by zero, and repeated comparisons with a
/// count of zero.
fn always_writes_flags(instruction: &Instruction) -> bool {
    use Mnemonic::{Rcl, Rcr, Rol, Ror, Sar, Shl, Shld, Shr, Shrd};
    let is_shift = matches!(
        instruction.mnemonic(),
        Rcl | Rcr | Rol | Ror | Sar | Shl | Shld | Shr | Shrd
    );
    let by_register =
        (0..instruction.op_count()).any(|n| instruction.op_register(n) == Register::CL);
    let by_nothing = is_shift && (by_register || instruction.immediate8() & 0x1f == 0);
    let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    let may_do_nothing = by_nothing || (repeats && instruction.is_string_instruction());
    !may_do_nothing
}

#[cfg(test)]
mod tests {
    use super::are_dead;

    #[test]
    fn only_what_is_overwritten_on_every_way_is_dead() {
        let dead: [&[u8]; 4] = [
            b"\x48\x83\xec\x08",             // sub rsp, 8
            b"\x55\x48\x89\xe5\x31\xc0",     // push rbp; mov rbp, rsp; xor eax, eax
            b"\x83\x05\0\0\0\0\x01\xc3",     // add dword [rip], 1; ret
            b"\x48\xc1\xe0\x03\x48\x85\xc0", // shl rax, 3; test rax, rax
        ];
        let live: [&[u8]; 8] = [
            b"\x0f\xa3\xc8\x79\x02", // bt eax, ecx; jns
            b"\x55\xc3",             // push rbp; ret
            b"\xb8\x01\0\0\0\xc3",   // mov eax, 1; ret
            b"\x0f\x94\xc0\x31\xc0", // sete al; xor eax, eax
            b"\x48\xd3\xe0\xc3",     // shl rax, cl; ret
            b"\xff\xc0\xc3",         // inc eax; ret: CF stays
            b"\xe8\0\0\0\0\x31\xc0", // call; xor eax, eax
            b"\xf3\xa6\xc3",         // repe cmpsb; ret
        ];
        assert!(dead.iter().all(|code| are_dead(code, 0x1000)));
        for code in live {
            assert!(!are_dead(code, 0x1000), "{code:x?}");
        }
    }
}
