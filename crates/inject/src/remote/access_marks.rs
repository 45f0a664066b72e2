//! The marks that a processor leaves in page tables when a page is accessed (the accessed bit; Intel SDM volume 3,
//! 4.8).

use std::fs::OpenOptions;
use std::io::{self, Write};

/// Clears the marks of the anonymous pages of a process (`/proc/PID/clear_refs`, proc_pid_clear_refs(5)). It goes on as
/// before; whatever it maps, unmaps or touches for the first time meanwhile waits until the kernel has been through
/// its page tables. A processor that has a translation in its cache leaves no new mark until that one is
/// flushed, and this does not flush it.
pub fn clear_access_marks(pid: i32) -> io::Result<()> {
    let path = format!("/proc/{pid}/clear_refs");
    OpenOptions::new().write(true).open(path)?.write_all(b"2")
}
