//! Memory from which the structures of an allocator are read: a copy, or the memory of the running
//! process.

use crate::snapshot::Snapshot;
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

const PAGE_BYTES: u64 = 4096;

/// Memory of a process.
pub(crate) trait Memory {
    /// Returns the 64-bit word at an address.
    fn word(&self, address: u64) -> Option<u64>;

    /// Returns the 32-bit word at an address.
    fn half(&self, address: u64) -> Option<u32>;

    /// Returns the byte at an address.
    fn byte(&self, address: u64) -> Option<u8>;

    /// Returns true if `bytes` bytes exist from an address on.
    fn has(&self, start: u64, bytes: u64) -> bool;
}

impl<M: Memory + ?Sized> Memory for &M {
    fn word(&self, address: u64) -> Option<u64> {
        (**self).word(address)
    }

    fn half(&self, address: u64) -> Option<u32> {
        (**self).half(address)
    }

    fn byte(&self, address: u64) -> Option<u8> {
        (**self).byte(address)
    }

    fn has(&self, start: u64, bytes: u64) -> bool {
        (**self).has(start, bytes)
    }
}

impl Memory for Snapshot {
    fn word(&self, address: u64) -> Option<u64> {
        Snapshot::word(self, address)
    }

    fn half(&self, address: u64) -> Option<u32> {
        Snapshot::half(self, address)
    }

    fn byte(&self, address: u64) -> Option<u8> {
        self.bytes(address, 1).map(|bytes| bytes[0])
    }

    fn has(&self, start: u64, bytes: u64) -> bool {
        self.bytes(start, bytes).is_some()
    }
}

type Page = [u8; PAGE_BYTES as usize];

/// Pages of a running process, each read once. Either the process must be stopped, or the values
/// read must be meaningful at any moment.
#[derive(Debug)]
pub(crate) struct LiveMemory<'a> {
    memory: &'a File,
    /// Time after which nothing is read.
    until: Instant,
    is_late: Cell<bool>,
    pages: RefCell<FxHashMap<u64, Option<Box<Page>>>>,
}

impl<'a> LiveMemory<'a> {
    /// Prepares to read from `memory`, which is /proc/PID/mem.
    pub fn new(memory: &'a File, until: Instant) -> LiveMemory<'a> {
        LiveMemory {
            memory,
            until,
            is_late: Cell::new(false),
            pages: RefCell::default(),
        }
    }

    /// Returns true if a read was skipped because the time was up, so the missing data may still
    /// exist.
    pub fn is_late(&self) -> bool {
        self.is_late.get()
    }

    fn read<const BYTES: usize>(&self, address: u64) -> Option<[u8; BYTES]> {
        let mut found = [0; BYTES];
        let mut filled = 0;
        while filled < BYTES {
            let at = address + filled as u64;
            let offset = (at % PAGE_BYTES) as usize;
            let count = (BYTES - filled).min(PAGE_BYTES as usize - offset);
            let mut pages = self.pages.borrow_mut();
            let page = pages.entry(at - offset as u64);
            let page = page.or_insert_with_key(|&page| self.read_page(page));
            let bytes = &page.as_ref()?[offset..offset + count];
            found[filled..filled + count].copy_from_slice(bytes);
            filled += count;
        }
        Some(found)
    }

    fn read_page(&self, page: u64) -> Option<Box<Page>> {
        if Instant::now() >= self.until {
            self.is_late.set(true);
            return None;
        }
        let mut bytes = Box::new([0; PAGE_BYTES as usize]);
        let read = self.memory.read_exact_at(&mut *bytes, page);
        read.is_ok().then_some(bytes)
    }
}

impl Memory for LiveMemory<'_> {
    fn word(&self, address: u64) -> Option<u64> {
        address.checked_add(8)?;
        self.read(address).map(u64::from_le_bytes)
    }

    fn half(&self, address: u64) -> Option<u32> {
        address.checked_add(4)?;
        self.read(address).map(u32::from_le_bytes)
    }

    fn byte(&self, address: u64) -> Option<u8> {
        self.read(address).map(|[byte]| byte)
    }

    fn has(&self, start: u64, bytes: u64) -> bool {
        let last = bytes
            .checked_sub(1)
            .and_then(|more| start.checked_add(more));
        self.byte(start).is_some() && last.is_some_and(|last| self.byte(last).is_some())
    }
}
