//! Processes that share their memory with another (clone(2) with CLONE_VM, but without CLONE_THREAD).

use memhook_process::process_ids;

const KCMP_VM: i32 = 1;

/// The processes that run in the memory of `pid` besides itself. When the threads of `pid` are held, their
/// registers are not seen, nor what they are about to write. Empty where the kernel has no kcmp(2).
pub fn memory_sharers(pid: i32) -> Vec<i32> {
    let shares = |&other: &i32| {
        // SAFETY: no pointers.
        let compared = unsafe { libc::syscall(libc::SYS_kcmp, pid, other, KCMP_VM, 0, 0) };
        // Kernel threads have no memory, and compare equal only to each other.
        other != pid && compared == 0
    };
    process_ids().into_iter().filter(shares).collect()
}
