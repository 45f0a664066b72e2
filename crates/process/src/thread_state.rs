//! Activity of one thread: its state, its system call, its tracer, its sleep.

use crate::proc_text;
use crate::threads::{field_of_process, has_ended, stat_field, status_field};
use std::time::Duration;

/// Returns the state letter of proc_pid_stat(5): R, S, D, T, t, Z, X, I. `None` if the thread is gone.
pub fn thread_state(pid: i32, tid: i32) -> Option<char> {
    stat_field(pid, tid, 3)?.chars().next()
}

/// Activity of a thread, found without stopping it (proc_pid_syscall(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// The thread is on a processor, or the file cannot be read.
    Running,
    /// Blocked in the system call with this number; -1: blocked outside a call.
    Blocked(i64),
}

impl Activity {
    /// Reads the current activity of a thread.
    pub fn of(pid: i32, tid: i32) -> Activity {
        let text = proc_text(format!("/proc/{pid}/task/{tid}/syscall"));
        let number = text
            .ok()
            .and_then(|text| text.split_whitespace().next()?.parse().ok());
        number.map_or(Activity::Running, Activity::Blocked)
    }
}

/// Returns the program counter and stack pointer of a blocked thread (proc_pid_syscall(5)).
pub fn blocked_at(pid: i32, tid: i32) -> Option<(u64, u64)> {
    let text = proc_text(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
    let mut fields = text.split_whitespace().rev();
    let mut address = || u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok();
    Some((address()?, address()?))
}

/// Returns the kernel function in which a thread waits (proc_pid_wchan(5)), or an empty string.
pub fn waits_in(pid: i32, tid: i32) -> String {
    proc_text(format!("/proc/{pid}/task/{tid}/wchan")).unwrap_or_default()
}

/// Returns the process of a thread.
pub fn process_of(tid: i32) -> Option<i32> {
    status_field(tid, tid, "Tgid:")?.parse().ok()
}

/// Returns the process that traces a thread, or 0.
pub fn tracer(pid: i32, tid: i32) -> i32 {
    // The tracer's id is the id of a thread, despite the field's name (fs/proc/array.c, task_state).
    tracing_thread(pid, tid).map_or(0, |tracer| process_of(tracer).unwrap_or(tracer))
}

/// Returns true if a thread has no tracer. Also returns false if the tracer cannot be read because no descriptor is
/// free.
pub fn is_untraced(pid: i32, tid: i32) -> bool {
    tracing_thread(pid, tid) == Some(0)
}

fn tracing_thread(pid: i32, tid: i32) -> Option<i32> {
    status_field(pid, tid, "TracerPid:")?.parse().ok()
}

/// Returns the number of times that a thread has gone to sleep voluntarily.
pub fn sleeps(pid: i32, tid: i32) -> Option<u64> {
    status_field(pid, tid, "voluntary_ctxt_switches:")?
        .parse()
        .ok()
}

/// Returns the time at which a thread last ran, by the clock of its processor (`se.exec_start`, proc_sched_show_task in
/// kernel/sched/debug.c); `None` if the kernel does not report it.
pub fn last_ran(pid: i32, tid: i32) -> Option<Duration> {
    let text = proc_text(format!("/proc/{pid}/task/{tid}/sched")).ok()?;
    let value = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == "se.exec_start").then_some(value.trim())
    })?;
    // Milliseconds and six more digits.
    let (milliseconds, nanoseconds) = value.split_once('.')?;
    let rest: u64 = (nanoseconds.len() == 6).then_some(nanoseconds.parse().ok()?)?;
    let value = Duration::from_millis(milliseconds.parse().ok()?) + Duration::from_nanos(rest);
    // Older kernels reset the time when the thread moves to another processor.
    (!value.is_zero()).then_some(value)
}

/// Returns the processor that a thread runs on, or ran on last.
pub fn processor(pid: i32, tid: i32) -> Option<usize> {
    stat_field(pid, tid, 39)?.parse().ok()
}

/// Returns the wait status of a process that has ended and that its parent has not waited for yet (proc_pid_stat(5),
/// field 52).
pub fn ended_with(pid: i32) -> Option<i32> {
    if thread_state(pid, pid) != Some('Z') || !has_ended(pid) {
        return None;
    }
    stat_field(pid, pid, 52)?.parse().ok()
}

/// Returns the signals for which the process has a handler: bit `n - 1` is signal `n`.
pub fn caught_signals(pid: i32) -> Option<u64> {
    u64::from_str_radix(&field_of_process(pid, "SigCgt:")?, 16).ok()
}

/// Returns the signals that a thread currently blocks, in the form of [`caught_signals`]. While it is in ppoll(2) or a
/// similar call, this is the mask of that call.
pub fn blocked_by_thread(pid: i32, tid: i32) -> Option<u64> {
    u64::from_str_radix(&status_field(pid, tid, "SigBlk:")?, 16).ok()
}

/// Returns the signals blocked by the initial thread of the process, or by a living thread, in the form of
/// [`caught_signals`].
pub fn blocked_signals(pid: i32) -> Option<u64> {
    u64::from_str_radix(&field_of_process(pid, "SigBlk:")?, 16).ok()
}
