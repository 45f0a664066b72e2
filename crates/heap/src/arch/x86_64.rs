//! x86-64 (psABI), with glibc and musl.

use crate::snapshot::{Area, Snapshot, ThreadState, addresses_anywhere, words};
use memhook_inject::Registers;
use memhook_process::ModuleImage;
use std::ops::Range;

/// Register values by DWARF number (psABI, figure 3.36).
pub(crate) type ByNumber = [u64; 17];

/// DWARF numbers of the callee-saved registers (psABI 3.2.1).
pub(crate) const PRESERVED: &[usize] = &[3, 6, 12, 13, 14, 15];
/// End of the user address space of programs that do not request a larger one (5level-paging.rst).
pub(crate) const END_OF_ADDRESSES: u64 = 1 << 47;
/// Offset of a thread's vector of TLS blocks from its thread pointer: `dtv` of `tcbhead_t` (glibc,
/// sysdeps/x86_64/nptl/tls.h) and of `struct pthread` (musl, src/internal/pthread_impl.h).
pub(crate) const DTV: u64 = 8;
/// The same on musl.
pub(crate) const DTV_ON_MUSL: u64 = DTV;
/// Offset of the pointer guard in `tcbhead_t` (sysdeps/x86_64/nptl/tls.h).
const GUARD_OFFSET: u64 = 0x30;
/// Alignment of glibc's `struct pthread` (nptl/allocatestack.c), and of musl's (`MIN_TLS_ALIGN`).
const DESCRIPTOR_ALIGNMENT: u64 = 64;
const DESCRIPTOR_ALIGNMENT_ON_MUSL: u64 = 8;

/// Returns the stack pointer.
pub(crate) fn stack_pointer(registers: &Registers) -> u64 {
    registers.rsp
}

/// Returns the program counter.
pub(crate) fn program_counter(registers: &Registers) -> u64 {
    registers.rip
}

/// Returns the thread pointer.
pub(crate) fn thread_pointer(registers: &Registers) -> u64 {
    registers.fs_base
}

/// Returns the bits of a return address that are not part of the address.
pub(crate) fn signature(_: &Registers) -> u64 {
    0
}

/// Returns the number and the second argument of the system call that a thread is in. `read` reads memory, and returns how
/// much it has read.
pub(crate) fn system_call(
    registers: &Registers,
    _: impl Fn(u64, &mut [u8]) -> usize,
) -> Option<(i64, u64)> {
    let number = registers.orig_rax as i64;
    (number >= 0).then_some((number, registers.rsi))
}

/// Returns true if a thread that was stopped at its exit was in a system call.
pub(crate) fn ends_in_call(registers: &Registers) -> bool {
    registers.orig_rax as i64 >= 0
}

/// Returns the state of a thread with these registers.
pub(crate) fn thread_state(tid: i32, r: &Registers, extended: &[u8]) -> ThreadState {
    let call = r.orig_rax as i64;
    let is_exiting = call == nix::libc::SYS_exit_group || call == nix::libc::SYS_exit;
    let mut all = vec![
        r.rbx, r.rbp, r.rsp, r.r12, r.r13, r.r14, r.r15, r.fs_base, r.gs_base,
    ];
    // The other registers belong to the running function (psABI 3.2.1). In an exiting thread, they hold only leftovers
    // of earlier calls.
    if !is_exiting {
        all.extend([
            r.rax, r.rcx, r.rdx, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.orig_rax,
        ]);
        all.extend(words(extended));
        // A vector register may hold pointers from packed structures at any offset.
        all.extend(addresses_anywhere(extended));
    }
    all.retain(|&word| word >= 4096);
    ThreadState {
        tid,
        rsp: r.rsp,
        rip: r.rip,
        fs_base: r.fs_base,
        is_exiting,
        is_in_call: call >= 0,
        words: all,
        registers: Some(by_number(r)),
        signature: signature(r),
        lowest_frame: None,
    }
}

/// Returns the registers of a thread in the unwinder's order.
pub(crate) fn by_number(r: &Registers) -> ByNumber {
    [
        r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12,
        r.r13, r.r14, r.r15, r.rip,
    ]
}

/// Returns a thread's registers from a core file, which stores them in the order of `struct user_regs_struct`
/// (arch/x86/include/asm/user_64.h).
pub(crate) fn of_core(words: [u64; 27]) -> Registers {
    macro_rules! in_order {
        ($($name:ident)*) => {{
            let [$($name),*] = words;
            Registers { $($name),* }
        }};
    }
    in_order! {
        r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss
        fs_base gs_base ds es fs gs
    }
}

/// Returns true if this code makes the system call exit(2).
pub(crate) fn ends_a_thread(code: &[u8]) -> bool {
    /// `mov $60,%eax`, which loads the number of exit.
    const NUMBER_OF_EXIT: [u8; 5] = [0xb8, 60, 0, 0, 0];
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    let mut number = code.windows(NUMBER_OF_EXIT.len());
    number.position(|w| w == NUMBER_OF_EXIT).is_some_and(|at| {
        let behind = &code[at + NUMBER_OF_EXIT.len()..];
        behind.windows(SYSCALL.len()).any(|w| w == SYSCALL)
    })
}

/// Returns the static thread-local storage of a thread, which ends at its thread pointer: at most `reach` bytes, and
/// only within `memory`, the copied memory around it.
pub(crate) fn static_storage(thread_pointer: u64, reach: u64, memory: Range<u64>) -> Range<u64> {
    memory.start.max(thread_pointer.saturating_sub(reach))..thread_pointer
}

/// Returns the address range of a thread's descriptor (`struct pthread`) of this size, which begins at the thread
/// pointer.
pub(crate) fn descriptor(thread_pointer: u64, bytes: u64) -> Range<u64> {
    thread_pointer..thread_pointer.saturating_add(bytes)
}

/// Returns the pointer guard of a thread, with which setjmp mangles rbp.
pub(crate) fn pointer_guard(snapshot: &Snapshot, thread: &ThreadState) -> Option<u64> {
    snapshot.word(thread.fs_base.checked_add(GUARD_OFFSET)?)
}

/// Returns the thread pointers of possible descriptors in a piece of memory: a descriptor begins with a `tcbhead_t`,
/// whose words 0 and 2 are its own address (sysdeps/x86_64/nptl/tls.h). On musl, that is so if the thread has ended.
pub(crate) fn descriptors<'a>(
    snapshot: &'a Snapshot,
    _: &'a Area,
    from: u64,
    bytes: &'a [u8],
) -> impl Iterator<Item = u64> + 'a {
    let alignment = match snapshot.libc() {
        Some(_) => DESCRIPTOR_ALIGNMENT,
        None => DESCRIPTOR_ALIGNMENT_ON_MUSL,
    };
    // Runs consist of whole pages.
    let lines = bytes.chunks(alignment as usize).enumerate();
    lines.filter_map(move |(i, line)| {
        let at = from + i as u64 * alignment;
        (line.starts_with(&at.to_le_bytes()) && snapshot.word(at + 16) == Some(at)).then_some(at)
    })
}

/// Returns the end of the stack below a thread's descriptor.
pub(crate) fn end_of_stack(thread_pointer: u64, _: u64) -> u64 {
    thread_pointer
}

/// Returns the thread pointer of a thread whose list of robust locks is at `head`: the list is in the descriptor, which
/// begins with its own address. `read` fills a buffer with the memory at an address.
pub(crate) fn thread_pointer_near(
    head: u64,
    reach: usize,
    read: impl Fn(u64, &mut [u8]) -> bool,
    _: &[ModuleImage],
) -> Option<u64> {
    let head = head & !7;
    let start = head.checked_sub(reach as u64)?;
    let mut bytes = vec![0u8; reach];
    // The memory before the descriptor may not be mapped.
    let page = head & !4095;
    let from = start.max(page);
    let mut read_from = |from: u64| {
        let length = (head - from) as usize;
        read(from, &mut bytes[reach - length..])
    };
    let is_read = read_from(start) || read_from(from);
    if !is_read {
        return None;
    }
    let words = bytes.as_chunks::<8>().0;
    let at = |index: usize| start + index as u64 * 8;
    (0..words.len())
        .rev()
        .find(|&index| u64::from_le_bytes(words[index]) == at(index))
        // glibc's descriptor has the address twice, at 0 and at 16 (`tcbhead_t`). This code needs the first one.
        .map(|index| match index.checked_sub(2) {
            Some(first) if u64::from_le_bytes(words[first]) == at(first) => at(first),
            _ => at(index),
        })
}
