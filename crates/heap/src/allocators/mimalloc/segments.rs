//! Segments: 32 MiB of address space that begin with a description of their pages.

use super::layout::{CAPACITY, FREE, Layout, PageStart, RESERVED, SLICE_COUNT};
use crate::live_memory::Memory;
use std::ops::Range;

/// Segments begin at multiples of this size. A huge segment is larger.
pub const SEGMENT_BYTES: u64 = 32 << 20;
pub const SLICE_BYTES: u64 = 64 << 10;
/// Slices of a segment, and entries of its table of them.
const SLICES: u64 = SEGMENT_BYTES / SLICE_BYTES;
/// The table occupies one or two slices, and a guard page may follow it.
const MOST_INFO_SLICES: u64 = 4;
/// A block whose size does not fit into 32 bits (`MI_HUGE_BLOCK_SIZE`) fills its page.
const HUGE_BLOCK_BYTES: u64 = 2 << 30;
/// Size of guard pages in builds with `MI_SECURE`.
const GUARD_BYTES: u64 = 8192;
/// Upper bound on the number of slices of a segment: 1 TiB.
const MOST_SLICES: u64 = 1 << 24;

/// A segment with a sound header.
#[derive(Clone, Debug)]
pub struct Segment {
    pub address: u64,
    pub end: u64,
    /// End of the slices that hold its own data.
    pub info_end: u64,
    /// The segment's count of pages in use.
    pub used: u64,
    pub thread: u64,
    entries: u64,
    info_slices: u64,
}

/// A page: blocks of one size.
#[derive(Clone, Debug)]
pub struct Page {
    /// Address of its `mi_page_t`.
    pub address: u64,
    /// Addresses of its slices.
    pub range: Range<u64>,
    /// Address of the first block.
    pub start: u64,
    pub block_bytes: u64,
    pub capacity: u64,
    /// Number of blocks that are not in the page's own free lists. It includes blocks that other threads have released.
    pub used: u64,
    /// First block of each list. The last list has the blocks that other threads have released.
    pub lists: [u64; 3],
    pub heap: u64,
    /// The thread that owns the segment.
    pub thread: u64,
}

impl Segment {
    /// Returns the word that, combined with a segment's address, gives the segment's cookie (internal.h,
    /// `_mi_ptr_cookie`). It is the same for all segments.
    pub fn secret(memory: &impl Memory, layout: &Layout, address: u64) -> Option<u64> {
        let cookie = memory.word(address.checked_add(layout.cookie)?)?;
        (cookie != 0).then_some(cookie ^ address)
    }

    /// Returns the segment at this address, if its header is valid.
    pub fn at(memory: &impl Memory, layout: &Layout, address: u64) -> Option<Segment> {
        let word = |offset: u64| memory.word(address + offset);
        let slices = word(layout.segment_slices)?;
        let entries = word(layout.entries)?;
        let info_slices = word(layout.info_slices)?;
        let used = word(layout.used)?;
        let is_huge = match memory.half(address + layout.kind)? {
            0 => false,
            1 => true,
            _ => return None,
        };
        // Secure builds have a guard page in the last slice.
        let table = if layout.keys.is_some() && slices <= SLICES {
            slices.saturating_sub(1)
        } else {
            slices.min(SLICES)
        };
        let is_sound = (is_huge || slices == SLICES)
            && entries == table
            && slices <= MOST_SLICES
            && (1..=MOST_INFO_SLICES).contains(&info_slices)
            && info_slices < entries
            && used <= entries;
        // The first slices in the table hold the segment's own data.
        let first = memory.half(address + layout.slices + SLICE_COUNT)?;
        if !is_sound || u64::from(first) != info_slices {
            return None;
        }
        Some(Segment {
            address,
            end: address.checked_add(slices * SLICE_BYTES)?,
            info_end: address + info_slices * SLICE_BYTES,
            used,
            thread: word(layout.thread)?,
            entries,
            info_slices,
        })
    }

    /// Calls `page` for each page in use, and `free` for each range of free slices. If the table of slices is broken,
    /// the error is the address at which the walk stopped.
    pub fn walk(
        &self,
        memory: &impl Memory,
        layout: &Layout,
        mut page: impl FnMut(Result<Page, (Range<u64>, &'static str)>),
        mut free: impl FnMut(Range<u64>),
    ) -> Result<(), u64> {
        let mut index = self.info_slices;
        while index < self.entries {
            let address = self.address + layout.slices + index * layout.page_bytes;
            let start = self.address + index * SLICE_BYTES;
            let count = memory.half(address + SLICE_COUNT).unwrap_or(0);
            let end = start + u64::from(count) * SLICE_BYTES;
            if count == 0 || end > self.end {
                return Err(start);
            }
            match block_bytes(memory, layout, address) {
                None => return Err(start),
                Some(0) => free(start..end),
                Some(bytes) => {
                    let range = start..end;
                    let found = Page::at(memory, layout, address, range.clone(), bytes);
                    page(found.map_err(|what| (range, what)).map(|page| Page {
                        thread: self.thread,
                        ..page
                    }));
                }
            }
            index += u64::from(count);
        }
        Ok(())
    }
}

/// Returns the block size of a page; 0 if the page is not in use.
fn block_bytes(memory: &impl Memory, layout: &Layout, page: u64) -> Option<u64> {
    let at = page + layout.block_bytes;
    if layout.is_size_wide {
        memory.word(at)
    } else {
        memory.half(at).map(u64::from)
    }
}

impl Page {
    fn at(
        memory: &impl Memory,
        layout: &Layout,
        address: u64,
        range: Range<u64>,
        block_bytes: u64,
    ) -> Result<Page, &'static str> {
        let read = || -> Option<Page> {
            let word = |offset: u64| memory.word(address + offset);
            let half = |offset: u64| memory.half(address + offset).map(u64::from);
            let used = half(layout.page_used)?;
            let start = match layout.start {
                PageStart::Field(offset) => word(offset)?,
                PageStart::Shifted if (8..=1024).contains(&block_bytes) => range.start + 384,
                PageStart::AtMultiple if (8..=64).contains(&block_bytes) => {
                    range.start + 3 * block_bytes
                }
                PageStart::AtMultiple if (65..=512).contains(&block_bytes) => {
                    range.start + block_bytes
                }
                _ => range.start,
            };
            let is_huge = !layout.is_size_wide && block_bytes >= HUGE_BLOCK_BYTES;
            let rest = range.end.checked_sub(start)?;
            Some(Page {
                address,
                start,
                block_bytes: if is_huge { rest } else { block_bytes },
                capacity: half(CAPACITY)? & 0xffff,
                used: if layout.is_used_wide {
                    used
                } else {
                    used & 0xffff
                },
                lists: [
                    word(FREE)?,
                    word(layout.local_free)?,
                    // Two bits of the field are flags.
                    word(layout.thread_free)? & !3,
                ],
                heap: word(layout.heap)?,
                thread: 0,
                range: range.clone(),
            })
        };
        let page = read().ok_or("the description of a page is cut off")?;
        let reserved = u64::from(memory.half(address + RESERVED).unwrap_or(0)) & 0xffff;
        page.check(layout, reserved)?;
        Ok(page)
    }

    /// Checks that the page is plausible. The number of reserved blocks is the number that fits, which also determines
    /// the start of the first block.
    fn check(&self, layout: &Layout, reserved: u64) -> Result<(), &'static str> {
        // The page was just taken, and is not initialized yet.
        if self.capacity == 0 && reserved == 0 {
            return Ok(());
        }
        if self.block_bytes < 8
            || !self.block_bytes.is_multiple_of(8)
            || self.start < self.range.start
        {
            return Err("a page describes impossible blocks");
        }
        let most = (self.range.end - self.start) / self.block_bytes;
        let guards = if layout.keys.is_some() {
            GUARD_BYTES
        } else {
            0
        };
        let is_full = reserved <= most && (most - reserved) * self.block_bytes <= guards;
        // A page has one large block.
        let is_alone = reserved == 1 && most >= 1;
        if !(is_full || is_alone) || self.capacity > reserved {
            return Err("a page does not have as many blocks as fit");
        }
        Ok(())
    }
}
