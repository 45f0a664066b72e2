//! Memory shared between the target and this process.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use crate::{Error, Held, duplicate_descriptor};
use memhook_process::{RemoteAddress, open_descriptor};

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
    let number = memfd(held, name, MemfdFor::Data)?;
    let region = map_and_open(held, number, bytes, over);
    let closed = held.close_opened();
    let region = region?;
    closed?;
    Ok(region)
}

fn map_and_open(
    held: &mut Held,
    number: u64,
    bytes: u64,
    over: Option<RemoteAddress>,
) -> Result<Region, Error> {
    held.checked_syscall("ftruncate", libc::SYS_ftruncate, &[number, bytes])?;
    // From now on nobody can change its size: a process that maps it would die of a page that is gone.
    let seal = [number, libc::F_ADD_SEALS as u64, SEALS as u64];
    held.checked_syscall("fcntl(F_ADD_SEALS)", libc::SYS_fcntl, &seal)?;
    let fd = open_here(held, number)?;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let fixed = over.map_or(0, |_| libc::MAP_FIXED);
    let flags = (libc::MAP_SHARED | libc::MAP_NORESERVE | fixed) as u64;
    let at = over.unwrap_or_default().0;
    let map = [at, bytes, protection, flags, number, 0];
    let address = held.checked_syscall("mmap", libc::SYS_mmap, &map)?;
    // Nothing depends on this. It keeps the region out of core dumps, and a page that is touched from taking two
    // megabytes where huge pages are on for shared memory.
    for advice in [libc::MADV_DONTDUMP, libc::MADV_NOHUGEPAGE] {
        held.syscall(libc::SYS_madvise, [address, bytes, advice as u64, 0, 0, 0])?;
    }
    let address = RemoteAddress(address);
    Ok(Region { fd, address })
}

/// Whether processes that the target forks get a region, too. They could write it, whatever rights they have given up.
pub fn set_inherited(
    held: &mut Held,
    address: RemoteAddress,
    bytes: u64,
    is_inherited: bool,
) -> Result<(), Error> {
    let advice = if is_inherited {
        libc::MADV_DOFORK
    } else {
        libc::MADV_DONTFORK
    };
    let advise = [address.0, bytes, advice as u64];
    held.checked_syscall("madvise", libc::SYS_madvise, &advise)
        .map(drop)
}

/// Moves a region to the place of another one of the same size, in one step.
pub fn move_region(
    held: &mut Held,
    from: RemoteAddress,
    bytes: u64,
    to: RemoteAddress,
) -> Result<(), Error> {
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    held.checked_syscall(
        "mremap",
        libc::SYS_mremap,
        &[from.0, bytes, bytes, flags, to.0],
    )
    .map(drop)
}

/// Unmaps a region that no code in the target uses.
pub fn unmap_region(held: &mut Held, address: RemoteAddress, bytes: u64) -> Result<(), Error> {
    held.checked_syscall("munmap", libc::SYS_munmap, &[address.0, bytes])
        .map(drop)
}

/// These keep the region at its size; holes can be punched all the same (fcntl(2)).
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

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
        held.open_descriptor("memfd_create", libc::SYS_memfd_create, &[data.0, flags])
    };
    if what != MemfdFor::Data {
        let flags = flags | u64::from(libc::MFD_EXEC);
        let number = create(held, flags);
        if number.is_ok() {
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

/// Opens the target's descriptor here: through /proc, else by pidfd_getfd(2).
pub(crate) fn open_here(held: &Held, number: u64) -> Result<OwnedFd, Error> {
    held.check_opened()?;
    match open_descriptor(held.pid, number) {
        Ok(file) => Ok(file.into()),
        Err(memhook_process::Error::Proc { path, cause }) => {
            duplicate_descriptor(held.pid, number).map_err(|_| Error::File { path, cause })
        }
    }
}
