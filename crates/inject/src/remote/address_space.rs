//! Processes that share their memory with another (clone(2) with CLONE_VM, but no CLONE_THREAD).

use std::fs;

const KCMP_VM: i32 = 1;

/// The processes that run in the memory of `pid` besides itself. Their registers and what they are
/// about to write is not seen when the threads of `pid` are held. Empty where the kernel has no
/// kcmp(2).
pub fn memory_sharers(pid: i32) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let others = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    others
        .filter(|&other: &i32| {
            // SAFETY: no pointers.
            let compared = unsafe { libc::syscall(libc::SYS_kcmp, pid, other, KCMP_VM, 0, 0) };
            // Kernel threads have no memory and compare equal only to each other.
            other != pid && compared == 0
        })
        .collect()
}
