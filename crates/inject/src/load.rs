//! The hook's object and the shared region, brought into the target without any file.

use crate::{error::Error, hold::Held, memory};
use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
};

/// The function that loads a shared object in the target.
#[derive(Clone, Copy, Debug)]
pub struct Dlopen {
    /// Address (avma) of `dlopen` or `__libc_dlopen_mode`.
    pub address: u64,
    /// It is libc's internal variant, which wants its own mode bit.
    pub internal_mode: bool,
}

/// A loaded object.
#[derive(Clone, Copy, Debug)]
pub struct Loaded {
    /// Load bias: avma = base + svma.
    pub base: u64,
}

/// Shared memory that the target has mapped.
pub struct Region {
    /// The memfd, opened by us.
    pub file: File,
    /// Where the target has it (avma).
    pub address: u64,
}

const RTLD_NOW: u64 = 2;
/// glibc, include/dlfcn.h: `__RTLD_DLOPEN`.
const INTERNAL_DLOPEN: u64 = 0x8000_0000;

/// Makes a memfd in the target and opens it from here; returns its number there.
fn remote_memfd(held: &mut Held, name: &[u8]) -> Result<(u64, File), Error> {
    let data = held.scratch_data()?;
    memory::write_bytes(held.pid, data, name)?;
    let fd = held.checked(
        "memfd_create",
        libc::SYS_memfd_create,
        [data, u64::from(libc::MFD_CLOEXEC), 0, 0, 0, 0],
    )?;
    let path = format!("/proc/{}/fd/{fd}", held.pid);
    match OpenOptions::new().read(true).write(true).open(&path) {
        Ok(file) => Ok((fd, file)),
        Err(source) => {
            let _ = held.syscall(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
            Err(Error::Proc { path, source })
        }
    }
}

/// Loads `object` into the target with `dlopen` of a memfd; nothing is left open there.
///
/// pre: the thread is held at a safe point.
pub fn load_object(held: &mut Held, dlopen: Dlopen, object: &[u8]) -> Result<Loaded, Error> {
    let (fd, file) = remote_memfd(held, b"memhook-hook\0")?;
    let result = (|| {
        let path = format!("/proc/{}/fd/{fd}", held.pid);
        file.write_all_at(object, 0)
            .map_err(|source| Error::Proc { path, source })?;
        let data = held.scratch_data()?;
        memory::write_bytes(held.pid, data, format!("/proc/self/fd/{fd}\0").as_bytes())?;
        let mode = RTLD_NOW
            | if dlopen.internal_mode {
                INTERNAL_DLOPEN
            } else {
                0
            };
        let handle = held.call(dlopen.address, &[data, mode])?;
        if handle == 0 {
            return Err(Error::LoadRefused { pid: held.pid });
        }
        // A handle is a struct link_map, whose first member is l_addr (link.h).
        let mut base = [0; 8];
        memory::read_bytes(held.pid, handle, &mut base)?;
        Ok(Loaded {
            base: u64::from_le_bytes(base),
        })
    })();
    held.syscall(libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
    result
}

/// Makes shared memory of `bytes` and maps it in the target; nothing is left open there.
pub fn create_region(held: &mut Held, bytes: u64) -> Result<Region, Error> {
    let (fd, file) = remote_memfd(held, b"memhook-region\0")?;
    let result = (|| {
        let path = format!("/proc/{}/fd/{fd}", held.pid);
        file.set_len(bytes)
            .map_err(|source| Error::Proc { path, source })?;
        let writable = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let shared = (libc::MAP_SHARED | libc::MAP_NORESERVE) as u64;
        let address = held.checked("mmap", libc::SYS_mmap, [0, bytes, writable, shared, fd, 0])?;
        // A core dump of the target shall not contain our rings; a refusal changes nothing else.
        let dontdump = libc::MADV_DONTDUMP as u64;
        held.syscall(libc::SYS_madvise, [address, bytes, dontdump, 0, 0, 0])?;
        Ok(Region { file, address })
    })();
    held.syscall(libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
    result
}
