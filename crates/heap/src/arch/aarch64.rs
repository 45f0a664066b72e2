//! AArch64 (AAPCS64), with glibc and musl.
//!
//! A thread's descriptor (`struct pthread`) ends at its thread pointer, and its static thread-local storage begins
//! after the thread pointer ("variant I" of "ELF Handling For Thread-Local Storage").

use crate::snapshot::{Area, Snapshot, ThreadState, addresses_anywhere, words};
use memhook_inject::Registers;
use memhook_process::ModuleImage;
use std::ops::Range;

/// Register values by DWARF number: x0 to x30, the stack pointer, and then the program counter.
pub(crate) type ByNumber = [u64; 33];

/// DWARF numbers of the callee-saved registers (AAPCS64, 6.1.1).
pub(crate) const PRESERVED: &[usize] = &[19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29];
/// End of the address range of programs that do not request higher addresses (Documentation/arch/arm64/memory.rst).
pub(crate) const END_OF_ADDRESSES: u64 = 1 << 48;
/// Offset of a thread's vector of TLS blocks from its thread pointer: `dtv` of `tcbhead_t` (glibc,
/// sysdeps/aarch64/nptl/tls.h).
pub(crate) const DTV: u64 = 0;
/// Offset of that vector on musl: the last word of `struct pthread` (src/internal/pthread_impl.h, `TLS_ABOVE_TP`).
pub(crate) const DTV_ON_MUSL: u64 = 8u64.wrapping_neg();
/// Offset of `list` in glibc's `struct pthread`, which begins with a `header` of 24 words (nptl/descr.h).
const LIST_OFFSET: u64 = 24 * 8;
/// Offset of `robust_head`, behind `list`, `tid` and its padding, and `robust_prev`.
const ROBUST_HEAD_OFFSET: u64 = LIST_OFFSET + 16 + 8 + 8;
/// The instruction `svc #0`.
const SVC: [u8; 4] = 0xd400_0001u32.to_le_bytes();

/// Returns the stack pointer.
pub(crate) fn stack_pointer(registers: &Registers) -> u64 {
    registers.sp
}

/// Returns the program counter.
pub(crate) fn program_counter(registers: &Registers) -> u64 {
    registers.pc
}

/// Returns the thread pointer.
pub(crate) fn thread_pointer(registers: &Registers) -> u64 {
    registers.thread_pointer
}

/// Returns the bits of a return address that are not part of the address.
pub(crate) fn signature(registers: &Registers) -> u64 {
    registers.signature
}

/// Returns the number and the second argument of the system call that a thread is in. `read` reads memory, and returns
/// the number of bytes that it has read.
///
/// When a thread stops in a call, the kernel cancels the call and lets the thread make it again. The program counter is
/// then at the `svc` instruction (`do_signal` of arch/arm64/kernel/signal.c). If the call is not repeated, or while a
/// thread sleeps in it, the instruction is directly before the program counter.
pub(crate) fn system_call(
    registers: &Registers,
    read: impl Fn(u64, &mut [u8]) -> usize,
) -> Option<(i64, u64)> {
    let is_call = |at: u64| {
        let mut code = [0; SVC.len()];
        read(at, &mut code) == SVC.len() && code == SVC
    };
    let is_in_call = is_call(registers.pc) || is_call(registers.pc.wrapping_sub(4));
    is_in_call.then_some((registers.x[8] as i64, registers.x[1]))
}

/// Returns true if a thread that was stopped just before its end is in a system call.
pub(crate) fn ends_in_call(_: &Registers) -> bool {
    false
}

/// Returns the state of a thread with these registers. They do not show whether it is in a system call.
pub(crate) fn thread_state(tid: i32, r: &Registers, extended: &[u8]) -> ThreadState {
    let mut all = r.x.to_vec();
    all.extend([r.sp, r.thread_pointer]);
    all.extend(words(extended));
    // Pointers from packed structures can be at any offset in a vector register.
    all.extend(addresses_anywhere(extended));
    all.retain(|&word| word >= 4096);
    ThreadState {
        tid,
        rsp: r.sp,
        rip: r.pc,
        fs_base: r.thread_pointer,
        is_exiting: false,
        is_in_call: false,
        words: all,
        registers: Some(by_number(r)),
        signature: signature(r),
        lowest_frame: None,
    }
}

/// Returns the registers of a thread in the unwinder's order.
pub(crate) fn by_number(r: &Registers) -> ByNumber {
    let mut found = [0; 33];
    found[..31].copy_from_slice(&r.x);
    found[31] = r.sp;
    found[32] = r.pc;
    found
}

/// Core dumps are not opened on this processor (`CoreFile::open`).
pub(crate) fn of_core(_: [u64; 27]) -> Registers {
    Registers::default()
}

/// Returns true if this code makes the system call exit(2).
pub(crate) fn ends_a_thread(code: &[u8]) -> bool {
    /// `mov x8, #93`, which loads the number of exit.
    const NUMBER_OF_EXIT: [u8; 4] = 0xd280_0ba8u32.to_le_bytes();
    let mut instructions = code.as_chunks::<4>().0.iter();
    instructions.any(|i| *i == NUMBER_OF_EXIT) && instructions.any(|i| *i == SVC)
}

/// Returns the static thread-local storage of a thread, at most `reach` bytes from its thread pointer upwards. `memory`
/// is the copied memory around the thread pointer.
pub(crate) fn static_storage(thread_pointer: u64, reach: u64, memory: Range<u64>) -> Range<u64> {
    thread_pointer..memory.end.min(thread_pointer.saturating_add(reach))
}

/// Returns a range that contains a thread's descriptor (`struct pthread`), which ends at the thread pointer. `bytes` is
/// an upper bound on the descriptor's size.
pub(crate) fn descriptor(thread_pointer: u64, bytes: u64) -> Range<u64> {
    thread_pointer.saturating_sub(bytes)..thread_pointer
}

/// Returns nothing: setjmp mangles only the return address and the stack pointer (sysdeps/aarch64/setjmp.S), neither of
/// which keeps a block reachable.
pub(crate) fn pointer_guard(_: &Snapshot, _: &ThreadState) -> Option<u64> {
    None
}

/// Returns approximate thread pointers of threads whose descriptors may be in this memory. A descriptor does not
/// contain its thread pointer, so it is recognized by the description of its stack: two adjacent words (`stackblock`,
/// `stackblock_size`) that give a range of pages of this area in which the words themselves lie. The address after the
/// two words serves as the thread pointer, which is only a little higher.
pub(crate) fn descriptors<'a>(
    _: &'a Snapshot,
    area: &'a Area,
    from: u64,
    bytes: &'a [u8],
) -> impl Iterator<Item = u64> + 'a {
    let pairs = bytes.as_chunks::<8>().0.windows(2).enumerate();
    pairs.filter_map(move |(i, pair)| {
        let [block, size] = [pair[0], pair[1]].map(u64::from_le_bytes);
        let at = from + i as u64 * 8;
        let is_place = block.is_multiple_of(4096)
            && size.is_multiple_of(4096)
            && (area.start..at).contains(&block)
            && block
                .checked_add(size)
                .is_some_and(|end| (at..=area.end).contains(&end));
        is_place.then_some(at + 16)
    })
}

/// Returns the end of the stack below a thread's descriptor, given the address of the descriptor's `list`.
pub(crate) fn end_of_stack(_: u64, list: u64) -> u64 {
    list.saturating_sub(LIST_OFFSET)
}

/// Returns the thread pointer of a thread whose list of robust locks is at `head`: the list is in the descriptor, whose
/// size glibc publishes for debuggers (`_thread_db_sizeof_pthread`, nptl_db/structs.def). On musl, the size is not
/// known.
pub(crate) fn thread_pointer_near(
    head: u64,
    _: usize,
    _: impl Fn(u64, &mut [u8]) -> bool,
    images: &[ModuleImage],
) -> Option<u64> {
    let libc = images.iter().find(|image| image.is_libc)?;
    let bytes = libc.bytes.whole();
    let elf = goblin::elf::Elf::parse(&bytes).ok()?;
    let size = elf
        .dynsyms
        .iter()
        .find(|symbol| elf.dynstrtab.get_at(symbol.st_name) == Some("_thread_db_sizeof_pthread"))?;
    let segment = elf
        .program_headers
        .iter()
        .find(|header| header.vm_range().contains(&(size.st_value as usize)))?;
    let at = size.st_value - segment.p_vaddr + segment.p_offset;
    let size = bytes.get(at as usize..)?.first_chunk()?;
    let start = head.checked_sub(ROBUST_HEAD_OFFSET)?;
    Some(start + u64::from(u32::from_le_bytes(*size)))
}
