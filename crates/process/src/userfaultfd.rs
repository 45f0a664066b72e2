//! Checks whether a program itself uses userfaultfd(2). If two users request the same memory, the second request is
//! refused, and a fork may wait until the program has read its notification.

use crate::proc_path;

/// Returns true if a process has a userfaultfd that is not ours. Ours leaves the process immediately.
pub fn has_userfaultfd(pid: i32) -> bool {
    let entries = std::fs::read_dir(proc_path(pid, "fd"));
    let links = entries.into_iter().flatten().flatten();
    links
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .any(|link| link.to_str() == Some("anon_inode:[userfaultfd]"))
}

/// Returns true if memory of a process belongs to a userfaultfd of any process: flags `um`, `uw` and `ui` of
/// proc_pid_smaps(5), given the text of that file.
pub fn is_watched_by_userfaultfd(smaps: &str) -> bool {
    let mut flags = smaps
        .lines()
        .filter_map(|line| line.strip_prefix("VmFlags:"));
    flags.any(|flags| {
        let mut flags = flags.split_ascii_whitespace();
        flags.any(|flag| matches!(flag, "um" | "uw" | "ui"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_watched_memory() {
        let text =
            |flags: &str| format!("1000-3000 rw-p 00000000 00:00 0\nRss: 4 kB\nVmFlags: {flags}\n");
        assert!(!is_watched_by_userfaultfd(&text("rd wr mr mw me ac sd")));
        for flag in ["um", "uw", "ui"] {
            assert!(is_watched_by_userfaultfd(&text(&format!(
                "rd wr {flag} ac"
            ))));
        }
    }
}
