//! Taking over descriptors of the target.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A descriptor of ours for what the target's descriptor `number` refers to (pidfd_getfd(2)).
pub fn duplicate_descriptor(pid: i32, number: u64) -> io::Result<OwnedFd> {
    let new = |fd: libc::c_long| match i32::try_from(fd) {
        // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: no pointers.
    let process = new(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: no pointers.
    new(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) })
}
