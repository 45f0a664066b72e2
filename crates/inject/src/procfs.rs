//! Small files of /proc/PID/task/TID: state, current system call, tracer, sleep start.

use std::fs;
use std::time::Duration;

/// Ids of all threads of `pid`; empty when it is gone.
pub(crate) fn threads(pid: i32) -> Vec<i32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// State letter of proc_pid_stat(5): R, S, D, T, t, Z, X, I. `None` when the thread is gone.
pub(crate) fn state(pid: i32, tid: i32) -> Option<char> {
    let text = fs::read(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    // The name in parentheses may hold anything, so look behind the last one.
    let after = text.iter().rposition(|&byte| byte == b')')?;
    text.get(after + 2).map(|&byte| char::from(byte))
}

/// What a thread is doing, without stopping it (proc_pid_syscall(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    /// On a CPU, or the file can't be read.
    Running,
    /// Blocked in the system call of this number, -1 if blocked outside one.
    Blocked(i64),
}

/// Current activity of a thread.
pub(crate) fn activity(pid: i32, tid: i32) -> Activity {
    let number = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall"))
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse().ok());
    number.map_or(Activity::Running, Activity::Blocked)
}

/// Process of a thread.
pub(crate) fn process_of(tid: i32) -> Option<i32> {
    status_field(tid, tid, "Tgid:")?.parse().ok()
}

/// Process that traces `pid`, 0 if none.
pub(crate) fn tracer(pid: i32, tid: i32) -> i32 {
    status_field(pid, tid, "TracerPid:")
        .and_then(|value| value.parse().ok())
        .unwrap_or(0)
}

/// How often a thread went to sleep by itself so far.
pub(crate) fn sleeps(pid: i32, tid: i32) -> Option<u64> {
    status_field(pid, tid, "voluntary_ctxt_switches:")?
        .parse()
        .ok()
}

/// When a thread last ran, by the clock of its processor (`se.exec_start`, proc_sched_show_task in
/// kernel/sched/debug.c); `None` where the kernel does not say.
pub(crate) fn last_ran(pid: i32, tid: i32) -> Option<Duration> {
    let text = fs::read(format!("/proc/{pid}/task/{tid}/sched")).ok()?;
    let text = String::from_utf8_lossy(&text);
    let value = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == "se.exec_start").then_some(value.trim())
    })?;
    // Milliseconds and six more digits.
    let (milliseconds, nanoseconds) = value.split_once('.')?;
    let rest: u64 = (nanoseconds.len() == 6).then_some(nanoseconds.parse().ok()?)?;
    let value = Duration::from_millis(milliseconds.parse().ok()?) + Duration::from_nanos(rest);
    // Older kernels forget it when the thread moves.
    (!value.is_zero()).then_some(value)
}

/// The processor that a thread is on, or was on last (proc_pid_stat(5), field 39).
pub(crate) fn processor(pid: i32, tid: i32) -> Option<usize> {
    let text = fs::read(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text);
    // Behind the name in parentheses comes field 3.
    let (_, fields) = text.rsplit_once(')')?;
    fields.split_whitespace().nth(39 - 3)?.parse().ok()
}

/// Signals for which the process has a handler, bit `n - 1` for signal `n`.
pub(crate) fn caught_signals(pid: i32) -> Option<u64> {
    u64::from_str_radix(&status_field(pid, pid, "SigCgt:")?, 16).ok()
}

/// Whether a seccomp filter looks at a thread's system calls, or may.
pub(crate) fn is_filtered(pid: i32, tid: i32) -> bool {
    status_field(pid, tid, "Seccomp:").is_none_or(|mode| mode != "0")
}

fn status_field(pid: i32, tid: i32, name: &str) -> Option<String> {
    let text = fs::read(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    String::from_utf8_lossy(&text)
        .lines()
        .find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
}

/// Whether the process is the init process of its pid namespace.
pub(crate) fn is_init(pid: i32) -> bool {
    status_field(pid, pid, "NSpid:").is_some_and(|ids| ids.split_whitespace().last() == Some("1"))
}
