//! A region of two parts: in front of what the target and this process write, the guide, which only this process can
//! write. Processes that the target forks may have fewer rights than it, and what it calls and reads through is told there.

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

/// The part of a region that only this process can write.
#[derive(Debug)]
pub enum Guide {
    /// Mapped here; the target has mapped it so that neither it nor its children can ever write it.
    Mapped(MmapRaw),
    /// Private memory of the target's, which is written through /proc/PID/mem: the kernel has no seal for the other way
    /// (before 5.1).
    Private,
}

/// A region with a guide in front.
#[derive(Debug)]
pub struct GuidedRegion {
    /// All of it. What its memory object has in the place of the guide is not mapped.
    pub region: Region,
    /// Its beginning.
    pub guide: Guide,
}

/// Nobody can map it to write to it from then on, nor write to it by a descriptor, but for who has mapped it so before
/// (fcntl(2), since Linux 5.1).
const F_SEAL_FUTURE_WRITE: libc::c_int = 0x10;

/// Number of further attempts where somebody forks in the wrong moment, before all other threads are stopped for it.
const TRIES: u32 = 4;

static WITHOUT_SEALS: AtomicBool = AtomicBool::new(false);

/// Does from now on as if the kernel had no such seal. For tests of that.
pub fn without_seals() {
    WITHOUT_SEALS.store(true, Relaxed);
}

/// As [`create_region`], with a guide of `guide_bytes` bytes of this name in front; `bytes` are those of both.
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

/// Maps a guide in the place of what is there.
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
        // A child that is forked while the target has the descriptor could map it before it is sealed.
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

/// A guide, and the newest process when it had been sealed.
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
    // A page that is touched must not become two megabytes.
    // SAFETY: address and length are those of the mapping, whose contents stay as they are.
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

/// Maps the object over what is there. In a process that locks all that it maps, as a region is mapped: what a page that
/// nobody can touch grows into is not locked.
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

/// Puts memory that reads as zeros, and takes nothing, in the place of what is there.
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

/// Maps a page somewhere, and has it take the place of what is there, grown to so many bytes, readable and not locked.
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

/// Gives the memory of a guide back that is not used any more, or of a part of it: whoever still reads it finds zeros.
pub fn empty_guide(held: &mut Held, at: RemoteAddress, bytes: u64) -> Result<(), Error> {
    map_zeros(held, at, bytes)?;
    set_inherited(held, at, bytes, true)
}

/// The number of the process or thread that was made last, as our pid namespace counts them, which those of all targets
/// are in or below (proc_loadavg(5)).
fn newest_process() -> Option<u64> {
    let text: io::Result<String> = fs::read_to_string("/proc/loadavg");
    text.ok()?.split_whitespace().next_back()?.parse().ok()
}
