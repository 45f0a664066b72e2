//! Threads of a process.

use crate::Error;
use std::fs;

/// One thread.
#[derive(Clone, Debug)]
pub struct Thread {
    /// Kernel thread id.
    pub tid: i32,
    /// Name (`comm`).
    pub name: String,
}

/// Whether a seccomp filter looks at the system calls of any thread (each has its own filters), or
/// may: `true` where that is not known.
pub fn has_seccomp_filter(pid: i32) -> bool {
    let Ok(tids) = thread_ids(pid) else {
        return true;
    };
    // Of more threads it would take too long to ask.
    tids.len() > 500 || tids.into_iter().any(|tid| is_filtered(pid, tid))
}

fn is_filtered(pid: i32, tid: i32) -> bool {
    status_field(pid, tid, "Seccomp:").is_none_or(|mode| mode != "0")
}

/// How many seccomp filters the main thread lives under; `None` where the kernel does not say (before
/// Linux 5.9).
pub fn seccomp_filters(pid: i32) -> Option<u32> {
    status_field(pid, pid, "Seccomp_filters:")?.parse().ok()
}

/// A field of a thread's status (proc_pid_status(5)).
fn status_field(pid: i32, tid: i32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.trim().to_owned())
}

/// The threads of a process.
pub fn threads(pid: i32) -> Result<Vec<Thread>, Error> {
    let path = format!("/proc/{pid}/task");
    let entries = fs::read_dir(&path).map_err(|source| Error::Proc { path, source })?;
    Ok(entries
        .flatten()
        .filter_map(|entry| {
            let tid = entry.file_name().to_str()?.parse().ok()?;
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            Some(Thread {
                tid,
                name: name.trim_end().to_owned(),
            })
        })
        .collect())
}

/// The ids of a process's threads.
pub fn thread_ids(pid: i32) -> Result<Vec<i32>, Error> {
    let path = format!("/proc/{pid}/task");
    let entries = fs::read_dir(&path).map_err(|source| Error::Proc { path, source })?;
    let id = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    Ok(entries.flatten().filter_map(id).collect())
}

/// When a thread started, in clock ticks since boot (proc_pid_stat(5), field 22): with the tid it
/// identifies the thread, as tids are used again.
pub fn thread_start_time(pid: i32, tid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    let after_name = &stat[stat.rfind(')')? + 1..];
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}
