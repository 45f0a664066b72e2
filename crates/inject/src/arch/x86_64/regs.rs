//! Register sets of a stopped thread: general (NT_PRSTATUS) and extended (NT_X86_XSTATE).

use std::io;

use crate::ptrace;

/// General registers of a stopped thread, as `PTRACE_GETREGSET` with NT_PRSTATUS gives them.
pub type Registers = libc::user_regs_struct;

/// Note types of `<elf.h>`.
const NT_PRSTATUS: usize = 1;
const NT_X86_XSTATE: usize = 0x202;

const NT_X86_SHSTK: usize = 0x204;

/// Room for the XSAVE area: 11 KiB with AVX-512 and AMX today.
const XSTATE_ROOM_BYTES: usize = 32 * 1024;

/// Direction flag; the psABI (3.2.1) wants it clear on function entry.
pub(crate) const EFLAGS_DF: u64 = 1 << 10;
/// Trap flag.
pub(crate) const EFLAGS_TF: u64 = 1 << 8;

/// All registers zero.
pub(crate) fn zeroed() -> Registers {
    // SAFETY: user_regs_struct is 27 integers; all-zero is a valid value.
    unsafe { std::mem::zeroed() }
}

/// Reads the general registers of the stopped thread `tid`.
pub(crate) fn read(tid: i32) -> io::Result<Registers> {
    let mut registers = zeroed();
    let mut vector = libc::iovec {
        iov_base: (&raw mut registers).cast(),
        iov_len: size_of::<Registers>(),
    };
    // SAFETY: `vector` describes `registers`, which is live and writable for its whole length.
    unsafe {
        ptrace::request(
            ptrace::GETREGSET,
            tid,
            NT_PRSTATUS,
            (&raw mut vector) as usize,
        )?
    };
    Ok(registers)
}

/// Writes the general registers of the stopped thread `tid`.
pub(crate) fn write(tid: i32, registers: &Registers) -> io::Result<()> {
    let mut copy = *registers;
    let mut vector = libc::iovec {
        iov_base: (&raw mut copy).cast(),
        iov_len: size_of::<Registers>(),
    };
    // SAFETY: `vector` describes `copy`, which is live for its whole length.
    unsafe {
        ptrace::request(
            ptrace::SETREGSET,
            tid,
            NT_PRSTATUS,
            (&raw mut vector) as usize,
        )?
    };
    Ok(())
}

/// Whether the stopped thread `tid` uses a shadow stack: only then does the kernel (since 6.6) have
/// this register set.
pub(crate) fn has_shadow_stack(tid: i32) -> bool {
    let mut pointer = 0u64;
    let mut vector = libc::iovec {
        iov_base: (&raw mut pointer).cast(),
        iov_len: size_of::<u64>(),
    };
    // SAFETY: `vector` describes `pointer`, which is live and writable for its whole length.
    let read = unsafe {
        ptrace::request(
            ptrace::GETREGSET,
            tid,
            NT_X86_SHSTK,
            (&raw mut vector) as usize,
        )
    };
    read.is_ok()
}

/// Reads the whole XSAVE area (x87, SSE, AVX, AVX-512, AMX, PKRU) of the stopped thread `tid`.
pub(crate) fn read_extended(tid: i32) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0u8; XSTATE_ROOM_BYTES];
    let mut vector = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: `vector` describes `bytes`, which is live and writable for its whole length.
    unsafe {
        ptrace::request(
            ptrace::GETREGSET,
            tid,
            NT_X86_XSTATE,
            (&raw mut vector) as usize,
        )?
    };
    bytes.truncate(vector.iov_len);
    Ok(bytes)
}

/// Writes back an area that [`read_extended`] gave.
pub(crate) fn write_extended(tid: i32, bytes: &[u8]) -> io::Result<()> {
    let mut vector = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: the kernel only reads from `bytes` for SETREGSET, within its length.
    unsafe {
        ptrace::request(
            ptrace::SETREGSET,
            tid,
            NT_X86_XSTATE,
            (&raw mut vector) as usize,
        )?
    };
    Ok(())
}
