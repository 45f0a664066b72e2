//! Threads of a process.

use crate::{Error, proc_text, thread_name, thread_state};
use nix::unistd::{SysconfVar, sysconf};
use std::time::Duration;
use std::{fs, io};

/// One thread.
#[derive(Clone, Debug)]
pub struct Thread {
    /// Kernel thread id.
    pub tid: i32,
    /// Name (`comm`).
    pub name: String,
}

/// Returns true if a seccomp filter checks the system calls of any thread (each thread has its own filters), or if that
/// is unknown.
pub fn has_seccomp_filter(pid: i32) -> bool {
    let Ok(tids) = thread_ids(pid) else {
        return true;
    };
    // Examining more threads would take too long.
    tids.len() > 500 || tids.into_iter().any(|tid| is_filtered(pid, tid))
}

/// Returns true if a seccomp filter checks, or may check, the system calls of this thread.
pub fn is_filtered(pid: i32, tid: i32) -> bool {
    status_field(pid, tid, "Seccomp:").is_none_or(|mode| mode != "0")
}

/// Returns the number of seccomp filters of the main thread, or else of a living thread; `None` if the kernel does not
/// report it (before Linux 5.9).
pub fn seccomp_filters(pid: i32) -> Option<u32> {
    field_of_process(pid, "Seccomp_filters:")?.parse().ok()
}

/// Counter of seccomp filters that needs only one read: the file stays open, and refers to this thread even if its id
/// is reused.
#[derive(Debug)]
pub struct SeccompFilters {
    pid: i32,
    status: fs::File,
}

impl SeccompFilters {
    /// Opens the counter for the main thread; `None` if it has ended.
    pub fn of(pid: i32) -> Option<SeccompFilters> {
        let status = fs::File::open(format!("/proc/{pid}/task/{pid}/status")).ok()?;
        Some(SeccompFilters { pid, status })
    }

    /// Returns the current number.
    pub fn now(&self) -> Option<u32> {
        use std::os::unix::fs::FileExt;
        let mut text = [0; 4096];
        let read = self.status.read_at(&mut text, 0).ok()?;
        let start = String::from_utf8_lossy(&text[..read]);
        let has_ended =
            in_status(&start, "State:").is_none_or(|state| state.starts_with(['Z', 'X']));
        match in_status(&start, "Seccomp_filters:").filter(|_| !has_ended) {
            Some(count) => count.parse().ok(),
            // The thread ended before the other threads, or a long list of groups has pushed the field out of the
            // buffer.
            None => seccomp_filters(self.pid),
        }
    }
}

/// Returns a field of a thread's status (proc_pid_status(5)).
pub(crate) fn status_field(pid: i32, tid: i32, name: &str) -> Option<String> {
    let status = proc_text(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    in_status(&status, name).map(str::to_owned)
}

/// Returns a field of a process, read from a living thread.
pub(crate) fn field_of_process(pid: i32, name: &str) -> Option<String> {
    status_field(pid, living_thread(pid), name)
}

pub(crate) fn in_status<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.trim())
}

/// Returns the threads of a process.
pub fn threads(pid: i32) -> Result<Vec<Thread>, Error> {
    let named = |tid| Thread {
        tid,
        name: thread_name(pid, tid).unwrap_or_default(),
    };
    Ok(thread_ids(pid)?.into_iter().map(named).collect())
}

/// Returns the ids of a process's threads.
pub fn thread_ids(pid: i32) -> Result<Vec<i32>, Error> {
    let path = format!("/proc/{pid}/task");
    let entries = fs::read_dir(&path).map_err(|cause| Error::Proc { path, cause })?;
    let id = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    Ok(entries.flatten().filter_map(id).collect())
}

/// Returns a thread through which the kernel gives access to the resources of a process. If the initial thread ends
/// before the other threads (pthread_exit(3)), it loses its memory and its files, and is a zombie until they have
/// ended.
pub fn living_thread(pid: i32) -> i32 {
    some_living_thread(pid).unwrap_or(pid)
}

fn some_living_thread(pid: i32) -> Option<i32> {
    // Only a thread that still has its memory has a link to its program (`get_task_exe_file` of kernel/fork.c), and
    // reading the link takes one system call. A process that we may not inspect shows no link.
    if fs::read_link(format!("/proc/{pid}/exe")).is_ok() {
        return Some(pid);
    }
    let lives = |tid: &i32| !matches!(thread_state(pid, *tid), None | Some('Z' | 'X'));
    if lives(&pid) {
        return Some(pid);
    }
    thread_ids(pid).unwrap_or_default().into_iter().find(lives)
}

/// Returns the path of a file in /proc about a process, always through a living thread. Use this for every such file,
/// so that it does not matter whether the initial thread has ended.
pub fn proc_path(pid: i32, file: &str) -> String {
    format!("/proc/{}/{file}", living_thread(pid))
}

/// Reads or opens a file in /proc about a process, through a living thread. If the thread ends at that moment, tries
/// another thread.
pub(crate) fn by_living_thread<T>(
    pid: i32,
    file: &str,
    read: impl Fn(&str) -> io::Result<T>,
    is_empty: impl Fn(&T) -> bool,
) -> Result<T, Error> {
    loop {
        let thread = living_thread(pid);
        let path = format!("/proc/{thread}/{file}");
        match read(&path) {
            Ok(found) if !is_empty(&found) => return Ok(found),
            _ if living_thread(pid) != thread => {}
            found => return found.map_err(|cause| Error::Proc { path, cause }),
        }
    }
}

/// Returns the ids of all processes that this process can see.
pub fn process_ids() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Returns the start time of a thread, in clock ticks since boot (proc_pid_stat(5), field 22). Together with the tid it
/// identifies the thread, because tids are reused.
pub fn thread_start_time(pid: i32, tid: i32) -> Option<u64> {
    stat_field(pid, tid, 22)?.parse().ok()
}

/// Returns how long a process has run, with a resolution of a hundredth of a second. If the process has executed
/// another program, that program has run for a shorter time.
pub fn process_age(pid: i32) -> Option<Duration> {
    let started = thread_start_time(pid, pid)? as f64;
    let ticks = sysconf(SysconfVar::CLK_TCK).ok()??;
    // proc_uptime(5): seconds since boot, like the times in proc_pid_stat(5).
    let uptime = proc_text("/proc/uptime").ok()?;
    let now: f64 = uptime.split(' ').next()?.parse().ok()?;
    Some(Duration::from_secs_f64(
        (now - started / ticks as f64).max(0.0),
    ))
}

/// Returns true if a process has ended: it is gone, or a zombie that its parent has not waited for yet. A process whose
/// initial thread has ended continues as long as it has other threads.
pub fn has_ended(pid: i32) -> bool {
    some_living_thread(pid).is_none()
}

/// Returns a field of proc_pid_stat(5), by its number there, from 3 on.
pub(crate) fn stat_field(pid: i32, tid: i32, number: usize) -> Option<String> {
    let stat = proc_text(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    in_stat(&stat, number).map(str::to_owned)
}

pub(crate) fn in_stat(stat: &str, number: usize) -> Option<&str> {
    // The name before the fields, in parentheses, may contain anything.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    fields.nth(number.checked_sub(3)?)
}

/// Returns a thread's id in its own pid namespace.
pub fn inner_tid(pid: i32, tid: i32) -> Option<u32> {
    // The field has the thread's id in each namespace, the innermost last (proc_pid_status(5)).
    let ids = status_field(pid, tid, "NSpid:")?;
    ids.split_ascii_whitespace().last()?.parse().ok()
}

/// Returns the effective user of a process, as seen from here.
pub fn effective_user(pid: i32) -> Option<u32> {
    // Real, effective, saved, and file system user (proc_pid_status(5)).
    let users = field_of_process(pid, "Uid:")?;
    users.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel cuts names after 15 bytes, even in the middle of a character.
    #[test]
    fn a_name_may_not_be_text() {
        let own = std::thread::Builder::new().name("fifteen_bytes_\u{e4}".into());
        let facts = own.spawn(|| {
            let pid = std::process::id() as i32;
            let own = fs::read_link("/proc/thread-self").expect("our own");
            let tid = own
                .file_name()
                .and_then(|tid| tid.to_str()?.parse().ok())
                .expect("PID/task/TID");
            let comm = fs::read(format!("/proc/{pid}/task/{tid}/comm")).expect("our own");
            assert!(String::from_utf8(comm).is_err());
            assert!(thread_start_time(pid, tid).is_some());
            assert!(status_field(pid, tid, "Seccomp:").is_some());
            assert_eq!(inner_tid(pid, tid), Some(tid as u32));
            let all = threads(pid).expect("our own");
            let name = all.into_iter().find(|t| t.tid == tid).map(|t| t.name);
            assert_eq!(name.as_deref(), Some("fifteen_bytes_\u{fffd}"));
        });
        facts.expect("a thread").join().expect("no panic");
    }
}
