//! Names of processes and threads.

use crate::{proc_path, proc_text};

/// Returns the name of a thread as shown by `ps`; `None` if it is gone.
pub fn thread_name(pid: i32, tid: i32) -> Option<String> {
    let name = proc_text(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// Returns the name of a process as shown by `ps`, or an empty string. It may differ from the executable's name, for
/// example if it was started through a symbolic link.
pub fn process_name(pid: i32) -> String {
    thread_name(pid, pid).unwrap_or_default()
}

/// Returns the command line of a process.
pub fn command_line(pid: i32) -> String {
    words(pid).trim_end_matches('\0').replace('\0', " ")
}

/// Returns the arguments of a process, starting with its own name.
pub fn arguments(pid: i32) -> Vec<String> {
    let words = words(pid);
    words.split_terminator('\0').map(str::to_owned).collect()
}

/// Returns the path of the file that a process executes; `None` if it has ended.
pub fn executable(pid: i32) -> Option<String> {
    let path = std::fs::read_link(proc_path(pid, "exe")).ok()?;
    let path = path.to_string_lossy();
    Some(path.trim_end_matches(" (deleted)").to_owned())
}

fn words(pid: i32) -> String {
    /// Maximum length in bytes; longer names are truncated.
    const MOST_BYTES: u64 = 64 << 10;
    let path = proc_path(pid, "cmdline");
    let bytes = memhook_foreign::read_start(path, MOST_BYTES).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}
