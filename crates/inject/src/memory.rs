//! Bytes of the target's memory: process_vm_readv(2) first, /proc/PID/mem where that is refused.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;

use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

use crate::Error;

/// Fills `buffer` from `address` of process `pid`. All or nothing; the content of `buffer` is
/// unspecified after an error.
pub fn read_bytes(pid: i32, address: u64, buffer: &mut [u8]) -> Result<(), Error> {
    let bytes = buffer.len();
    let remote = [RemoteIoVec {
        base: address as usize,
        len: bytes,
    }];
    match process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(buffer)], &remote) {
        Ok(count) if count == bytes => return Ok(()),
        Err(nix::Error::ESRCH) => return Err(Error::TargetGone { pid }),
        _ => {}
    }
    File::open(format!("/proc/{pid}/mem"))
        .and_then(|mem| mem.read_exact_at(buffer, address))
        .map_err(|source| failure("read", pid, address, bytes, source))
}

/// Writes `bytes` to `address` of process `pid`. Where the page is not writable the write goes
/// through /proc/PID/mem, which ignores page protection for a private mapping.
pub fn write_bytes(pid: i32, address: u64, bytes: &[u8]) -> Result<(), Error> {
    let remote = [RemoteIoVec {
        base: address as usize,
        len: bytes.len(),
    }];
    match process_vm_writev(Pid::from_raw(pid), &[IoSlice::new(bytes)], &remote) {
        Ok(count) if count == bytes.len() => return Ok(()),
        Err(nix::Error::ESRCH) => return Err(Error::TargetGone { pid }),
        _ => {}
    }
    OpenOptions::new()
        .write(true)
        .open(format!("/proc/{pid}/mem"))
        .and_then(|mem| mem.write_all_at(bytes, address))
        .map_err(|source| failure("write", pid, address, bytes.len(), source))
}

/// Reads one word, `None` where nothing is mapped.
pub(crate) fn read_word(pid: i32, address: u64) -> Option<u64> {
    let mut word = [0u8; 8];
    let remote = [RemoteIoVec {
        base: address as usize,
        len: word.len(),
    }];
    let count = process_vm_readv(
        Pid::from_raw(pid),
        &mut [IoSliceMut::new(&mut word)],
        &remote,
    )
    .ok();
    match count {
        Some(8) => Some(u64::from_le_bytes(word)),
        _ => read_bytes(pid, address, &mut word)
            .ok()
            .map(|()| u64::from_le_bytes(word)),
    }
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
