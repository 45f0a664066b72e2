//! Memory for our code in the target. The code cannot be changed once it is complete.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::descriptor::{open_here, resize};
use crate::region::{MemfdFor, memfd};
use crate::{Error, Held};
use memhook_process::RemoteAddress;

/// Memory that the target can read and execute, and that this process fills.
#[derive(Debug)]
pub struct CodeArea {
    file: File,
    /// Address in the target.
    pub address: RemoteAddress,
}

/// MADV_WIPEONFORK of `<asm-generic/mman-common.h>`, since Linux 4.14.
const WIPE_ON_FORK: u64 = 18;
const ANONYMOUS: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
const AT_THIS_PLACE: u64 = libc::MAP_FIXED_NOREPLACE as u64;
const NO_FILE: u64 = u64::MAX;

/// Maps an empty area of `bytes` bytes at `address`, followed by `wiped_bytes` bytes of zeros that the target can write
/// and that a fork wipes. `None` if other memory is there. The area has this name in /proc/PID/maps, and is private: a
/// forked process has a copy.
pub fn map_code_area(
    held: &mut Held,
    name: &CStr,
    address: RemoteAddress,
    bytes: u64,
    wiped_bytes: u64,
) -> Result<Option<CodeArea>, Error> {
    let number = memfd(held, name, MemfdFor::SealedCode)?;
    let area = map(held, number, address, bytes, wiped_bytes);
    let closed = held.close_opened();
    let area = area?;
    closed?;
    Ok(area)
}

fn map(
    held: &mut Held,
    number: u64,
    address: RemoteAddress,
    bytes: u64,
    wiped_bytes: u64,
) -> Result<Option<CodeArea>, Error> {
    resize(held, number, bytes)?;
    let file = open_here(held, number)?;
    let code = (libc::PROT_READ | libc::PROT_EXEC) as u64;
    let flags = libc::MAP_PRIVATE as u64 | AT_THIS_PLACE;
    let arguments = [address.0, bytes, code, flags, number, 0];
    if !map_here(held, &arguments)? {
        return Ok(None);
    }
    held.check_mapped(address.0, bytes)?;
    if wiped_bytes == 0 {
        return Ok(Some(CodeArea { file, address }));
    }
    let wiped = address + bytes;
    let data = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let arguments = [
        wiped.0,
        wiped_bytes,
        data,
        ANONYMOUS | AT_THIS_PLACE,
        NO_FILE,
        0,
    ];
    let mapped = map_here(held, &arguments);
    let has_data = matches!(mapped, Ok(true));
    let wiped = mapped.and_then(|is_mapped| {
        if is_mapped {
            let advice = [wiped.0, wiped_bytes, WIPE_ON_FORK];
            held.checked_syscall("madvise", libc::SYS_madvise, &advice)?;
        }
        Ok(is_mapped)
    });
    if !matches!(wiped, Ok(true)) {
        let mapped_bytes = if has_data { bytes + wiped_bytes } else { bytes };
        held.checked_syscall("munmap", libc::SYS_munmap, &[address.0, mapped_bytes])?;
    }
    Ok(wiped?.then_some(CodeArea { file, address }))
}

/// Maps the code. Returns true if there was room.
fn map_here(held: &mut Held, arguments: &[u64; 6]) -> Result<bool, Error> {
    let mapped = held.checked_syscall("mmap", libc::SYS_mmap, arguments);
    match mapped {
        // Before Linux 4.17 the address is only a hint.
        Ok(at) if at != arguments[0] => {
            held.checked_syscall("munmap", libc::SYS_munmap, &[at, arguments[1]])?;
            Ok(false)
        }
        Ok(_) => Ok(true),
        Err(Error::RemoteSyscall { cause, .. }) if cause.raw_os_error() == Some(libc::EEXIST) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

impl CodeArea {
    /// Fills the area and seals it. From then on, even the target cannot change it, except by mapping other memory over
    /// it.
    pub fn fill(&self, bytes: &[u8]) -> std::io::Result<()> {
        self.file.write_all_at(bytes, 0)?;
        let seals =
            libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE | libc::F_SEAL_SEAL;
        // SAFETY: no pointers.
        match unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}
