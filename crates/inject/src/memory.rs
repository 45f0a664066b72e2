//! Bytes of the target's memory: process_vm_readv(2) first, /proc/PID/mem where that is refused.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use crate::Error;

/// Fills `buffer` from `address` of process `pid`. All or nothing; the content of `buffer` is
/// unspecified after an error.
pub fn read_bytes(pid: i32, address: u64, buffer: &mut [u8]) -> Result<(), Error> {
    let bytes = buffer.len();
    if read_at_once(pid, address, buffer)? {
        return Ok(());
    }
    File::open(format!("/proc/{pid}/mem"))
        .and_then(|mem| mem.read_exact_at(buffer, address))
        .map_err(|source| failure("read", pid, address, bytes, source))
}

/// Writes `bytes` to `address` of process `pid`. Where the page is not writable the write goes
/// through /proc/PID/mem, which ignores page protection for a private mapping.
pub fn write_bytes(pid: i32, address: u64, bytes: &[u8]) -> Result<(), Error> {
    if write_at_once(pid, address, bytes)? {
        return Ok(());
    }
    OpenOptions::new()
        .write(true)
        .open(format!("/proc/{pid}/mem"))
        .and_then(|mem| mem.write_all_at(bytes, address))
        .map_err(|source| failure("write", pid, address, bytes.len(), source))
}

/// Writes `bytes` only where the target itself could.
pub(crate) fn write_writable(pid: i32, address: u64, bytes: &[u8]) -> Result<(), Error> {
    if write_at_once(pid, address, bytes)? {
        return Ok(());
    }
    let source = io::Error::from_raw_os_error(libc::EFAULT);
    Err(failure("write", pid, address, bytes.len(), source))
}

/// Whether process_vm_writev could write all of it.
fn write_at_once(pid: i32, address: u64, bytes: &[u8]) -> Result<bool, Error> {
    let local = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut _,
        iov_len: bytes.len(),
    };
    // SAFETY: `local` describes `bytes`, which the kernel only reads; `remote` is an address of
    // the target, which the kernel checks.
    let count =
        unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) };
    is_complete(pid, count, bytes.len())
}

/// Reads one word, `None` where nothing is mapped.
pub(crate) fn read_word(pid: i32, address: u64) -> Option<u64> {
    let mut word = [0u8; 8];
    read_bytes(pid, address, &mut word).ok()?;
    Some(u64::from_le_bytes(word))
}

/// Whether process_vm_readv could read all of it.
fn read_at_once(pid: i32, address: u64, buffer: &mut [u8]) -> Result<bool, Error> {
    let bytes = buffer.len();
    let local = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: bytes,
    };
    let remote = libc::iovec {
        iov_base: address as *mut _,
        iov_len: bytes,
    };
    // SAFETY: `local` describes `buffer`, which is writable for its whole length; `remote` is an
    // address of the target, which the kernel checks.
    let count =
        unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    is_complete(pid, count, bytes)
}

fn is_complete(pid: i32, count: isize, bytes: usize) -> Result<bool, Error> {
    if count < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH) {
        return Err(Error::TargetGone { pid });
    }
    Ok(usize::try_from(count) == Ok(bytes))
}

fn failure(action: &'static str, pid: i32, address: u64, bytes: usize, source: io::Error) -> Error {
    if source.kind() == io::ErrorKind::NotFound {
        return Error::TargetGone { pid };
    }
    Error::Memory {
        action,
        pid,
        address,
        bytes,
        source,
    }
}
