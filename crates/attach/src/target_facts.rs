//! What the hook is told about the thread and the process it runs in.

use memhook_inject::Held;
use memhook_process::{RemoteAddress, has_seccomp_filter, inner_tid, read_memory};

/// Where C libraries for x86-64 keep `tid` in `struct pthread`, in bytes from the thread pointer: all versions of
/// glibc (nptl/descr.h) behind the TCB head of 704 bytes and a list node; musl since 1.1.25 behind six words, and
/// behind seven before that (src/internal/pthread_impl.h). Looked at before it is believed.
const TID_OFFSETS: [u32; 3] = [720, 48, 56];

/// Where threads keep their tid, in bytes from the thread pointer; 0: not known.
pub fn tid_offset(held: &Held) -> u32 {
    if let Some(at) = held.thread_number_at() {
        return at;
    }
    let own = inner_tid(held.pid(), held.tid());
    let holds_it = |offset: &u32| {
        let at = RemoteAddress(held.registers().fs_base) + u64::from(*offset);
        let mut word = [0; 4];
        let is_read = read_memory(held.pid(), at, &mut word).is_ok();
        is_read && own == Some(u32::from_le_bytes(word))
    };
    TID_OFFSETS.into_iter().find(holds_it).unwrap_or(0)
}

/// What the hook calls when it has to wait, to read a stack of unknown bounds, or to patch new modules.
const CALLS_OF_THE_HOOK: [i64; 7] = [
    libc::SYS_mprotect,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_process_vm_readv,
];

/// What it calls besides where mappings are traced: to learn where the program break is, and how large a segment.
const CALLS_FOR_MAPPINGS: [i64; 2] = [libc::SYS_brk, libc::SYS_shmctl];

/// Whether a seccomp filter may take offence at these.
pub fn is_filtered(held: &Held, traces_mappings: bool) -> bool {
    let harmless = |&nr: &i64| held.may_call(nr).unwrap_or(false);
    let for_mappings = CALLS_FOR_MAPPINGS.iter().filter(|_| traces_mappings);
    let mut calls = CALLS_OF_THE_HOOK.iter().chain(for_mappings);
    has_seccomp_filter(held.pid()) && !calls.all(harmless)
}
