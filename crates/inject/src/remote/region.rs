//! Memory shared between the target and this process.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::descriptor::{open_here, resize, undisturbed};
use crate::{Error, Held};
use memhook_process::RemoteAddress;

/// Memory that the target has mapped and this process can map.
#[derive(Debug)]
pub struct Region {
    /// Our descriptor of the memory object.
    pub fd: OwnedFd,
    /// Where the target has mapped it.
    pub address: RemoteAddress,
}

/// Makes a shared memory object of `bytes` bytes and this name in the target, maps it there (shared, without
/// reserving swap, left out of core dumps) and opens it here. No descriptor stays in the target.
///
/// With `over`, the new region replaces one of the same size at that address, in one step: there is no
/// moment without memory there.
pub fn create_region(
    held: &mut Held,
    name: &CStr,
    bytes: u64,
    over: Option<RemoteAddress>,
) -> Result<Region, Error> {
    undisturbed(held, |held| {
        let number = memfd(held, name, MemfdFor::Data)?;
        let region = map_and_open(held, number, bytes, over);
        let closed = held.close_opened();
        let region = region?;
        closed?;
        Ok(region)
    })
}

fn map_and_open(
    held: &mut Held,
    number: u64,
    bytes: u64,
    over: Option<RemoteAddress>,
) -> Result<Region, Error> {
    resize(held, number, bytes)?;
    let fd: OwnedFd = open_here(held, number)?.into();
    seal(&fd).map_err(|cause| Error::File {
        path: format!("/proc/{}/fd/{number}", held.pid),
        cause,
    })?;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let fixed = over.map_or(0, |_| libc::MAP_FIXED);
    let flags = (libc::MAP_SHARED | libc::MAP_NORESERVE | fixed) as u64;
    let at = over.unwrap_or_default().0;
    let map = [at, bytes, protection, flags, number, 0];
    let address = held.checked_syscall("mmap", libc::SYS_mmap, &map)?;
    held.check_mapped(address, bytes)?;
    // Nothing depends on this. It keeps the region out of core dumps, and a page that is touched from taking two
    // megabytes where huge pages are on for shared memory.
    for advice in [libc::MADV_DONTDUMP, libc::MADV_NOHUGEPAGE] {
        held.syscall(libc::SYS_madvise, [address, bytes, advice as u64, 0, 0, 0])?;
    }
    let address = RemoteAddress(address);
    Ok(Region { fd, address })
}

/// Unmaps a region that no code in the target uses.
pub fn unmap_region(held: &mut Held, address: RemoteAddress, bytes: u64) -> Result<(), Error> {
    held.checked_syscall("munmap", libc::SYS_munmap, &[address.0, bytes])
        .map(drop)
}

/// These keep the region at its size; holes can be punched all the same (fcntl(2)).
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// From then on nobody can change its size: a process that maps it would die of a page that is gone.
fn seal(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: no pointers.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What a memory object is to hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemfdFor {
    /// Data, of a size that can be sealed.
    Data,
    /// Code.
    Code,
    /// Code that can be sealed.
    SealedCode,
}

/// `memfd_create` in the target; [`Held::close_opened`] closes it. For code, asks for the execute permission
/// that the sysctl `vm.memfd_noexec` would take away; kernels before 6.3 don't know that flag.
pub(crate) fn memfd(held: &mut Held, name: &CStr, what: MemfdFor) -> Result<u64, Error> {
    let data = held.scratch()?.data();
    held.write(data, name.to_bytes_with_nul())?;
    let sealing = match what {
        MemfdFor::Data | MemfdFor::SealedCode => libc::MFD_ALLOW_SEALING,
        MemfdFor::Code => 0,
    };
    let flags = u64::from(libc::MFD_CLOEXEC | sealing);
    let create = |held: &mut Held, flags| {
        let call = ("memfd_create", libc::SYS_memfd_create);
        let number = held.open_descriptor(call.0, call.1, &[data.0, flags])?;
        let noted = held.note_object(number, name);
        if noted.is_err() {
            held.close_opened()?;
        }
        noted.map(|()| number)
    };
    if what != MemfdFor::Data {
        let flags = flags | u64::from(libc::MFD_EXEC);
        let number = create(held, flags);
        if !matches!(number, Err(Error::RemoteSyscall { .. })) {
            return number;
        }
    }
    create(held, flags)
}

/// Closes a descriptor of the target.
pub fn close_descriptor(held: &mut Held, number: u64) -> Result<(), Error> {
    held.checked_syscall("close", libc::SYS_close, &[number])
        .map(drop)
}
