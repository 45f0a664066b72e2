//! What processes and threads are called.

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
    /// A longer one is cut.
    const MOST_BYTES: u64 = 64 << 10;
    let path = proc_path(pid, "cmdline");
    let bytes = memhook_foreign::read_start(path, MOST_BYTES).unwrap_or_default();
    let words = String::from_utf8_lossy(&bytes);
    words.trim_end_matches('\0').replace('\0', " ")
}
