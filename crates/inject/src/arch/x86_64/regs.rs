//! Register sets of a stopped thread: general (NT_PRSTATUS) and extended (NT_X86_XSTATE).

use std::io;

use crate::ptrace;

/// General registers of a stopped thread, as `PTRACE_GETREGSET` with NT_PRSTATUS returns them.
pub type Registers = libc::user_regs_struct;

/// Note types of `<elf.h>`; the libc crate lacks two of them.
const NT_PRSTATUS: usize = libc::NT_PRSTATUS as usize;
const NT_X86_XSTATE: usize = 0x202;
const NT_X86_SHSTK: usize = 0x204;

/// Size of the buffer for the XSAVE area, which takes 11 KiB with AVX-512 and AMX today.
const XSTATE_ROOM_BYTES: usize = 32 * 1024;

/// The direction flag, which the psABI (3.2.1) requires to be clear at function entry.
pub(crate) const EFLAGS_DF: u64 = 1 << 10;
/// Trap flag.
pub(crate) const EFLAGS_TF: u64 = 1 << 8;

/// Returns a register set of zeros.
pub(crate) fn zeroed() -> Registers {
    // SAFETY: user_regs_struct is 27 integers; all-zero is a valid value.
    unsafe { std::mem::zeroed() }
}

/// Reads one register set of a stopped thread into `room`, and returns its size in bytes.
fn read_into(tid: i32, set: usize, room: &mut [u8]) -> io::Result<usize> {
    let mut vector = libc::iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: room.len(),
    };
    let place = (&raw mut vector) as usize;
    // SAFETY: `vector` is live, and describes memory that the kernel may write.
    unsafe { ptrace::request(libc::PTRACE_GETREGSET, tid, set, place)? };
    Ok(vector.iov_len)
}

/// Writes one register set of a stopped thread.
///
/// # Safety
/// `values` points to `bytes` readable bytes.
unsafe fn write_set(tid: i32, set: usize, values: *const u8, bytes: usize) -> io::Result<()> {
    let vector = libc::iovec {
        iov_base: values.cast_mut().cast(),
        iov_len: bytes,
    };
    let place = (&raw const vector) as usize;
    // SAFETY: `vector` is live, and describes memory that the kernel only reads.
    unsafe { ptrace::request(libc::PTRACE_SETREGSET, tid, set, place) }.map(drop)
}

/// Reads the general registers with `read_set`, which reads one register set into a buffer and returns its size in
/// bytes.
pub(crate) fn read_by(
    read_set: impl Fn(usize, &mut [u8]) -> io::Result<usize>,
) -> io::Result<Registers> {
    let mut registers = zeroed();
    let room = (&raw mut registers).cast::<u8>();
    // SAFETY: `registers` is live, and is integers only: any bytes are a value.
    let room = unsafe { std::slice::from_raw_parts_mut(room, size_of::<Registers>()) };
    read_set(NT_PRSTATUS, room)?;
    Ok(registers)
}

/// Reads the whole XSAVE area (x87, SSE, AVX, AVX-512, AMX, PKRU) with `read_set`, like `read_by`.
pub(crate) fn read_extended_by(
    read_set: impl Fn(usize, &mut [u8]) -> io::Result<usize>,
) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0u8; XSTATE_ROOM_BYTES];
    let length = read_set(NT_X86_XSTATE, &mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}

/// Returns the known registers of a thread that sleeps in a system call.
pub(crate) fn in_call(number: i64, arguments: [u64; 6], sp: u64, pc: u64) -> Registers {
    let [rdi, rsi, rdx, r10, r8, r9] = arguments;
    Registers {
        orig_rax: number as u64,
        rdi,
        rsi,
        rdx,
        r10,
        r8,
        r9,
        rsp: sp,
        rip: pc,
        ..zeroed()
    }
}

/// Reads the general registers of the stopped thread `tid`.
pub(crate) fn read(tid: i32) -> io::Result<Registers> {
    read_by(|set, room| read_into(tid, set, room))
}

/// Writes the general registers of the stopped thread `tid`.
pub(crate) fn write(tid: i32, registers: &Registers) -> io::Result<()> {
    let values = (&raw const *registers).cast();
    // SAFETY: `registers` is live for its whole length.
    unsafe { write_set(tid, NT_PRSTATUS, values, size_of::<Registers>()) }
}

/// Returns true if the stopped thread `tid` uses a shadow stack. The kernel (since 6.6) has this register set only for
/// such threads.
pub(crate) fn has_shadow_stack(tid: i32) -> bool {
    read_into(tid, NT_X86_SHSTK, &mut [0; size_of::<u64>()]).is_ok()
}

/// Reads the whole XSAVE area of the stopped thread `tid`.
pub(crate) fn read_extended(tid: i32) -> io::Result<Vec<u8>> {
    read_extended_by(|set, room| read_into(tid, set, room))
}

/// Writes back an area that [`read_extended`] returned.
pub(crate) fn write_extended(tid: i32, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: `bytes` is live for its whole length.
    unsafe { write_set(tid, NT_X86_XSTATE, bytes.as_ptr(), bytes.len()) }
}
