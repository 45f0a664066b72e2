//! Mapping a shared object into the target without its loader.
//!
//! A loader is needed to bind symbols and to allocate thread-local storage. An object that uses neither can be laid out
//! from outside: only its load bias must be added to the words that contain addresses. That works where `dlopen` does
//! not: if there is no file system to open files in, no loader, or no thread that may be made to call it.
//!
//! The contents come from a memory object. So the object has the same name in /proc/PID/maps as an object that the
//! loader has loaded, and no page is ever both writable and executable, not even at different times. The code becomes
//! executable last. A copy without executable pages is therefore the work of an attacher that was killed, and no thread
//! has ever executed it.

use std::ffi::CStr;
use std::ops::Range;

use super::load;
use crate::descriptor::{resize, undisturbed};
use crate::{Error, Held, region};
use memhook_process::{MAPPED_MARK, RemoteAddress};

/// Shared object as laid out in memory. All offsets are whole pages from its first byte.
pub struct ObjectImage<'a> {
    /// Name in /proc.
    pub name: &'a CStr,
    /// Size in bytes.
    pub bytes: u64,
    /// Its code.
    pub code: Range<u64>,
    /// Data that the file contains.
    pub data: Range<u64>,
    /// End of the data's last page, which must be zero although the file has contents there.
    pub cleared: Range<u64>,
    /// Data that the file does not contain. It is private and anonymous, as if a loader had mapped it.
    pub zeros: Range<u64>,
    /// Returns the bytes that come before `zeros`, for an object whose first byte is at this address.
    pub contents: &'a dyn Fn(u64) -> Vec<u8>,
}

/// Maps an object, and returns the address of its first byte. After an error, nothing stays mapped.
///
/// Unlike `dlopen`, this takes no lock of the target, so the thread may have been stopped anywhere.
pub fn map_object(held: &mut Held, object: &ObjectImage<'_>) -> Result<u64, Error> {
    undisturbed(held, |held| {
        let number = region::memfd(held, object.name, region::MemfdFor::Code)?;
        let mapped = map(held, object, number);
        let closed = held.close_opened();
        let base = mapped?;
        closed?;
        Ok(base)
    })
}

fn map(held: &mut Held, object: &ObjectImage<'_>, number: u64) -> Result<u64, Error> {
    resize(held, number, object.bytes)?;
    // The whole object is mapped in one call, so that it is contiguous, and so that the name of the memory object
    // covers the remains of a killed attacher.
    let (read, private) = (libc::PROT_READ as u64, libc::MAP_PRIVATE as u64);
    let whole = [0, object.bytes, read, private, number, 0];
    let base = held.checked_syscall("mmap", libc::SYS_mmap, &whole)?;
    held.check_mapped(base, object.bytes)?;
    let completed = complete(held, object, number, base);
    if completed.is_err() {
        held.syscall(libc::SYS_munmap, [base, object.bytes, 0, 0, 0, 0])?;
    }
    completed.map(|()| base)
}

fn complete(
    held: &mut Held,
    object: &ObjectImage<'_>,
    number: u64,
    base: u64,
) -> Result<(), Error> {
    // The pages are still untouched, so a private mapping shows the data that is written now.
    let mut contents = (object.contents)(base);
    let (place, mark) = MAPPED_MARK;
    if let Some(byte) = contents.get_mut(place) {
        *byte = mark;
    }
    load::fill(held, &contents, number)?;
    let read_write = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let read_execute = (libc::PROT_READ | libc::PROT_EXEC) as u64;
    let private = (libc::MAP_PRIVATE | libc::MAP_FIXED) as u64;
    let anonymous = private | libc::MAP_ANONYMOUS as u64;
    for (part, protection, flags) in [
        (&object.data, read_write, private),
        (&object.zeros, read_write, anonymous),
        (&object.code, read_execute, private),
    ] {
        if part.is_empty() {
            continue;
        }
        if protection == read_execute && !object.cleared.is_empty() {
            let zeros = vec![0; (object.cleared.end - object.cleared.start) as usize];
            held.write(RemoteAddress(base + object.cleared.start), &zeros)?;
        }
        let (file, offset) = if flags == anonymous {
            (u64::MAX, 0)
        } else {
            (number, part.start)
        };
        let (at, length) = (base + part.start, part.end - part.start);
        let arguments = [at, length, protection, flags, file, offset];
        held.checked_syscall("mmap", libc::SYS_mmap, &arguments)?;
    }
    Ok(())
}

/// Unmaps what is left of an object whose attacher was killed while mapping it.
pub fn unmap_unfinished(held: &mut Held, place: Range<u64>) -> Result<(), Error> {
    region::unmap_region(held, RemoteAddress(place.start), place.end - place.start)
}
