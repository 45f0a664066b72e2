//! The mapping, and all code that accesses it.

use crate::Error;
use memhook_abi::GUIDE_BYTES;
use memmap2::{MmapMut, MmapRaw};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, Ordering::Relaxed};

const PAGE: usize = 4096;

/// Seals that fix the size of a file: no process can shrink or grow it, or remove the seals (memfd_create(2),
/// fcntl(2)). Punching holes remains possible.
pub const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Creates a memfd of this size, as the target does, with the seals that an attach requires.
pub fn sealed_file(bytes: u64) -> std::io::Result<OwnedFd> {
    // SAFETY: the name is a C string; the result is a new descriptor, or -1.
    let raw = unsafe { libc::memfd_create(c"memhook-region".as_ptr(), libc::MFD_ALLOW_SEALING) };
    if raw < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: it is open, and no other code owns it.
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

/// Guide of a region: data from this process for the hook. No other process can write it.
pub enum Guide {
    /// Mapped by this process. No other process can ever map it for writing.
    Mapped(MmapRaw),
    /// Private memory of the target: the /proc/PID/mem file through which we write it, and its address (avma).
    Private(File, u64),
    /// Copy of the first part of an existing region's guide, which is no longer written to.
    Copied(Vec<u8>),
}

/// Offset in the region of a word of the tally.
macro_rules! tally {
    ($field:ident) => {
        memhook_abi::TALLY_OFFSET + std::mem::offset_of!(memhook_abi::Tally, $field)
    };
}
pub(crate) use tally;

/// A shared mapping whose words are only ever accessed as atomics.
pub(crate) struct Memory {
    map: MmapRaw,
    /// The target's guide, if the mapping is only a copy of it. Every write is then repeated there.
    private: Option<(File, AtomicU64)>,
}

impl Memory {
    /// Maps the whole file after checking its seals. A process that could shorten the file could kill this process,
    /// because missing pages raise SIGBUS (mmap(2)).
    pub(crate) fn map(fd: impl AsFd) -> Result<Self, Error> {
        let raw = fd.as_fd().as_raw_fd();
        // SAFETY: fcntl with an open descriptor touches no memory.
        let seals = unsafe { libc::fcntl(raw, libc::F_GET_SEALS) };
        if seals < 0 || seals & SEALS != SEALS {
            return Err(Error::NotSealed);
        }
        let map = MmapRaw::map_raw(raw).map_err(Error::Map)?;
        // If huge pages are enabled for shared memory, touching a page must not allocate two megabytes. Kernels without
        // huge pages refuse the call. SAFETY: address and length are those of the mapping, whose contents stay
        // unchanged.
        unsafe { libc::madvise(map.as_mut_ptr().cast(), map.len(), libc::MADV_NOHUGEPAGE) };
        Ok(Self { map, private: None })
    }

    /// Places the guide in front of the report, instead of the corresponding part of the file.
    pub(crate) fn put_guide(&mut self, guide: Guide) -> Result<(), Error> {
        let (guide, private) = match guide {
            Guide::Mapped(guide) => (guide, None),
            Guide::Private(file, address) => {
                let copy = MmapMut::map_anon(GUIDE_BYTES).map_err(Error::Map)?;
                (MmapRaw::from(copy), Some((file, AtomicU64::new(address))))
            }
            Guide::Copied(bytes) => {
                let mut copy = MmapMut::map_anon(GUIDE_BYTES).map_err(Error::Map)?;
                let known = bytes.len().min(GUIDE_BYTES);
                copy[..known].copy_from_slice(&bytes[..known]);
                (MmapRaw::from(copy), None)
            }
        };
        if guide.len() != GUIDE_BYTES || self.len() < GUIDE_BYTES {
            let bytes = guide.len() as u64;
            return Err(Error::Size { bytes });
        }
        // SAFETY: both are mappings of ours of that size, no reference into either exists, and the owner of the moved
        // mapping is forgotten, because `map` unmaps all of it.
        let moved = unsafe {
            libc::mremap(
                guide.as_mut_ptr().cast(),
                GUIDE_BYTES,
                GUIDE_BYTES,
                libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                self.map.as_mut_ptr(),
            )
        };
        if moved == libc::MAP_FAILED {
            return Err(Error::Map(std::io::Error::last_os_error()));
        }
        std::mem::forget(guide);
        self.private = private;
        Ok(())
    }

    /// Writes a word of the guide for the hook.
    pub(crate) fn tell64(&self, offset: usize, value: u64, order: Ordering) {
        self.guide64(offset).store(value, order);
        self.tell(offset, &value.to_ne_bytes());
    }

    /// Like [`Self::tell64`], for 32 bits.
    pub(crate) fn tell32(&self, offset: usize, value: u32, order: Ordering) {
        self.guide32(offset).store(value, order);
        self.tell(offset, &value.to_ne_bytes());
    }

    /// Writes bytes stored in the guide through to the hook's copy. If the process is gone, nothing needs to be
    /// written.
    fn tell(&self, offset: usize, bytes: &[u8]) {
        if let Some((file, address)) = &self.private {
            let _ = file.write_all_at(bytes, address.load(Relaxed) + offset as u64);
        }
    }

    /// Sets the address of the guide in the target (avma), if it is the target's private memory.
    pub(crate) fn guide_is_at(&self, address: u64) {
        if let Some((_, at)) = &self.private {
            at.store(address, Relaxed);
        }
    }

    /// Returns a word of the guide.
    pub(crate) fn told64(&self, offset: usize) -> u64 {
        self.guide64(offset).load(Relaxed)
    }

    /// Like [`Self::told64`], for 32 bits.
    pub(crate) fn told32(&self, offset: usize) -> u32 {
        self.guide32(offset).load(Relaxed)
    }

    /// Writes consecutive words for the hook.
    pub(crate) fn tell_u64s(&self, offset: usize, values: impl Iterator<Item = u64>) {
        let values: Vec<u64> = values.collect();
        assert!(self.is_guide(offset, values.len(), 8));
        for (i, &value) in values.iter().enumerate() {
            self.guide64(offset + i * 8).store(value, Relaxed);
        }
        self.tell_all(offset, &values, |value| value.to_ne_bytes());
    }

    /// Like [`Self::tell_u64s`], for 32 bits each.
    pub(crate) fn tell_u32s(&self, offset: usize, values: &[u32]) {
        assert!(offset.is_multiple_of(4) && self.is_guide(offset, values.len(), 4));
        // SAFETY: as in `u32`, for every word of the range; `AtomicU32` has the layout of `u32`.
        let words: &[AtomicU32] = unsafe {
            std::slice::from_raw_parts(self.map.as_ptr().add(offset).cast(), values.len())
        };
        for (word, &value) in words.iter().zip(values) {
            word.store(value, Relaxed);
        }
        self.tell_all(offset, values, |value| value.to_ne_bytes());
    }

    /// Like [`Self::tell_u64s`], for 16 bits each.
    pub(crate) fn tell_u16s(&self, offset: usize, values: &[u16]) {
        assert!(offset.is_multiple_of(2) && self.is_guide(offset, values.len(), 2));
        // SAFETY: as in `u32`, for every word of the range; `AtomicU16` has the layout of `u16`.
        let words: &[AtomicU16] = unsafe {
            std::slice::from_raw_parts(self.map.as_ptr().add(offset).cast(), values.len())
        };
        for (word, &value) in words.iter().zip(values) {
            word.store(value, Relaxed);
        }
        self.tell_all(offset, values, |value| value.to_ne_bytes());
    }

    fn tell_all<T: Copy, const N: usize>(
        &self,
        offset: usize,
        values: &[T],
        bytes: impl Fn(T) -> [u8; N],
    ) {
        if self.private.is_some() {
            let bytes: Vec<u8> = values.iter().flat_map(|&value| bytes(value)).collect();
            self.tell(offset, &bytes);
        }
    }

    fn is_guide(&self, offset: usize, count: usize, width: usize) -> bool {
        let bytes = count.checked_mul(width);
        let end = bytes.and_then(|bytes| bytes.checked_add(offset));
        end.is_some_and(|end| end <= GUIDE_BYTES)
    }

    fn guide64(&self, offset: usize) -> &AtomicU64 {
        assert!(self.is_guide(offset, 1, 8));
        self.word64(offset)
    }

    fn guide32(&self, offset: usize) -> &AtomicU32 {
        assert!(self.is_guide(offset, 1, 4));
        self.word32(offset)
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// Returns the 32-bit word of the report at `offset`.
    ///
    /// Panics if the word is out of bounds or unaligned: offsets are computed from this crate's constants and checked
    /// indices, never taken from the region.
    #[inline]
    pub(crate) fn u32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset >= GUIDE_BYTES);
        self.word32(offset)
    }

    #[inline]
    fn word32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset <= self.len().saturating_sub(4));
        // SAFETY: the mapping is page aligned, and the assertion puts an aligned word inside it. It
        // lives as long as `self`. All accesses of this process go through atomics of the same
        // width; those of the target are outside Rust's memory model, and on x86-64 aligned words
        // are read and written whole.
        unsafe { AtomicU32::from_ptr(self.map.as_mut_ptr().add(offset).cast()) }
    }

    /// Returns the 64-bit word of the report at `offset`; see [`Memory::u32`].
    #[inline]
    pub(crate) fn u64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset >= GUIDE_BYTES);
        self.word64(offset)
    }

    #[inline]
    fn word64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset <= self.len().saturating_sub(8));
        // SAFETY: as in `u32`. No word is accessed in both widths.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(offset).cast()) }
    }

    /// Returns `count` 64-bit words of the report from `offset`; see [`Memory::u32`].
    #[inline]
    pub(crate) fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        assert!(offset >= GUIDE_BYTES);
        assert!(offset.is_multiple_of(8) && self.holds(offset, count, 8));
        // SAFETY: as in `u32`, for every word of the range; `AtomicU64` has the layout of `u64`.
        unsafe {
            std::slice::from_raw_parts(self.map.as_ptr().add(offset).cast::<AtomicU64>(), count)
        }
    }

    fn holds(&self, offset: usize, count: usize, width: usize) -> bool {
        count
            .checked_mul(width)
            .and_then(|bytes| bytes.checked_add(offset))
            .is_some_and(|end| end <= self.len())
    }

    /// Frees the pages of the report. All of it then reads as zero, in every process.
    pub(crate) fn clear(&self) -> Result<(), Error> {
        self.discard(GUIDE_BYTES, self.map.len() - GUIDE_BYTES)
    }

    /// Discards whole pages of the region. The kernel does not free pages of a guide that no other process can write.
    pub(crate) fn discard(&self, offset: usize, bytes: usize) -> Result<(), Error> {
        assert!(offset >= GUIDE_BYTES);
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

    /// Allocates the missing pages of a range, charged to this process's control group. Contents are preserved.
    pub(crate) fn touch(&self, offset: usize, bytes: usize) {
        assert!(offset.is_multiple_of(PAGE) && self.holds(offset, bytes, 1));
        for page in (offset..offset + bytes).step_by(PAGE) {
            self.word64(page).fetch_or(0, Relaxed);
        }
    }

    /// Wakes every thread, in any process, that is waiting on the word at `offset`.
    pub(crate) fn wake_all(&self, offset: usize) {
        let word: *const AtomicU32 = self.word32(offset);
        // SAFETY: futex(2) FUTEX_WAKE does not access the word; the address identifies the queue.
        // Not FUTEX_PRIVATE: the waiters are in another process.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX) };
    }
}
