//! Facts for the hook about its thread and process.

use memhook_inject::Held;
use memhook_process::{Mapping, RemoteAddress, has_seccomp_filter, inner_tid, read_memory};
use memhook_stream::ThreadNumbers;
use std::ops::Range;

/// Offsets of `tid` in `struct pthread` in C libraries for x86-64, from the thread pointer. In all versions of glibc
/// (nptl/descr.h), it follows the TCB head of 704 bytes and a list node. In musl, it follows six words since 1.1.25,
/// and seven words before (src/internal/pthread_impl.h). Each offset is checked in the process.
const TID_OFFSETS: [u32; 3] = [720, 48, 56];

/// Exclusive upper limit of thread ids (PID_MAX_LIMIT).
const TID_LIMIT: u32 = 1 << 22;

/// Returns the method by which threads find their ids.
pub fn thread_numbers(held: &Held) -> Option<ThreadNumbers> {
    let all_right = |offset| ThreadNumbers {
        offset,
        stale: 0,
        instead: 0,
    };
    if let Some(at) = held.thread_number_at() {
        return Some(all_right(at));
    }
    let thread_pointer = RemoteAddress(held.registers().fs_base);
    let read = |offset: u32, bytes: &mut [u8]| {
        read_memory(held.pid(), thread_pointer + u64::from(offset), bytes).is_ok()
    };
    let number_at = |offset: u32| {
        let mut word = [0; 4];
        read(offset, &mut word).then(|| u32::from_le_bytes(word))
    };
    let own = inner_tid(held.pid(), held.tid())?;
    let holds_it = |offset: &u32| number_at(*offset) == Some(own);
    if let Some(offset) = TID_OFFSETS.into_iter().find(holds_it) {
        return Some(all_right(offset));
    }
    // Only fork(3) updates the stored id of the thread that continues in the child. glibc's `tcbhead_t` contains its
    // own address as its first and third words.
    let mut head = [0; 24];
    let own_address = thread_pointer.0.to_le_bytes();
    let is_head =
        read(0, &mut head) && head.starts_with(&own_address) && head.ends_with(&own_address);
    let [offset, ..] = TID_OFFSETS;
    let stale = number_at(offset).filter(|number| (1..TID_LIMIT).contains(number))?;
    (is_head && held.tid() == held.pid()).then_some(ThreadNumbers {
        offset,
        stale,
        instead: own,
    })
}

/// Returns the offset of the tid from the thread pointer, or 0 if it is unknown or wrong for some threads.
pub fn tid_offset(held: &Held) -> u32 {
    let numbers = thread_numbers(held).filter(|numbers| numbers.stale == 0);
    numbers.map_or(0, |numbers| numbers.offset)
}

/// System calls of the hook: to wait, to read a stack with unknown bounds, and to patch new modules.
const CALLS_OF_THE_HOOK: [i64; 7] = [
    libc::SYS_mprotect,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_process_vm_readv,
];

/// Further system calls of the hook if mappings are traced: to learn the program break and the size of a segment.
const CALLS_FOR_MAPPINGS: [i64; 2] = [libc::SYS_brk, libc::SYS_shmctl];

/// System calls of glibc's loader to load an object (elf/dl-load.c, dl-map-segments.h), including its allocations and
/// locks.
const CALLS_OF_THE_LOADER: [i64; 17] = [
    libc::SYS_openat,
    libc::SYS_open,
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_close,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_getcwd,
    libc::SYS_readlink,
    libc::SYS_futex,
];

/// Returns true if a seccomp filter may refuse one of these calls.
fn takes_offence<'a>(held: &Held, mut calls: impl Iterator<Item = &'a i64>) -> bool {
    let harmless = |&nr: &i64| held.may_call(nr).unwrap_or(false);
    has_seccomp_filter(held.pid()) && !calls.all(harmless)
}

/// Returns true if a filter may refuse a call of the hook.
pub fn is_filtered(held: &Held, traces_mappings: bool) -> bool {
    let for_mappings = CALLS_FOR_MAPPINGS.iter().filter(|_| traces_mappings);
    takes_offence(held, CALLS_OF_THE_HOOK.iter().chain(for_mappings))
}

/// Returns true if a seccomp filter may kill the process while the loader works for us. Filters do not see the calls of
/// a held thread. But if this attacher is killed, the running `dlopen` continues, and filters see its calls.
pub fn loading_is_filtered(held: &Held) -> bool {
    takes_offence(held, CALLS_OF_THE_LOADER.iter())
}

/// Returns true if the kernel charges memory when it is mapped rather than when it is touched: proc_sys_vm(5),
/// overcommit_memory.
pub fn charges_mappings() -> bool {
    let mode = std::fs::read_to_string("/proc/sys/vm/overcommit_memory");
    mode.is_ok_and(|mode| mode.trim() == "2")
}

/// Returns the possible range of the initial thread's stack (avma). The stack grows down to a limit, which is rarely
/// higher than this.
pub fn main_stack(maps: &[Mapping]) -> Range<u64> {
    const BYTES: u64 = 64 << 20;
    let stack = maps.iter().find(|m| m.path == "[stack]");
    stack.map_or(0..0, |m| m.end.saturating_sub(BYTES)..m.end)
}
