//! What a process is called.

/// The name that `ps` shows. The executable's may differ, for example behind a symbolic link.
pub fn process_name(pid: i32) -> String {
    memhook_process::proc_text(format!("/proc/{pid}/comm"))
        .map(|name| name.trim_end().to_owned())
        .unwrap_or_default()
}

/// The command line of a process, as the kernel has it.
pub fn command_line(pid: i32) -> String {
    /// A longer one is cut.
    const MOST_BYTES: u64 = 64 << 10;
    let path = memhook_process::proc_path(pid, "cmdline");
    let bytes = memhook_foreign::read_start(path, MOST_BYTES).unwrap_or_default();
    let words = String::from_utf8_lossy(&bytes);
    words.trim_end_matches('\0').replace('\0', " ")
}
