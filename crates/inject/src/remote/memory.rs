//! Writes to the target's memory: process_vm_writev(2) first, then /proc/PID/mem if it is refused.

use std::io;
use std::os::unix::fs::FileExt;

use crate::Error;
use crate::audit::{self, Act};
use memhook_process::{RemoteAddress, living_thread, open_memory};

/// Writes `bytes` to `address` of process `pid`. If the page is not writable, the write goes through /proc/PID/mem,
/// which ignores page protection for a private mapping.
pub fn write_bytes(pid: i32, address: RemoteAddress, bytes: &[u8]) -> Result<(), Error> {
    audit::note_as(pid, || {
        Act::Write(address.0..address.0.saturating_add(bytes.len() as u64))
    });
    if write_at_once(pid, address, bytes)? {
        return Ok(());
    }
    open_memory(pid)
        .map_err(|error| Error::of_process(pid, error))?
        .write_all_at(bytes, address.0)
        .map_err(|cause| failure(pid, address, bytes.len(), cause))
}

/// Writes `bytes` only if the target itself could write them.
pub(crate) fn write_writable(pid: i32, address: RemoteAddress, bytes: &[u8]) -> Result<(), Error> {
    if write_at_once(pid, address, bytes)? {
        return Ok(());
    }
    let cause = io::Error::from_raw_os_error(libc::EFAULT);
    Err(failure(pid, address, bytes.len(), cause))
}

/// Returns true if process_vm_writev wrote all bytes.
fn write_at_once(pid: i32, address: RemoteAddress, bytes: &[u8]) -> Result<bool, Error> {
    let local = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let remote = libc::iovec {
        iov_base: address.0 as *mut _,
        iov_len: bytes.len(),
    };
    let thread = living_thread(pid);
    // SAFETY: `local` describes `bytes`, which the kernel only reads; `remote` is an address of
    // the target, which the kernel checks.
    let count =
        unsafe { libc::process_vm_writev(thread, &raw const local, 1, &raw const remote, 1, 0) };
    if count < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH) {
        return Err(Error::TargetGone { pid });
    }
    Ok(usize::try_from(count) == Ok(bytes.len()))
}

fn failure(pid: i32, address: RemoteAddress, bytes: usize, cause: io::Error) -> Error {
    Error::Memory {
        action: "write",
        pid,
        address,
        bytes,
        cause,
    }
}
