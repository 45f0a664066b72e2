//! Hardware watchpoints on words of another thread's memory: `PERF_TYPE_BREAKPOINT` of perf_event_open(2).
//!
//! A watchpoint fires at most once (`PERF_EVENT_IOC_REFRESH` with 1 disables it after its first overflow), so a word in
//! constant use costs the program only one trap. The kernel removes the watchpoint when its descriptor is closed, even
//! if we are killed. Forked processes do not inherit it, and an execve removes it (`remove_on_exec`, Linux 5.13).

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// `struct perf_event_attr` of `<linux/perf_event.h>`, up to PERF_ATTR_SIZE_VER5.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    breakpoint_address: u64,
    breakpoint_length: u64,
    branch_sample_type: u64,
    sample_registers: u64,
    sample_stack: u32,
    clock: i32,
    sample_registers_at_interrupt: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}

const TYPE_SOFTWARE: u32 = 1;
const TYPE_BREAKPOINT: u32 = 5;
/// `PERF_COUNT_SW_DUMMY`: counts nothing, and has a ring that other events can use.
const SOFTWARE_DUMMY: u64 = 9;
/// `HW_BREAKPOINT_RW`: x86 has no watchpoint for reads alone.
const BREAKPOINT_READ_WRITE: u32 = 3;
/// `HW_BREAKPOINT_W`.
const BREAKPOINT_WRITE: u32 = 2;
const WORD_BYTES: u64 = 8;

const FLAG_DISABLED: u64 = 1;
const FLAG_EXCLUDE_KERNEL: u64 = 1 << 5;
const FLAG_USE_CLOCK: u64 = 1 << 25;
const FLAG_REMOVE_ON_EXEC: u64 = 1 << 36;

/// `PERF_SAMPLE_IP | TID | TIME | ADDR | REGS_USER | STACK_USER`.
const SAMPLE_TYPE: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 12 | 1 << 13;
/// `PERF_REG_X86_BP`, `SP` and `IP` (arch/x86/include/uapi/asm/perf_regs.h).
const REGISTERS: u64 = 1 << 6 | 1 << 7 | 1 << 8;
/// Bytes of the stack that are copied at each hit, enough for the innermost frames.
const STACK_BYTES: u32 = 4096;
const RECORD_SAMPLE: u32 = 9;
/// `PERF_RECORD_MISC_CPUMODE_MASK` and `PERF_RECORD_MISC_KERNEL`.
const MODE_MASK: u16 = 7;
const MODE_KERNEL: u16 = 1;

const IOC_REFRESH: libc::c_ulong = 0x2402;
const IOC_SET_OUTPUT: libc::c_ulong = 0x2405;

const PAGE_BYTES: usize = 4096;
/// Data pages of a ring: a power of two, with room for the hits of four watchpoints.
const RING_PAGES: usize = 8;
/// Offsets of `data_head` and `data_tail` in `struct perf_event_mmap_page`.
const HEAD_OFFSET: usize = 1024;
const TAIL_OFFSET: usize = 1032;

fn open(attributes: &Attributes, tid: i32) -> io::Result<OwnedFd> {
    const CLOSE_ON_EXEC: libc::c_ulong = 8;
    // SAFETY: the kernel reads one perf_event_attr of the size that it names, live for the call.
    let number = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const *attributes,
            tid,
            -1,
            -1,
            CLOSE_ON_EXEC,
        )
    };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us; no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number as i32) })
}

/// Returns the common attributes, so that a watchpoint and the event whose ring it writes to use the same record
/// format.
fn common(with_kernel: bool) -> Attributes {
    Attributes {
        size: size_of::<Attributes>() as u32,
        sample_period: 1,
        sample_type: SAMPLE_TYPE,
        flags: FLAG_DISABLED
            | FLAG_USE_CLOCK
            | FLAG_REMOVE_ON_EXEC
            | if with_kernel { 0 } else { FLAG_EXCLUDE_KERNEL },
        wakeup_events: 1,
        sample_registers: REGISTERS,
        sample_stack: STACK_BYTES,
        clock: libc::CLOCK_MONOTONIC,
        ..Attributes::default()
    }
}

/// An access of a thread to a watched word.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The thread.
    pub tid: i32,
    /// CLOCK_MONOTONIC, nanoseconds.
    pub time_ns: u64,
    /// The watched word.
    pub address: u64,
    /// True if the kernel made the access on the thread's behalf.
    pub by_kernel: bool,
    /// Program counter, stack pointer and rbp of the thread in user space; zeros if the kernel did not report them.
    pub registers: (u64, u64, u64),
    /// Memory starting at the stack pointer.
    pub stack: Vec<u8>,
}

impl Access {
    /// Returns the word at an address of the copied part of the stack.
    pub fn stack_word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.registers.1)?).ok()?;
        let bytes = self.stack.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

/// Ring for the recorded accesses of one thread.
pub struct AccessRing {
    event: OwnedFd,
    pages: NonNull<u8>,
    tid: i32,
}

// SAFETY: this value owns the mapping, shares it only with the kernel, and the mapping can be used and unmapped by any
// thread; `take` needs exclusive access.
unsafe impl Send for AccessRing {}

impl AccessRing {
    const BYTES: usize = (1 + RING_PAGES) * PAGE_BYTES;

    /// Opens a ring. Fails if the limit of locked memory is reached (perf_event_mlock_kb), or if the thread may not be
    /// observed.
    pub fn open(tid: i32, with_kernel: bool) -> io::Result<AccessRing> {
        let attributes = Attributes {
            kind: TYPE_SOFTWARE,
            config: SOFTWARE_DUMMY,
            ..common(with_kernel)
        };
        let event = open(&attributes, tid)?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let pages = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                Self::BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        if pages == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let pages = NonNull::new(pages.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(AccessRing { event, pages, tid })
    }

    /// The thread.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    fn index(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: both offsets are in the first page of the mapping, which lives as long as `self`, and are multiples
        // of eight; the kernel also writes the word as a whole.
        unsafe { AtomicU64::from_ptr(self.pages.as_ptr().add(offset).cast()) }
    }

    /// Appends the accesses that were recorded since the last call.
    pub fn take(&mut self, found: &mut Vec<Access>) {
        const DATA_BYTES: usize = RING_PAGES * PAGE_BYTES;
        let head = self.index(HEAD_OFFSET).load(Ordering::Acquire);
        let tail = self.index(TAIL_OFFSET).load(Ordering::Relaxed);
        let length = (head.wrapping_sub(tail) as usize).min(DATA_BYTES);
        let mut bytes = vec![0u8; length];
        for (i, byte) in bytes.iter_mut().enumerate() {
            let at = (tail as usize).wrapping_add(i) % DATA_BYTES;
            // SAFETY: the range is below the end of the mapping, and the kernel does not write between tail and head.
            *byte = unsafe { self.pages.as_ptr().add(PAGE_BYTES + at).read_volatile() };
        }
        self.index(TAIL_OFFSET).store(head, Ordering::Release);
        let mut rest = bytes.as_slice();
        while let Some((record, more)) = split_record(rest) {
            found.extend(parse(record));
            rest = more;
        }
    }
}

impl Drop for AccessRing {
    fn drop(&mut self) {
        // SAFETY: `open` has mapped it with this size, and no other code has the address.
        unsafe { libc::munmap(self.pages.as_ptr().cast(), Self::BYTES) };
    }
}

/// Returns the first record and the rest. The record's size is in its `struct perf_event_header`.
fn split_record(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let size = u16::from_le_bytes(bytes.get(6..8)?.try_into().ok()?) as usize;
    (size >= 8).then(|| bytes.split_at_checked(size)).flatten()
}

/// Parses a sample: ip, pid and tid, time, address, registers, stack.
fn parse(record: &[u8]) -> Option<Access> {
    let word = |at: usize| {
        let bytes = record.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    let header = word(0)?;
    if header as u32 != RECORD_SAMPLE {
        return None;
    }
    let mut access = Access {
        by_kernel: (header >> 32) as u16 & MODE_MASK == MODE_KERNEL,
        tid: (word(16)? >> 32) as i32,
        time_ns: word(24)?,
        address: word(32)?,
        ..Access::default()
    };
    // No registers follow if the thread has none in user space (PERF_SAMPLE_REGS_ABI_NONE).
    let mut at = 48;
    if word(40)? != 0 {
        let (rbp, rsp, rip) = (word(48)?, word(56)?, word(64)?);
        access.registers = (rip, rsp, rbp);
        at = 72;
    }
    let size = word(at)? as usize;
    if size > 0 {
        let end = (at + 8).checked_add(size)?;
        let copied = word(end)? as usize;
        let stack = record.get(at + 8..end.min((at + 8).saturating_add(copied)))?;
        access.stack = stack.to_vec();
    }
    Some(access)
}

/// Kind of access that a watchpoint detects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Width {
    /// A word at a multiple of eight. The watchpoint fires on an access to any of its bytes.
    #[default]
    Word,
    /// A byte.
    Byte,
    /// A word at a multiple of eight. The watchpoint fires only on a write to one of its bytes.
    WordWrites,
}

/// Watchpoint on one word or byte for one thread. Dropping this value removes the watchpoint.
pub struct Watchpoint {
    event: File,
}

impl Watchpoint {
    /// Reserves a watchpoint on the word at `address`, a multiple of eight, for a thread. It does not fire before
    /// [`Watchpoint::arm`].
    pub fn reserve(tid: i32, address: u64, with_kernel: bool) -> io::Result<Watchpoint> {
        Watchpoint::reserve_width(tid, address, Width::Word, with_kernel)
    }

    /// Like [`reserve`], with a chosen width.
    pub fn reserve_width(
        tid: i32,
        address: u64,
        width: Width,
        with_kernel: bool,
    ) -> io::Result<Watchpoint> {
        let attributes = Attributes {
            kind: TYPE_BREAKPOINT,
            breakpoint_type: match width {
                Width::WordWrites => BREAKPOINT_WRITE,
                Width::Word | Width::Byte => BREAKPOINT_READ_WRITE,
            },
            breakpoint_address: address,
            breakpoint_length: match width {
                Width::Word | Width::WordWrites => WORD_BYTES,
                Width::Byte => 1,
            },
            ..common(with_kernel)
        };
        let event = open(&attributes, tid)?.into();
        Ok(Watchpoint { event })
    }

    /// Makes the watchpoint fire at the next access, and record the access in `ring`, if there is one.
    pub fn arm(&self, ring: Option<&AccessRing>) -> io::Result<()> {
        let event = self.event.as_raw_fd();
        if let Some(ring) = ring {
            // SAFETY: no pointers.
            let result = unsafe { libc::ioctl(event, IOC_SET_OUTPUT as _, ring.event.as_raw_fd()) };
            if result != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        // SAFETY: no pointers.
        if unsafe { libc::ioctl(event, IOC_REFRESH as _, 1) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Returns true if it has fired.
    pub fn has_fired(&self) -> bool {
        let mut count = [0; 8];
        let read = (&self.event).read(&mut count);
        read.is_ok() && u64::from_le_bytes(count) > 0
    }
}

/// Returns the id of the calling thread.
pub fn own_thread() -> i32 {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchpoint_fires_once() {
        let word = Box::new(AtomicU64::new(3));
        let address = word.as_ptr().addr() as u64;
        let watchpoint = match Watchpoint::reserve(own_thread(), address, true) {
            Ok(watchpoint) => watchpoint,
            // Some virtual machines and containers have no watchpoints.
            Err(error) => return memhook_tests::not_run_here(&error.to_string()),
        };
        let mut ring = AccessRing::open(own_thread(), true).unwrap();
        word.store(4, Ordering::Relaxed);
        assert!(!watchpoint.has_fired());
        watchpoint.arm(Some(&ring)).unwrap();
        let mut found = Vec::new();
        ring.take(&mut found);
        assert!(found.is_empty() && !watchpoint.has_fired());
        assert_eq!(word.load(Ordering::Relaxed), 4);
        for _ in 0..100 {
            word.fetch_add(1, Ordering::Relaxed);
        }
        assert!(watchpoint.has_fired());
        ring.take(&mut found);
        assert_eq!(found.len(), 1, "{found:?}");
        let access = &found[0];
        assert_eq!((access.tid, access.address), (own_thread(), address));
        assert!(!access.by_kernel && !access.stack.is_empty());
        assert!(access.stack_word(access.registers.1).is_some());
        drop(watchpoint);
        // The next one works too.
        let next = Watchpoint::reserve(own_thread(), address, true).unwrap();
        next.arm(Some(&ring)).unwrap();
        word.store(1, Ordering::Relaxed);
        ring.take(&mut found);
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn reads_pass_where_writes_are_watched() {
        let word = Box::new(AtomicU64::new(3));
        let address = word.as_ptr().addr() as u64;
        let reserved = Watchpoint::reserve_width(own_thread(), address, Width::WordWrites, true);
        let watchpoint = match reserved {
            Ok(watchpoint) => watchpoint,
            Err(error) => return memhook_tests::not_run_here(&error.to_string()),
        };
        watchpoint.arm(None).unwrap();
        assert_eq!(word.load(Ordering::Relaxed), 3);
        assert!(!watchpoint.has_fired());
        word.store(4, Ordering::Relaxed);
        assert!(watchpoint.has_fired());
    }

    #[test]
    fn damaged_records_are_left_out() {
        assert!(split_record(&[9, 0, 0, 0, 0, 0, 0, 0]).is_none());
        assert!(split_record(&[9, 0, 0, 0, 0, 0, 200, 0]).is_none());
        for length in 8..200 {
            let mut record = vec![0xffu8; length];
            record[..8].copy_from_slice(&[9, 0, 0, 0, 2, 0, length as u8, 0]);
            assert!(parse(&record).is_none(), "{length}");
        }
    }
}
