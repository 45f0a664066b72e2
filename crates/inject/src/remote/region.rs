//! Memory shared between the target and this process.

use std::cell::Cell;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::descriptor::{open_here, resize, undisturbed};
use crate::{Error, Held};
use memhook_process::{RemoteAddress, locked_bytes, proc_path};

/// Memory that the target has mapped and this process can map.
#[derive(Debug)]
pub struct Region {
    /// Our descriptor of the memory object.
    pub fd: OwnedFd,
    /// Address in the target.
    pub address: RemoteAddress,
    /// True if another thread of the target closed the descriptor meanwhile, so that several attempts were necessary.
    pub was_disturbed: bool,
}

/// Creates a shared memory object of `bytes` bytes and this name in the target, maps it there (shared, without
/// reserving swap, excluded from core dumps, far from all other mappings) and opens it here. No descriptor stays in the
/// target, and no page becomes resident, even if the target locks all its mappings. Forked children do not inherit the
/// mapping ([`set_inherited`]).
pub fn create_region(held: &mut Held, name: &CStr, bytes: u64) -> Result<Region, Error> {
    let attempts = Cell::new(0);
    let mut region = undisturbed(held, |held| {
        attempts.set(attempts.get() + 1);
        let number = memfd(held, name, MemfdFor::Data)?;
        let region = map_and_open(held, number, bytes);
        let closed = held.close_opened();
        let region = region?;
        closed?;
        Ok(region)
    })?;
    region.was_disturbed = attempts.get() > 1;
    Ok(region)
}

fn map_and_open(held: &mut Held, number: u64, bytes: u64) -> Result<Region, Error> {
    resize(held, number, bytes)?;
    let fd: OwnedFd = open_here(held, number)?.into();
    seal(&fd).map_err(|cause| Error::File {
        path: format!("/proc/{}/fd/{number}", held.pid),
        cause,
    })?;
    // The scratch memory must be mapped before this. Otherwise it would be locked too.
    let protection = read_write(held.pid);
    let address = if locked_bytes(held.pid) == Some(0) {
        map_with_room(held, bytes, bytes, protection, number)?
    } else {
        map_unlocked(held, bytes, protection, number)?
    };
    if let Err(refused) = set_inherited(held, RemoteAddress(address), bytes, false) {
        held.syscall(libc::SYS_munmap, [address, bytes, 0, 0, 0, 0])?;
        return Err(refused);
    }
    held.check_mapped(address, bytes)?;
    // Both requests are optional. The first keeps the region out of core dumps. The second prevents a touched page from
    // occupying two megabytes if huge pages are enabled for shared memory.
    for advice in [libc::MADV_DONTDUMP, libc::MADV_NOHUGEPAGE] {
        held.syscall(libc::SYS_madvise, [address, bytes, advice as u64, 0, 0, 0])?;
    }
    let address = RemoteAddress(address);
    Ok(Region {
        fd,
        address,
        was_disturbed: false,
    })
}

pub(crate) const SHARED: u64 = (libc::MAP_SHARED | libc::MAP_NORESERVE) as u64;
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Returns the protection for readable, writable and not executable memory in a process: with READ_IMPLIES_EXEC
/// (personality(2)), all readable memory is executable. On x86-64, a writable page is always readable (`protection_map`
/// in arch/x86/mm/pgprot.c).
fn read_write(pid: i32) -> u64 {
    let read = match read_implies_exec(pid) {
        true => 0,
        false => libc::PROT_READ,
    };
    (read | libc::PROT_WRITE) as u64
}

fn read_implies_exec(pid: i32) -> bool {
    let text = memhook_process::proc_text(proc_path(pid, "personality")).unwrap_or_default();
    let personality = u64::from_str_radix(text.trim(), 16).unwrap_or_default();
    personality & libc::READ_IMPLIES_EXEC as u64 != 0
}

/// Maps the first bytes of the object at a place with `room` free bytes, away from other mappings. Next to the modules,
/// it would take up space within reach of jumps (probes). Next to other mappings, it would take up their room to grow.
fn map_with_room(
    held: &mut Held,
    bytes: u64,
    room: u64,
    protection: u64,
    number: u64,
) -> Result<u64, Error> {
    if let Some(place) = held.work.place.for_memory(room) {
        // Before Linux 4.17 the address is only a hint, which is sufficient.
        let flags = SHARED | libc::MAP_FIXED_NOREPLACE as u64;
        let there = [place, bytes, protection, flags, number, 0];
        match held.checked_syscall("mmap", libc::SYS_mmap, &there) {
            Err(Error::RemoteSyscall { cause, .. })
                if cause.raw_os_error() == Some(libc::EEXIST) => {}
            mapped => return mapped,
        }
    }
    let anywhere = [0, bytes, protection, SHARED, number, 0];
    held.checked_syscall("mmap", libc::SYS_mmap, &anywhere)
}

/// Maps the object in a process that may lock all its mappings (mlockall(2) with MCL_FUTURE). Such memory becomes
/// resident immediately and completely, and counts towards a limit. So one inaccessible page is mapped and unlocked.
/// The memory that it grows into is then not locked (mremap(2)), and is made accessible after that. The program's own
/// mappings are not affected.
fn map_unlocked(held: &mut Held, bytes: u64, protection: u64, number: u64) -> Result<u64, Error> {
    let none = libc::PROT_NONE as u64;
    let address = map_with_room(held, PAGE_BYTES, bytes, none, number)?;
    let mut mapped = PAGE_BYTES;
    let grown = grow_unlocked(held, address, bytes, protection, &mut mapped);
    if grown.is_err() {
        held.syscall(libc::SYS_munmap, [address, mapped, 0, 0, 0, 0])?;
    }
    grown.map(|()| address)
}

fn grow_unlocked(
    held: &mut Held,
    address: u64,
    bytes: u64,
    protection: u64,
    mapped: &mut u64,
) -> Result<(), Error> {
    let page = [address, PAGE_BYTES, bytes, 0];
    held.checked_syscall("munlock", libc::SYS_munlock, &page[..2])?;
    held.checked_syscall("mremap", libc::SYS_mremap, &page)?;
    *mapped = bytes;
    let whole = [address, bytes, protection];
    held.checked_syscall("mprotect", libc::SYS_mprotect, &whole)?;
    Ok(())
}

/// Sets whether processes that the target forks inherit a region. They could write to it, even if they have dropped
/// privileges.
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

/// Moves a region to the address of another region of the same size in one step, so that the address always has memory.
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

/// Moves a region of two parts to the address of another region of the same size: first the guide, then the report.
/// Between the two moves, a thread inside a traced call finds the guide of another attach, and does not record.
pub fn move_guided_region(
    held: &mut Held,
    from: RemoteAddress,
    guide_bytes: u64,
    bytes: u64,
    to: RemoteAddress,
) -> Result<(), Error> {
    move_region(held, from, guide_bytes, to)?;
    move_region(
        held,
        from + guide_bytes,
        bytes - guide_bytes,
        to + guide_bytes,
    )
}

/// Seals that fix the size of the region. Holes can be punched nevertheless (fcntl(2)).
pub(crate) const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Seals the size, because a process that maps the object would die if a page disappeared.
fn seal(fd: &OwnedFd) -> io::Result<()> {
    add_seals(fd, SEALS)
}

pub(crate) fn add_seals(fd: &OwnedFd, seals: libc::c_int) -> io::Result<()> {
    // SAFETY: no pointers.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Purpose of a memory object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemfdFor {
    /// Data whose size can be sealed.
    Data,
    /// Code.
    Code,
    /// Code that can be sealed.
    SealedCode,
}

/// Calls `memfd_create` in the target; [`Held::close_opened`] closes the descriptor. For code, requests the execute
/// permission that the sysctl `vm.memfd_noexec` would remove. Kernels before 6.3 do not know that flag.
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

/// Closes a descriptor of the target. It is not an error if it is already closed, for example by a thread that resumed
/// its own work after its attacher was killed.
pub(crate) fn close_descriptor(held: &mut Held, number: u64) -> Result<(), Error> {
    match held.checked_syscall("close", libc::SYS_close, &[number]) {
        Err(Error::RemoteSyscall { cause, .. }) if cause.raw_os_error() == Some(libc::EBADF) => {
            Ok(())
        }
        closed => closed.map(drop),
    }
}
