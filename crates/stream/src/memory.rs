//! The mapping, and the only places that touch it.

use crate::Error;
use memmap2::MmapRaw;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

const PAGE: usize = 4096;

/// What keeps a file at its size: nobody can make it shorter or longer, nor take that back
/// (memfd_create(2), fcntl(2)). Holes can be punched all the same.
pub const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Makes a memory file of this size with those seals, as the target makes one for an attach.
pub fn sealed_file(bytes: u64) -> std::io::Result<OwnedFd> {
    // SAFETY: the name is a C string; the result is a new descriptor, or -1.
    let raw = unsafe { libc::memfd_create(c"memhook-region".as_ptr(), libc::MFD_ALLOW_SEALING) };
    if raw < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: it is open, and nobody else's.
    let file = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: an open descriptor and integers.
    let made = unsafe {
        libc::ftruncate(raw, bytes as libc::off_t) == 0
            && libc::fcntl(raw, libc::F_ADD_SEALS, SEALS) == 0
    };
    if made {
        Ok(file)
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// A shared mapping whose words are only ever accessed as atomics.
pub(crate) struct Memory {
    map: MmapRaw,
}

impl Memory {
    /// Maps the whole file. Looks first: a process that could make the file shorter could end this one,
    /// because pages that are gone are SIGBUS (mmap(2)).
    pub(crate) fn map(fd: impl AsFd) -> Result<Self, Error> {
        let raw = fd.as_fd().as_raw_fd();
        // SAFETY: fcntl with an open descriptor touches no memory.
        let seals = unsafe { libc::fcntl(raw, libc::F_GET_SEALS) };
        if seals < 0 || seals & SEALS != SEALS {
            return Err(Error::NotSealed);
        }
        let map = MmapRaw::map_raw(raw).map_err(Error::Map)?;
        // A page that is touched must not become two megabytes, where huge pages are on for shared
        // memory. Kernels without them refuse.
        // SAFETY: address and length are those of the mapping, whose contents stay as they are.
        unsafe { libc::madvise(map.as_mut_ptr().cast(), map.len(), libc::MADV_NOHUGEPAGE) };
        Ok(Self { map })
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// The 32-bit word at `offset`.
    ///
    /// Panics if it lies outside or is not aligned: offsets are computed from this crate's
    /// constants and checked indices, never taken from the region.
    #[inline]
    pub(crate) fn u32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset <= self.len().saturating_sub(4));
        // SAFETY: the mapping is page aligned, and the assertion puts an aligned word inside it. It
        // lives as long as `self`. All accesses of this process go through atomics of the same
        // width; those of the target are outside Rust's memory model, and on x86-64 aligned words
        // are read and written whole.
        unsafe { AtomicU32::from_ptr(self.map.as_mut_ptr().add(offset).cast()) }
    }

    /// The 64-bit word at `offset`; see [`Memory::u32`].
    #[inline]
    pub(crate) fn u64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset <= self.len().saturating_sub(8));
        // SAFETY: as in `u32`. No word is accessed in both widths.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(offset).cast()) }
    }

    /// `count` 64-bit words from `offset`; see [`Memory::u32`].
    #[inline]
    pub(crate) fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        assert!(offset.is_multiple_of(8) && self.holds(offset, count, 8));
        // SAFETY: as in `u32`, for every word of the range; `AtomicU64` has the layout of `u64`.
        unsafe {
            std::slice::from_raw_parts(self.map.as_ptr().add(offset).cast::<AtomicU64>(), count)
        }
    }

    /// `count` 32-bit words from `offset`; see [`Memory::u32`].
    pub(crate) fn u32s(&self, offset: usize, count: usize) -> &[AtomicU32] {
        assert!(offset.is_multiple_of(4) && self.holds(offset, count, 4));
        // SAFETY: as in `u32`, for every word of the range; `AtomicU32` has the layout of `u32`.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(offset).cast(), count) }
    }

    /// `count` 16-bit words from `offset`; see [`Memory::u32`].
    pub(crate) fn u16s(&self, offset: usize, count: usize) -> &[AtomicU16] {
        assert!(offset.is_multiple_of(2) && self.holds(offset, count, 2));
        // SAFETY: as in `u32`, for every word of the range; `AtomicU16` has the layout of `u16`.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(offset).cast(), count) }
    }

    fn holds(&self, offset: usize, count: usize, width: usize) -> bool {
        count
            .checked_mul(width)
            .and_then(|bytes| bytes.checked_add(offset))
            .is_some_and(|end| end <= self.len())
    }

    /// Gives the pages back: the whole region reads as zero afterwards, in every process.
    pub(crate) fn clear(&self) -> Result<(), Error> {
        self.discard(0, self.map.len())
    }

    /// The same for a part of it: whole pages.
    pub(crate) fn discard(&self, offset: usize, bytes: usize) -> Result<(), Error> {
        assert!(offset.is_multiple_of(PAGE) && self.holds(offset, bytes, 1));
        // SAFETY: the range is inside the mapping. MADV_REMOVE (madvise(2)) changes the contents of
        // shared pages like a store by another process would; only atomics look at them.
        let result = unsafe {
            let start = self.map.as_mut_ptr().add(offset);
            libc::madvise(start.cast(), bytes, libc::MADV_REMOVE)
        };
        if result != 0 {
            return Err(Error::Clear(std::io::Error::last_os_error()));
        }
        Ok(())
    }

    /// Makes the pages of a range exist, as memory of this process's control group where they do not yet.
    /// Their contents stay.
    pub(crate) fn touch(&self, offset: usize, bytes: usize) {
        assert!(offset.is_multiple_of(PAGE) && self.holds(offset, bytes, 1));
        for page in (offset..offset + bytes).step_by(PAGE) {
            self.u64(page).fetch_or(0, Relaxed);
        }
    }

    /// Wakes every thread, in any process, that waits for the word at `offset`.
    pub(crate) fn wake_all(&self, offset: usize) {
        let word: *const AtomicU32 = self.u32(offset);
        // SAFETY: futex(2) FUTEX_WAKE does not access the word; the address identifies the queue.
        // Not FUTEX_PRIVATE: the waiters are in another process.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX) };
    }
}
