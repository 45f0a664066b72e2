//! Processes that share their memory with another process (clone(2) with CLONE_VM, but without CLONE_THREAD).

use memhook_process::{living_thread, process_ids};
use std::os::linux::fs::MetadataExt;
use std::{fs::metadata, io, path::Path};

const KCMP_VM: i32 = 1;

/// Returns true if two processes run in the same memory, as a parent and its vfork(2) child do until the child executes
/// a program. Fails if the kernel has no kcmp(2), or if one of them may not be traced.
pub fn share_memory(one: i32, other: i32) -> io::Result<bool> {
    // A thread that has ended has no memory.
    are_in_one_memory(living_thread(one), living_thread(other))
}

fn are_in_one_memory(one: i32, other: i32) -> io::Result<bool> {
    // SAFETY: no pointers.
    match unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        compared => Ok(compared == 0),
    }
}

/// Returns the other processes that run in the memory of `pid`, which is a process or one of its threads. A hold of
/// only the threads of `pid` misses the registers and imminent writes of those processes. The result is empty if the
/// kernel has no kcmp(2).
pub fn memory_sharers(pid: i32) -> Vec<i32> {
    let own = living_thread(pid);
    let is_it = |other: i32| Path::new(&format!("/proc/{other}/task/{pid}")).exists();
    // There may be hundreds of processes, nearly all of them with a single thread. Kernel threads have no memory, and
    // compare equal only to each other.
    let shares = |&other: &i32| {
        let is_equal = |thread| are_in_one_memory(own, thread).unwrap_or(false);
        let shares = is_equal(other) || has_threads(other) && is_equal(living_thread(other));
        shares && !is_it(other)
    };
    process_ids().into_iter().filter(shares).collect()
}

/// Returns true if a process has more than one thread. The kernel adds the number of threads to the link count of the
/// task directory (`proc_task_getattr` of fs/proc/base.c).
fn has_threads(pid: i32) -> bool {
    const LINKS_OF_ONE: u64 = 3;
    metadata(format!("/proc/{pid}/task")).is_ok_and(|found| found.st_nlink() > LINKS_OF_ONE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn one_thread_or_more() {
        // The harness of the tests has a thread for each.
        assert!(std::thread::scope(|scope| {
            let waits = scope.spawn(|| has_threads(std::process::id() as i32));
            waits.join().expect("no panic")
        }));
        let mut sleeps = Command::new("sleep").arg("60").spawn().expect("sleep");
        let has_more = has_threads(sleeps.id() as i32);
        sleeps.kill().and_then(|()| sleeps.wait()).expect("it ends");
        assert!(!has_more);
    }
}
