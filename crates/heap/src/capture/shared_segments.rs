//! System V shared memory (sysvipc(7)). A segment and its contents remain after the last process
//! has detached it.

use memhook_process::mappings;
use nix::sched::{CloneFlags, setns};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

/// Returns true if the process created a segment, or was the last to attach or detach it, and the
/// segment is not among its mappings. The process may attach it again, and find pointers there.
/// `directory` is the process's directory in /proc. Returns `false` if the answer is unknown, for
/// example in an IPC namespace that we may not enter.
pub fn has_detached_segments(directory: &Path, pid: i32) -> bool {
    let Some(text) = listed(directory) else {
        return false;
    };
    let mut segments = of_process(&text, pid).peekable();
    if segments.peek().is_none() {
        return false;
    }
    let attached: BTreeSet<u64> = mappings(pid)
        .unwrap_or_default()
        .iter()
        .filter(|m| m.path.starts_with("/SYSV"))
        // The inode is the number of the segment (ipc/shm.c, newseg).
        .map(|m| m.file_id.2)
        .collect();
    segments.any(|segment| !attached.contains(&segment))
}

/// Reads /proc/sysvipc/shm in the process's namespace. The file shows the namespace of the thread
/// that opens it.
fn listed(directory: &Path) -> Option<String> {
    let read = || std::fs::read_to_string("/proc/sysvipc/shm").ok();
    let theirs = directory.join("ns/ipc");
    if std::fs::read_link(&theirs).ok()? == std::fs::read_link("/proc/self/ns/ipc").ok()? {
        return read();
    }
    let namespace = File::open(theirs).ok()?;
    // A separate thread enters that namespace and ends there.
    let thread = std::thread::spawn(move || {
        setns(namespace, CloneFlags::CLONE_NEWIPC).ok()?;
        std::fs::read_to_string("/proc/sysvipc/shm").ok()
    });
    thread.join().ok()?
}

/// Returns the numbers of the process's segments from lines of `key shmid perms size cpid lpid
/// nattch uid gid cuid cgid atime dtime ctime rss swap`.
fn of_process(text: &str, pid: i32) -> impl Iterator<Item = u64> + '_ {
    text.lines().skip(1).filter_map(move |line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<i64>().ok();
        let is_its = [4, 5].iter().any(|&i| number(i) == Some(i64::from(pid)));
        is_its.then(|| number(1)?.try_into().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_by_who_used_them() {
        let text = "       key      shmid perms                  size  cpid  lpid nattch\n\
                             0          5  1600                  4096    70    80      0\n\
                             0          6  1600                  4096    90    70      2\n\
                             0          7  1600                  4096    90    80      2\n";
        assert_eq!(of_process(text, 70).collect::<Vec<_>>(), [5, 6]);
        assert_eq!(of_process(text, 1).count(), 0);
        assert!(!has_detached_segments(Path::new("/proc/none"), i32::MAX));
    }
}
