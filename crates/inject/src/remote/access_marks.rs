//! Accessed bits, which a processor sets in page tables when a page is accessed (Intel SDM volume 3, 4.8).

use crate::audit::{Act, note};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::descriptor::descriptor_of_process;
use memhook_process::proc_path;

/// Clears the bits of all anonymous pages of a process in one call (`/proc/PID/clear_refs`, proc_pid_clear_refs(5)).
/// The process keeps running, but mapping, unmapping and first accesses wait until the kernel has walked the page
/// tables. A processor with a cached translation does not set the bit again until the translation is flushed, which
/// this call does not do.
pub fn clear_access_marks(pid: i32) -> io::Result<()> {
    let path = proc_path(pid, "clear_refs");
    note(pid, Act::ClearMarks);
    OpenOptions::new().write(true).open(path)?.write_all(b"2")
}

/// Clears the bits range by range, by `process_madvise(2)` with `MADV_COLD`. That takes the mmap lock of the address
/// space for reading, so only threads that map or unmap memory have to wait. It needs CAP_SYS_NICE.
///
/// The kernel also marks these pages as inactive, so they would be swapped out first. Use this on machines without
/// swap, where anonymous pages stay resident.
pub struct RangeMarks {
    process: OwnedFd,
}

impl RangeMarks {
    /// Checks the permission without changing anything for the process.
    pub fn of(pid: i32) -> io::Result<RangeMarks> {
        let process = descriptor_of_process(pid)?;
        let marks = RangeMarks { process };
        marks.advise(&[]).map(|_| marks)
    }

    /// Clears the bits of a range inside one mapping. Pages that are shared with a forked child keep their bits.
    pub fn clear(&self, range: Range<u64>) -> io::Result<()> {
        let one = libc::iovec {
            iov_base: range.start as *mut libc::c_void,
            iov_len: (range.end - range.start) as usize,
        };
        self.advise(&[one]).map(drop)
    }

    fn advise(&self, ranges: &[libc::iovec]) -> io::Result<usize> {
        // SAFETY: the kernel reads this number of iovecs, which live for the call. They contain addresses of the other
        // process.
        let result = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                self.process.as_raw_fd(),
                ranges.as_ptr(),
                ranges.len(),
                libc::MADV_COLD,
                0,
            )
        };
        usize::try_from(result).map_err(|_| io::Error::last_os_error())
    }
}
