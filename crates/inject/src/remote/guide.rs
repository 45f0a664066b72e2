//! Region with two parts: the guide, which only this process can write, and the report, which both the target and this
//! process write. The guide holds all addresses through which the target calls and reads, because forked children of
//! the target may be less privileged than the target.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::{fs, io};

use memmap2::MmapRaw;
use tracing::debug;

use crate::descriptor::{open_here, resize, undisturbed};
use crate::region::{
    MemfdFor, PAGE_BYTES, Region, SEALS, SHARED, add_seals, create_region, memfd, set_inherited,
    unmap_region,
};
use crate::{Error, Held, Others};
use memhook_process::{RemoteAddress, locked_bytes};

/// Part of a region that only this process can write.
#[derive(Debug)]
pub enum Guide {
    /// The guide is mapped here. The target's mapping of it can never be made writable, neither by the target nor by
    /// its children.
    Mapped(MmapRaw),
    /// The guide is private memory of the target, written through /proc/PID/mem, because the kernel (before 5.1) has no
    /// seal for a shared guide.
    Private,
}

/// Region with a guide in front.
#[derive(Debug)]
pub struct GuidedRegion {
    /// The whole region. The part of its memory object that lies under the guide is not mapped.
    pub region: Region,
    /// Guide at the beginning of the region.
    pub guide: Guide,
}

/// Seal after which the object can no longer be mapped for writing, nor written through a descriptor. Existing writable
/// mappings remain writable (fcntl(2), since Linux 5.1).
const F_SEAL_FUTURE_WRITE: libc::c_int = 0x10;

/// Number of retries after a fork at the wrong moment. After that, all other threads are stopped for the operation.
const TRIES: u32 = 4;

static WITHOUT_SEALS: AtomicBool = AtomicBool::new(false);

/// Makes this process behave as if the kernel had no such seal, for tests.
pub fn without_seals() {
    WITHOUT_SEALS.store(true, Relaxed);
}

/// Like [`create_region`], preceded by a guide of `guide_bytes` bytes with this name. `bytes` includes both parts.
pub fn create_guided_region(
    held: &mut Held,
    names: [&CStr; 2],
    guide_bytes: u64,
    bytes: u64,
) -> Result<GuidedRegion, Error> {
    let [guide_name, name] = names;
    let region = create_region(held, name, bytes)?;
    let at = region.address;
    match guide_at(held, guide_name, at, guide_bytes) {
        Ok((guide, was_disturbed)) => {
            let was_disturbed = was_disturbed || region.was_disturbed;
            let region = Region {
                was_disturbed,
                ..region
            };
            Ok(GuidedRegion { region, guide })
        }
        Err(error) => {
            let _ = unmap_region(held, at, bytes);
            Err(error)
        }
    }
}

/// Maps a guide over existing memory.
fn guide_at(
    held: &mut Held,
    name: &CStr,
    at: RemoteAddress,
    bytes: u64,
) -> Result<(Guide, bool), Error> {
    let mut attempts = 0u32;
    let mut are_stopped = false;
    let guide = loop {
        attempts += 1;
        // A child that is forked while the target has the descriptor could map the object before it is sealed.
        let stands_still = held.others_stand_still();
        let newest = newest_process();
        let sealed = undisturbed(held, |held| sealed_guide(held, name, at, bytes))?;
        let is_alone = stands_still && held.others_stand_still();
        let is_private = matches!(sealed.guide, Guide::Private);
        if is_private || is_alone || (newest.is_some() && newest == sealed.newest) {
            break sealed.guide;
        }
        debug!(pid = held.pid, "somebody was forked while a guide was made");
        if attempts >= TRIES {
            let others = Others::of(held.pid);
            are_stopped = held.stop_others(&others)?;
            if !are_stopped || attempts >= 2 * TRIES {
                break Guide::Private;
            }
        }
    };
    if are_stopped {
        held.let_others_go();
    }
    if let Guide::Private = guide {
        map_zeros(held, at, bytes)?;
    }
    set_inherited(held, at, bytes, false)?;
    for advice in [libc::MADV_DONTDUMP, libc::MADV_NOHUGEPAGE] {
        held.syscall(libc::SYS_madvise, [at.0, bytes, advice as u64, 0, 0, 0])?;
    }
    Ok((guide, attempts > 1))
}

/// A guide, and the newest process at the time of sealing.
struct Sealed {
    guide: Guide,
    newest: Option<u64>,
}

fn sealed_guide(
    held: &mut Held,
    name: &CStr,
    at: RemoteAddress,
    bytes: u64,
) -> Result<Sealed, Error> {
    if WITHOUT_SEALS.load(Relaxed) {
        let (guide, newest) = (Guide::Private, None);
        return Ok(Sealed { guide, newest });
    }
    let number = memfd(held, name, MemfdFor::Data)?;
    let sealed = seal_and_map(held, number, at, bytes);
    let closed = held.close_opened();
    let sealed = sealed?;
    closed?;
    Ok(sealed)
}

fn seal_and_map(
    held: &mut Held,
    number: u64,
    at: RemoteAddress,
    bytes: u64,
) -> Result<Sealed, Error> {
    resize(held, number, bytes)?;
    let fd: OwnedFd = open_here(held, number)?.into();
    let failed = |cause| Error::File {
        path: format!("/proc/{}/fd/{number}", held.pid),
        cause,
    };
    let map = MmapRaw::map_raw(fd.as_raw_fd()).map_err(failed)?;
    if map.len() as u64 != bytes {
        return Err(Error::DescriptorLost { pid: held.pid });
    }
    // A touched page must not become two megabytes. SAFETY: address and length are those of the mapping, whose contents
    // stay unchanged.
    unsafe { libc::madvise(map.as_mut_ptr().cast(), map.len(), libc::MADV_NOHUGEPAGE) };
    match add_seals(&fd, SEALS | F_SEAL_FUTURE_WRITE) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            let (guide, newest) = (Guide::Private, None);
            return Ok(Sealed { guide, newest });
        }
        Err(error) => return Err(failed(error)),
    }
    let newest = newest_process();
    map_read_only(held, at, bytes, number)?;
    held.check_mapped(at.0, bytes)?;
    let guide = Guide::Mapped(map);
    Ok(Sealed { guide, newest })
}

/// Maps the object over existing memory. If the process locks all its mappings, this uses the same trick as for a
/// region: a mapping that grows from an inaccessible page is not locked.
fn map_read_only(held: &mut Held, at: RemoteAddress, bytes: u64, number: u64) -> Result<(), Error> {
    let (fixed, read) = (SHARED | libc::MAP_FIXED as u64, libc::PROT_READ as u64);
    if locked_bytes(held.pid) == Some(0) {
        let there = [at.0, bytes, read, fixed, number, 0];
        return held
            .checked_syscall("mmap", libc::SYS_mmap, &there)
            .map(drop);
    }
    let page = [0, PAGE_BYTES, libc::PROT_NONE as u64, SHARED, number, 0];
    grow_into(held, &page, at, bytes)
}

/// Replaces memory with memory that reads as zeros and is not resident.
fn map_zeros(held: &mut Held, at: RemoteAddress, bytes: u64) -> Result<(), Error> {
    let private = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
    let none = u64::MAX;
    if locked_bytes(held.pid) == Some(0) {
        let fixed = private | libc::MAP_FIXED as u64;
        let there = [at.0, bytes, libc::PROT_READ as u64, fixed, none, 0];
        return held
            .checked_syscall("mmap", libc::SYS_mmap, &there)
            .map(drop);
    }
    let page = [0, PAGE_BYTES, libc::PROT_NONE as u64, private, none, 0];
    grow_into(held, &page, at, bytes)
}

/// Maps a page at a free address, grows it to this size as readable, unlocked memory, and moves the result over
/// existing memory.
fn grow_into(held: &mut Held, page: &[u64], at: RemoteAddress, bytes: u64) -> Result<(), Error> {
    let somewhere = held.checked_syscall("mmap", libc::SYS_mmap, page)?;
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    let grown = held
        .checked_syscall("munlock", libc::SYS_munlock, &[somewhere, PAGE_BYTES])
        .and_then(|_| {
            let moved = [somewhere, PAGE_BYTES, bytes, flags, at.0];
            held.checked_syscall("mremap", libc::SYS_mremap, &moved)
        });
    if grown.is_err() {
        held.syscall(libc::SYS_munmap, [somewhere, PAGE_BYTES, 0, 0, 0, 0])?;
    }
    grown?;
    let readable = [at.0, bytes, libc::PROT_READ as u64];
    held.checked_syscall("mprotect", libc::SYS_mprotect, &readable)
        .map(drop)
}

/// Frees the memory of an unused guide, or of a part of it. A thread that still reads it gets zeros.
pub fn empty_guide(held: &mut Held, at: RemoteAddress, bytes: u64) -> Result<(), Error> {
    map_zeros(held, at, bytes)?;
    set_inherited(held, at, bytes, true)
}

/// Returns the id of the newest process or thread in our pid namespace, which includes those of all targets
/// (proc_loadavg(5)).
fn newest_process() -> Option<u64> {
    let text: io::Result<String> = fs::read_to_string("/proc/loadavg");
    text.ok()?.split_whitespace().next_back()?.parse().ok()
}
