//! Contents of an arena's resident pages.

use crate::dissect::Heap;
use crate::resident::chunk_list::{ChunkList, Owner};
use crate::resident::pages::{PAGE_BYTES, ResidentPages};
use crate::resident::trim;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The resident bytes of one arena. Each byte is counted once. In addition, `trim_bytes` is the
/// part of the free bytes that malloc_trim would return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaUse {
    /// Address of its `malloc_state`.
    pub address: u64,
    /// All resident bytes of the arena.
    pub resident_bytes: u64,
    /// Bytes of live blocks.
    pub live_bytes: u64,
    /// Bytes of headers, and of other data of the allocator.
    pub overhead_bytes: u64,
    /// Free bytes at the end of the arena.
    pub top_bytes: u64,
    /// Free bytes in bins and fast lists.
    pub bins_bytes: u64,
    /// Free bytes in the caches of threads.
    pub tcache_bytes: u64,
    /// Part of the free bytes (of the top, of bins and of thread caches) that is on pages with a
    /// live block.
    pub fragmentation_bytes: u64,
    /// Bytes that malloc_trim would return.
    pub trim_bytes: u64,
    /// Bytes of parts that could not be walked.
    pub unknown_bytes: u64,
}

impl ArenaUse {
    /// Returns the counts of an arena, all zero.
    pub fn of(address: u64) -> ArenaUse {
        ArenaUse {
            address,
            ..ArenaUse::default()
        }
    }

    /// Returns all free bytes.
    pub fn free_bytes(&self) -> u64 {
        self.top_bytes + self.bins_bytes + self.tcache_bytes
    }

    fn add(&mut self, page: &Page) {
        self.resident_bytes += PAGE_BYTES;
        let [live, header, top, bins, cached, unknown] = page.bytes.map(u64::from);
        self.live_bytes += live;
        self.top_bytes += top;
        self.bins_bytes += bins;
        self.tcache_bytes += cached;
        self.unknown_bytes += unknown;
        let free = top + bins + cached;
        // Bytes that no chunk covers belong to the arena itself: `heap_info`, `malloc_state`,
        // fences.
        self.overhead_bytes += PAGE_BYTES.saturating_sub(live + free + unknown);
        if live + header > 0 {
            self.fragmentation_bytes += free;
        }
    }
}

/// Kind of a page's bytes.
#[derive(Clone, Copy)]
enum Kind {
    Live,
    Header,
    Top,
    Bins,
    Cached,
    Unknown,
}

#[derive(Clone, Copy, Default)]
struct Page {
    bytes: [u16; 6],
}

/// The pages of one range of an arena.
struct PageTable {
    start: u64,
    pages: Vec<Page>,
}

impl PageTable {
    fn add(&mut self, range: Range<u64>, kind: Kind) {
        let mut at = range.start.max(self.start);
        while at < range.end {
            let next = (at - at % PAGE_BYTES + PAGE_BYTES).min(range.end);
            let index = (at - self.start) / PAGE_BYTES;
            let Some(page) = self.pages.get_mut(index as usize) else {
                return;
            };
            // A page has no more than 4096 bytes.
            page.bytes[kind as usize] += (next - at) as u16;
            at = next;
        }
    }
}

/// Counts the resident pages of `range`, which contains the chunks of the list, and begins and ends
/// at page boundaries.
pub fn count(
    into: &mut ArenaUse,
    heap: &Heap,
    list: &ChunkList,
    range: Range<u64>,
    resident: &ResidentPages,
) {
    let mut table = PageTable {
        start: range.start,
        pages: vec![Page::default(); ((range.end - range.start) / PAGE_BYTES) as usize],
    };
    let is_main = list.piece.arena == 0;
    for index in 0..list.len() {
        let chunk = list.range(index);
        // The previous block owns the chunk's first word, and this block owns the first word of the
        // next chunk.
        let own = chunk.start + 8..chunk.end + 8;
        match list.owner(index) {
            Owner::Class(_) => {
                table.add(own.start..own.start + 8, Kind::Header);
                table.add(own.start + 8..own.end, Kind::Live);
            }
            Owner::Free => {
                into.trim_bytes += resident.bytes(&trim::of_chunk(&chunk));
                table.add(own, Kind::Bins);
            }
            Owner::Cached => table.add(own, Kind::Cached),
            Owner::Top => {
                if is_main {
                    into.trim_bytes += resident.bytes(&trim::of_main_top(&chunk));
                }
                table.add(own.start..chunk.end, Kind::Top);
            }
            Owner::Allocator => {}
        }
    }
    for run in &heap.unparsed {
        if run.start < range.end && run.end > range.start {
            table.add(run.start..run.end.min(range.end), Kind::Unknown);
        }
    }
    for page in resident.pages(range) {
        let index = (page - table.start) / PAGE_BYTES;
        into.add(&table.pages[index as usize]);
    }
}
