//! What the hook is told about the thread and the process it runs in.

use memhook_inject::Held;
use memhook_process::{RemoteAddress, has_seccomp_filter, inner_tid, read_memory};

/// `tid` in glibc's `struct pthread` (nptl/descr.h): behind the TCB head of 704 bytes and a list node.
/// The same in all versions for x86-64; looked at before it is believed.
const GLIBC_TID_OFFSET: u32 = 720;

/// Where threads keep their tid, in bytes from the thread pointer; 0: not known.
pub fn tid_offset(held: &Held) -> u32 {
    let at = RemoteAddress(held.registers().fs_base) + u64::from(GLIBC_TID_OFFSET);
    let mut word = [0; 4];
    let known = read_memory(held.pid(), at, &mut word).is_ok()
        && Some(u32::from_le_bytes(word)) == inner_tid(held.pid(), held.tid());
    if known { GLIBC_TID_OFFSET } else { 0 }
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

/// Whether a seccomp filter may take offence at these.
pub fn is_filtered(held: &Held) -> bool {
    let harmless = |&nr: &i64| held.may_call(nr).unwrap_or(false);
    has_seccomp_filter(held.pid()) && !CALLS_OF_THE_HOOK.iter().all(harmless)
}
