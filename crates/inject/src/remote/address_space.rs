//! Processes that share their memory with another process (clone(2) with CLONE_VM, but without CLONE_THREAD).

use memhook_process::{living_thread, process_ids};
use std::{io, path::Path};

const KCMP_VM: i32 = 1;

/// Returns true if two processes run in the same memory, as a parent and its vfork(2) child do until the child executes
/// a program. Fails if the kernel has no kcmp(2), or if one of them may not be traced.
pub fn share_memory(one: i32, other: i32) -> io::Result<bool> {
    // A thread that has ended has no memory.
    let (one, other) = (living_thread(one), living_thread(other));
    // SAFETY: no pointers.
    match unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        compared => Ok(compared == 0),
    }
}

/// Returns the other processes that run in the memory of `pid`, which is a process or one of its threads. A hold of
/// only the threads of `pid` misses the registers and imminent writes of those processes. Empty if the kernel has no
/// kcmp(2).
pub fn memory_sharers(pid: i32) -> Vec<i32> {
    let is_it = |other: i32| Path::new(&format!("/proc/{other}/task/{pid}")).exists();
    // Kernel threads have no memory, and compare equal only to each other.
    let shares =
        |&other: &i32| share_memory(pid, other).is_ok_and(|shared| shared && !is_it(other));
    process_ids().into_iter().filter(shares).collect()
}
