//! Register sets of a stopped thread: general (NT_PRSTATUS), thread pointer (NT_ARM_TLS), vectors (NT_ARM_SVE,
//! NT_PRFPREG), and the bits of signatures (NT_ARM_PAC_MASK).

use std::io;

/// Note types of `<elf.h>`.
const NT_PRSTATUS: usize = libc::NT_PRSTATUS as usize;
const NT_PRFPREG: usize = libc::NT_PRFPREG as usize;
const NT_ARM_TLS: usize = 0x401;
const NT_ARM_SVE: usize = 0x405;
const NT_ARM_PAC_MASK: usize = 0x406;

/// `struct user_pt_regs` of asm/ptrace.h has 34 words, and NT_PRFPREG 32 vectors of 16 bytes and two status words.
const GENERAL_WORDS: usize = 34;
const VECTOR_BYTES: usize = 32 * 16 + 16;
/// Room for the SVE registers: a header, 32 vectors of 256 bytes, 17 predicates and status words.
const SVE_ROOM_BYTES: usize = 16 * 1024;

/// General registers of a stopped thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// x0 to x30; x29 is the frame pointer, x30 the return address of a leaf function.
    pub x: [u64; 31],
    /// Stack pointer.
    pub sp: u64,
    /// Program counter.
    pub pc: u64,
    /// TPIDR_EL0. 0 if unknown.
    pub thread_pointer: u64,
    /// Bits that pointer authentication uses in the address of an instruction. 0 without pointer authentication.
    pub signature: u64,
}

/// Reads the general registers. `read_set` reads one register set into a buffer, and returns the size of the set in
/// bytes.
pub(crate) fn read_by(
    read_set: impl Fn(usize, &mut [u8]) -> io::Result<usize>,
) -> io::Result<Registers> {
    let mut general = [0u8; GENERAL_WORDS * 8];
    read_set(NT_PRSTATUS, &mut general)?;
    let mut thread_pointer = [0u8; 8];
    read_set(NT_ARM_TLS, &mut thread_pointer)?;
    // `struct user_pac_mask` of asm/ptrace.h: the bits in addresses of data, then those in addresses of instructions. A
    // processor without pointer authentication has no such set.
    let mut masks = [0u8; 16];
    let _ = read_set(NT_ARM_PAC_MASK, &mut masks);
    let signature = masks
        .last_chunk()
        .map_or(0, |mask| u64::from_le_bytes(*mask));
    let (words, _) = general.as_chunks::<8>();
    let word = |number: usize| u64::from_le_bytes(words[number]);
    Ok(Registers {
        x: std::array::from_fn(word),
        sp: word(31),
        pc: word(32),
        thread_pointer: u64::from_le_bytes(thread_pointer),
        signature,
    })
}

/// Reads the vector registers in the same way. With SVE, the result has all bytes of them, while NT_PRFPREG would have
/// only a part.
pub(crate) fn read_extended_by(
    read_set: impl Fn(usize, &mut [u8]) -> io::Result<usize>,
) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0u8; SVE_ROOM_BYTES];
    let length = match read_set(NT_ARM_SVE, &mut bytes) {
        Ok(length) => length,
        // A processor without SVE.
        Err(_) => read_set(NT_PRFPREG, &mut bytes[..VECTOR_BYTES])?,
    };
    bytes.truncate(length);
    Ok(bytes)
}

/// Returns the known registers of a thread that sleeps in a system call.
pub(crate) fn in_call(number: i64, arguments: [u64; 6], sp: u64, pc: u64) -> Registers {
    let mut registers = Registers {
        sp,
        pc,
        ..Registers::default()
    };
    registers.x[..arguments.len()].copy_from_slice(&arguments);
    registers.x[8] = number as u64;
    registers
}
