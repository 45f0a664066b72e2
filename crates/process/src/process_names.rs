//! Names of processes and threads.

use crate::{proc_path, proc_text};

/// The name of a thread that `ps` shows; `None` if it is gone.
pub fn thread_name(pid: i32, tid: i32) -> Option<String> {
    let name = proc_text(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// The name of a process that `ps` shows, or an empty string. The executable's may differ, for example behind a
/// symbolic link.
pub fn process_name(pid: i32) -> String {
    thread_name(pid, pid).unwrap_or_default()
}

/// The command line of a process, as the kernel has it.
pub fn command_line(pid: i32) -> String {
    words(pid).trim_end_matches('\0').replace('\0', " ")
}

/// The arguments of a process, its own name the first.
pub fn arguments(pid: i32) -> Vec<String> {
    let words = words(pid);
    words.split_terminator('\0').map(str::to_owned).collect()
}

/// The path of the file that a process executes, as the kernel has it; `None` if it has ended.
pub fn executable(pid: i32) -> Option<String> {
    let path = std::fs::read_link(proc_path(pid, "exe")).ok()?;
    let path = path.to_string_lossy();
    Some(path.trim_end_matches(" (deleted)").to_owned())
}

fn words(pid: i32) -> String {
    /// A longer one is cut.
    const MOST_BYTES: u64 = 64 << 10;
    let path = proc_path(pid, "cmdline");
    let bytes = memhook_foreign::read_start(path, MOST_BYTES).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}
