//! The mapping, and the only places that touch it.

use crate::Error;
use memmap2::MmapRaw;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

/// A shared mapping whose words are only ever accessed as atomics.
pub(crate) struct Memory {
    map: MmapRaw,
}

impl Memory {
    pub(crate) fn map(fd: impl AsFd) -> Result<Self, Error> {
        let raw = fd.as_fd().as_raw_fd();
        // Best effort: once the file cannot shrink, no process can take pages away under us, which
        // would be SIGBUS (mmap(2)). Refused if the memfd was made without MFD_ALLOW_SEALING.
        // SAFETY: fcntl with an open descriptor and an integer argument touches no memory.
        unsafe { libc::fcntl(raw, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
        let map = MmapRaw::map_raw(raw).map_err(Error::Map)?;
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
        // SAFETY: address and length are those of the mapping. MADV_REMOVE (madvise(2)) changes the
        // contents of shared pages like a store by another process would; only atomics look at them.
        let result = unsafe {
            libc::madvise(
                self.map.as_mut_ptr().cast(),
                self.map.len(),
                libc::MADV_REMOVE,
            )
        };
        if result != 0 {
            return Err(Error::Clear(std::io::Error::last_os_error()));
        }
        Ok(())
    }

    /// Wakes every thread, in any process, that waits for the word at `offset`.
    pub(crate) fn wake_all(&self, offset: usize) {
        let word: *const AtomicU32 = self.u32(offset);
        // SAFETY: futex(2) FUTEX_WAKE does not access the word; the address identifies the queue.
        // Not FUTEX_PRIVATE: the waiters are in another process.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX) };
    }
}
