//! The map of mimalloc 3 from addresses to pages.
//!
//! A variable points to a two-level table with one entry for each 64 KiB of address space. An entry points to the
//! `mi_page_t` of the page there (page-map.c). The first-level table ends where its first entry points to, which is how
//! the variable is recognized; since 3.6, the table also begins with the number of its entries. Each `mi_page_t` states
//! the address that led to it. Pages are in arenas, which begin with their own description, or in separate mappings.

use super::layout::{Layout, PageStart, SINCE_2_2};
use super::segments::{Page, SLICE_BYTES};
use crate::live_memory::Memory;
use crate::ranges::{Runs, joined};
use crate::snapshot::{CopiedRegion, Snapshot, words};
use rustc_hash::FxHashSet;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Number of entries in a second-level table (`MI_PAGE_MAP_SUB_COUNT`).
const ENTRIES: u64 = 8192;
/// Size of the first-level table in bytes, for the largest number of address bits (`MI_PAGE_MAP_COUNT`, option
/// `max_vabits`).
const MOST_TABLE_BYTES: u64 = 4 << 20;
const PAGE_BYTES: u64 = 4096;
/// Offset of the entries in a first-level table since 3.6. The entries are preceded by their number, the second-level
/// table for address 0, and the location of the table's own memory.
const HEADED_ENTRIES: u64 = 80;
/// Since 3.6, an arena's memory has a table of page descriptions (`mi_page_t`) at each multiple of this size. Each
/// table describes the pages up to the next multiple.
const DESCRIBED_BYTES: u64 = 256 << 20;
/// Size of such a table.
const DESCRIPTIONS_BYTES: u64 = DESCRIBED_BYTES / SLICE_BYTES * 128;
/// Distance from the first bitmap of `mi_arena_t` to `pages`, which is the fifth.
const FIRST_BITMAP: u64 = 32;
/// Offset of the bits in `mi_bitmap_t`. They follow the number of chunks and one bit for each chunk.
const BITS: u64 = 128;
const THREAD_FLAGS: u64 = 7;
/// Number of memory kinds with separate mappings (`mi_memkind_t`). The next kind is memory in arenas.
const KINDS_OF_ITS_OWN: u64 = 3;
/// Offset of `memid` in the description of the allocator's own memory (`mi_meta_page_t`).
const META_ID: u64 = 8;
/// The number of slices in an arena is a multiple of this (`MI_BCHUNK_BITS`).
const ARENA_SLICES: u64 = 512;
/// Upper bound on the total number of slices in all arenas: 2 TiB (`MI_MAX_ARENAS`).
const MOST_SLICES: u64 = 1 << 25;
/// Upper bound on the number of words in a program's data that look like the address of a map.
const MOST_CANDIDATES: usize = 16;

/// Field offsets in bytes.
#[derive(Clone, Copy, Debug)]
pub struct MapLayout {
    /// Layout of lists and blocks. The other fields of this layout are for version 2.
    pub lists: Layout,
    page: PageFields,
    /// `memid` of `mi_page_t`.
    memid: u64,
    /// `memid.memkind` of memory in arenas.
    in_arena: u64,
    /// Offset of `mi_arena_t` from the beginning of an arena's memory.
    arena: u64,
    /// Offset of `slice_count` in `mi_arena_t`. `info_slices` follows it.
    slice_count: u64,
    /// Offset of `pages` in `mi_arena_t`, which points to a bitmap with one bit for each slice at which a page begins.
    /// Set only for a layout shared with a version that keeps released pages in the map (3.0.1,
    /// `_mi_page_map_unregister`).
    pages: Option<u64>,
}

/// Offsets of fields of `mi_page_t`.
#[derive(Clone, Copy, Debug)]
struct PageFields {
    thread: u64,
    free: u64,
    local_free: u64,
    thread_free: u64,
    block_bytes: u64,
    used: u64,
    /// The number of blocks that the page can hold follows.
    capacity: u64,
}

const IN_3_0: MapLayout = MapLayout {
    lists: Layout {
        versions: "3.0",
        keys: None,
        has_padding: false,
        ..SINCE_2_2
    },
    page: PageFields {
        thread: 0,
        free: 8,
        local_free: 24,
        thread_free: 32,
        block_bytes: 40,
        used: 16,
        capacity: 18,
    },
    memid: 96,
    in_arena: 7,
    arena: 0,
    slice_count: 32,
    pages: Some(96),
};

const IN_3_1: MapLayout = MapLayout {
    lists: Layout {
        versions: "3.1",
        ..IN_3_0.lists
    },
    pages: None,
    ..IN_3_0
};

const IN_3_3: MapLayout = MapLayout {
    lists: Layout {
        versions: "3.2 or 3.3",
        ..IN_3_0.lists
    },
    slice_count: 40,
    ..IN_3_1
};

const IN_3_4: MapLayout = MapLayout {
    lists: Layout {
        versions: "3.4",
        start: PageStart::Distance(48),
        ..IN_3_0.lists
    },
    memid: 88,
    ..IN_3_3
};

const IN_3_6: MapLayout = MapLayout {
    lists: Layout {
        versions: "3.6",
        start: PageStart::DistanceInBytes(48),
        ..IN_3_0.lists
    },
    page: PageFields {
        thread: 8,
        free: 16,
        local_free: 24,
        thread_free: 64,
        block_bytes: 32,
        used: 40,
        capacity: 56,
    },
    memid: 104,
    in_arena: 6,
    arena: DESCRIPTIONS_BYTES,
    slice_count: 48,
    pages: None,
};

/// Returns the layout of a build with encoded lists.
const fn secure(layout: MapLayout, keys: u64) -> MapLayout {
    MapLayout {
        lists: Layout {
            keys: Some(keys),
            has_padding: true,
            ..layout.lists
        },
        memid: layout.memid + 16,
        ..layout
    }
}

/// All that are known.
pub const MAP_LAYOUTS: [MapLayout; 9] = [
    IN_3_6,
    IN_3_3,
    IN_3_4,
    IN_3_0,
    IN_3_1,
    secure(IN_3_3, 56),
    secure(IN_3_4, 56),
    secure(IN_3_0, 64),
    secure(IN_3_1, 64),
];

/// The map of a process.
pub struct PageMap {
    /// Address of the entries of the first level.
    entries: u64,
    /// The tables, that of the first level first.
    tables: Runs,
    /// Addresses of all `mi_page_t`, each with the first 64 KiB unit that led to it.
    pages: BTreeMap<u64, u64>,
}

/// A part of the memory, by its use.
pub enum Part {
    /// The allocator's own data.
    Own(Range<u64>),
    /// Free memory.
    Free(Range<u64>),
}

/// Pages that the map leads to.
#[derive(Default)]
pub struct Mapped {
    /// The pages in address order.
    pub pages: Vec<Page>,
    /// All memory of the allocator.
    pub ranges: Runs,
    pub parts: Vec<Part>,
    /// Damaged ranges, with the fault.
    pub damaged: Vec<(Range<u64>, &'static str)>,
}

impl PageMap {
    /// Whatever may be a map.
    pub fn candidates(snapshot: &Snapshot) -> impl Iterator<Item = PageMap> + '_ {
        let data = snapshot.meta.modules.iter().flat_map(|m| &m.data);
        data.filter_map(|range| {
            let region = snapshot.region(range.start)?;
            let end = range.end.min(region.end());
            snapshot.bytes(range.start, end.checked_sub(range.start)?)
        })
        .flat_map(words)
        .filter_map(|word| first_table(snapshot, word))
        .take(MOST_CANDIDATES)
        .filter_map(|table| PageMap::at(snapshot, table))
    }

    /// The one whose first table this is.
    fn at(snapshot: &Snapshot, (table, entries): (u64, Range<u64>)) -> Option<PageMap> {
        let mut seen = FxHashSet::default();
        let mut map = PageMap {
            entries: entries.start,
            tables: Runs::new(),
            pages: BTreeMap::new(),
        };
        // The table for address 0 comes right behind.
        map.tables.push(table..entries.end + ENTRIES * 8);
        // Parts of the first-level table that are not accessible yet have no entries.
        let copied = snapshot.region(table)?.end().min(entries.end);
        let second = words(snapshot.bytes(entries.start, copied.checked_sub(entries.start)?)?)
            .enumerate()
            .skip(1);
        for (index, table) in second.filter(|&(_, table)| table != 0) {
            // The data is not a map if this memory is not a table, or if two entries lead to the same table.
            if !seen.insert(table) {
                return None;
            }
            let entries = snapshot.bytes(table, ENTRIES * 8)?;
            map.tables.push(table..table + ENTRIES * 8);
            for (i, page) in words(entries).enumerate().filter(|&(_, page)| page != 0) {
                let slice = (index as u64 * ENTRIES + i as u64) * SLICE_BYTES;
                let first = map.pages.entry(page).or_insert(slice);
                *first = slice.min(*first);
            }
        }
        (!map.pages.is_empty()).then_some(map)
    }

    /// The address of the first table's entries.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Reads the pages and the memory that contains them.
    pub fn read(&self, snapshot: &Snapshot, layout: &MapLayout) -> Mapped {
        let mut found = Mapped {
            ranges: self.tables.clone(),
            ..Mapped::default()
        };
        let tables = self.tables.iter().cloned();
        found.parts.extend(tables.map(Part::Own));
        let memory = |(&page, &slice): (&u64, &u64)| {
            let memory = memory_of(snapshot, layout, page, slice);
            (page, slice, memory)
        };
        let pages: Vec<_> = self.pages.iter().map(memory).collect();
        let arenas: BTreeSet<u64> = pages
            .iter()
            .filter_map(|(_, _, memory)| match memory {
                Some(Source::Arena(arena, _)) => Some(*arena),
                _ => None,
            })
            .collect();
        for (address, slice, memory) in pages {
            if is_released(snapshot, layout, &arenas, (address, memory.is_some())) {
                continue;
            }
            let memory = memory.ok_or("a page does not say where its memory comes from");
            let page = memory.and_then(|memory| {
                let slices = match memory {
                    Source::Arena(_, slices) => slices,
                    Source::Own(range) => {
                        // The description precedes the blocks.
                        found.parts.push(Part::Own(range.start..slice));
                        found.ranges.push(range.clone());
                        slice..range.end
                    }
                };
                page(snapshot, layout, address, slice, slices)
            });
            match page {
                Ok(page) => found.pages.push(page),
                Err(what) => found.damaged.push((slice..slice + SLICE_BYTES, what)),
            }
        }
        found.pages.sort_unstable_by_key(|page| page.range.start);
        let used = joined(found.pages.iter().map(|page| page.range.clone()).collect());
        let mut left = MOST_SLICES;
        for arena in arenas {
            let slices = arena_at(snapshot, layout, arena).map_or(0, |(slices, _)| slices);
            match left.checked_sub(slices) {
                Some(rest) => left = rest,
                None => {
                    let what = "the arenas exceed their largest total size";
                    found.damaged.push((arena..arena + SLICE_BYTES, what));
                    continue;
                }
            }
            found.take_arena(snapshot, layout, arena, &used);
        }
        found
    }
}

impl Mapped {
    /// Adds the rest of an arena: its description, and its free memory.
    fn take_arena(&mut self, snapshot: &Snapshot, layout: &MapLayout, arena: u64, used: &Runs) {
        let Some((slices, info)) = arena_at(snapshot, layout, arena) else {
            return;
        };
        let start = arena - layout.arena;
        let end = start + slices * SLICE_BYTES;
        self.ranges.push(start..end);
        let mut at = start + info * SLICE_BYTES;
        self.parts.push(Part::Own(start..at));
        let mut next = used.partition_point(|page| page.end <= at);
        while at < end {
            let page = used.get(next).filter(|page| page.start < end);
            let until = page.map_or(end, |page| page.start);
            while at < until {
                let slice = at..at + SLICE_BYTES;
                at = slice.end;
                let number = (slice.start - start) / SLICE_BYTES;
                // Every such part begins with a table, if the arena does.
                let is_own = slice.start % DESCRIBED_BYTES < layout.arena
                    || place(snapshot, layout, slice.start + META_ID)
                        .is_some_and(|place| (place.0, place.1) == (arena, number));
                match self.parts.last_mut() {
                    Some(Part::Own(last)) if is_own && last.end == slice.start => last.end = at,
                    Some(Part::Free(last)) if !is_own && last.end == slice.start => last.end = at,
                    _ if is_own => self.parts.push(Part::Own(slice)),
                    _ => self.parts.push(Part::Free(slice)),
                }
            }
            let Some(page) = page else { break };
            at = page.end.next_multiple_of(SLICE_BYTES).max(at);
            next += 1;
        }
    }
}

/// Returns the first-level table of a map at this address, and the range of its entries; `None` if no map can be there.
fn first_table(snapshot: &Snapshot, table: u64) -> Option<(u64, Range<u64>)> {
    if table == 0 || !table.is_multiple_of(PAGE_BYTES) {
        return None;
    }
    // The table for address 0 comes right behind.
    let first = snapshot.word(table)?;
    if let Some(bytes) = first.checked_sub(table) {
        let is_size = bytes.is_power_of_two() && (PAGE_BYTES..=MOST_TABLE_BYTES).contains(&bytes);
        return is_size.then(|| (table, table..table + bytes));
    }
    let bytes = first.checked_mul(8)?.checked_add(HEADED_ENTRIES)?;
    let word = |offset: u64| snapshot.word(table.checked_add(offset)?);
    let is_table = bytes <= MOST_TABLE_BYTES
        && word(8)? == bytes
        && word(16)? == table
        && word(HEADED_ENTRIES)? == table + bytes;
    is_table.then(|| (table, table + HEADED_ENTRIES..table + bytes))
}

/// Origin of the memory of a page.
enum Source {
    /// The arena at this address, and the part of it.
    Arena(u64, Range<u64>),
    /// A separate mapping.
    Own(Range<u64>),
}

/// Returns the arena, the index of the first slice and the number of slices from the `memid` at this address.
fn place(snapshot: &Snapshot, layout: &MapLayout, memid: u64) -> Option<(u64, u64, u64)> {
    let half = |offset: u64| snapshot.half(memid.checked_add(offset)?).map(u64::from);
    let kind = half(16)?;
    let place = (snapshot.word(memid)?, half(8)?, half(12)?);
    (kind == layout.in_arena).then_some(place)
}

/// Returns the number of slices of the arena at this address, and the number of slices that contain the arena's own
/// data.
fn arena_at(snapshot: &Snapshot, layout: &MapLayout, arena: u64) -> Option<(u64, u64)> {
    let at = arena.checked_add(layout.slice_count)?;
    let (slices, info) = (snapshot.word(at)?, snapshot.word(at + 8)?);
    // After a table of page descriptions, an arena states where its memory begins.
    let follows_table = || {
        arena % DESCRIBED_BYTES == layout.arena
            && snapshot.word(at - 8) == Some(arena - layout.arena)
    };
    let is_sound = (layout.arena == 0 || follows_table())
        && arena.is_multiple_of(SLICE_BYTES)
        && slices.is_multiple_of(ARENA_SLICES)
        && slices <= MOST_SLICES
        && (1..slices).contains(&info)
        && layout.pages.is_none_or(|at| {
            // All bitmaps of the arena follow `pages`. At the offset of the first bitmap in later versions, this
            // version does not have a bitmap yet.
            let own = arena..arena + info * SLICE_BYTES;
            let place = |at: u64| {
                snapshot
                    .word(arena + at)
                    .is_some_and(|map| own.contains(&map))
            };
            place(at) && place(at - FIRST_BITMAP)
        });
    is_sound.then_some((slices, info))
}

/// Returns the origin of the memory of a page, if it is plausible.
fn memory_of(snapshot: &Snapshot, layout: &MapLayout, page: u64, slice: u64) -> Option<Source> {
    let memid = page.checked_add(layout.memid)?;
    if let Some((arena, number, count)) = place(snapshot, layout, memid) {
        let (slices, info) = arena_at(snapshot, layout, arena)?;
        let first = (arena - layout.arena).checked_add(number * SLICE_BYTES)?;
        let range = first..first.checked_add(count * SLICE_BYTES)?;
        // A block with its own alignment may begin in a later slice.
        let is_there = number >= info && number + count <= slices && range.contains(&slice);
        return is_there.then_some(Source::Arena(arena, range));
    }
    let kind = u64::from(snapshot.half(memid + 16)?);
    let base = snapshot.word(memid)?;
    let range = base..base.checked_add(snapshot.word(memid + 8)?)?;
    let kinds = layout.in_arena - KINDS_OF_ITS_OWN..layout.in_arena;
    let is_there = kinds.contains(&kind) && range.contains(&page) && range.contains(&slice);
    is_there.then_some(Source::Own(range))
}

/// Returns true if a page in the map has been released: its arena says so, or it is not in an arena and has no other
/// valid origin. Without `pages`, the map contains no released pages.
fn is_released(
    snapshot: &Snapshot,
    layout: &MapLayout,
    arenas: &BTreeSet<u64>,
    (page, is_described): (u64, bool),
) -> bool {
    let Some(pages) = layout.pages else {
        return false;
    };
    let arena = arenas.range(..=page).next_back().and_then(|&arena| {
        let (slices, _) = arena_at(snapshot, layout, arena)?;
        let slice = (page - arena) / SLICE_BYTES;
        (slice < slices).then_some((arena, slice))
    });
    let Some((arena, slice)) = arena else {
        return !is_described;
    };
    let begins_there = || {
        let bits = snapshot.word(arena.checked_add(pages)?)?;
        let word = snapshot.word(bits.checked_add(BITS + slice / 64 * 8)?)?;
        Some(word >> (slice % 64) & 1 == 1)
    };
    begins_there() == Some(false)
}

/// Returns the page whose description is at this address and which has these slices, and the end of its last block.
fn described(
    memory: &impl Memory,
    layout: &MapLayout,
    address: u64,
    slices: Range<u64>,
) -> Option<(Page, u64)> {
    let word = |offset: u64| memory.word(address.checked_add(offset)?);
    let start = match layout.lists.start {
        PageStart::Distance(offset) => {
            let words = memory.half(address.checked_add(offset)?)?;
            address.checked_add(u64::from(words) * 8)?
        }
        PageStart::DistanceInBytes(offset) => address.checked_add(word(offset)?)?,
        PageStart::Field(offset) => word(offset)?,
        PageStart::Shifted | PageStart::AtMultiple => return None,
    };
    let fields = &layout.page;
    let block_bytes = word(fields.block_bytes)?;
    let half = |offset: u64| memory.half(address.checked_add(offset)?);
    let used = u64::from(half(fields.used)? & 0xffff);
    let counts = half(fields.capacity)?;
    let [capacity, reserved] = [counts & 0xffff, counts >> 16].map(u64::from);
    let page = Page {
        address,
        range: slices,
        start,
        block_bytes,
        capacity,
        used,
        lists: [
            word(fields.free)?,
            word(fields.local_free)?,
            word(fields.thread_free)? & !1,
        ],
        heap: 0,
        thread: word(fields.thread)? & !THREAD_FLAGS,
    };
    let end = start.checked_add(block_bytes.checked_mul(reserved)?)?;
    let is_sound = block_bytes >= 8
        && block_bytes.is_multiple_of(8)
        && capacity <= reserved
        && used <= capacity;
    is_sound.then_some((page, end))
}

/// Returns the page whose description is at `address`. `slice` is the slice that led to the page, and `slices` are all
/// slices of the page.
fn page(
    snapshot: &Snapshot,
    layout: &MapLayout,
    address: u64,
    slice: u64,
    slices: Range<u64>,
) -> Result<Page, &'static str> {
    let found = described(snapshot, layout, address, slices.clone());
    let (mut page, end) = found.ok_or("a page describes impossible blocks")?;
    let region = snapshot.region(page.start);
    if page.start / SLICE_BYTES != slice / SLICE_BYTES || end > slices.end || region.is_none() {
        return Err("a page is not where it should be");
    }
    // Inaccessible memory was not copied.
    page.range.end = region.map_or(0, CopiedRegion::end).min(slices.end);
    Ok(page)
}

/// Returns the page to which the entries of a first-level table lead in a running process.
pub fn page_of(
    memory: &impl Memory,
    layout: &MapLayout,
    entries: u64,
    address: u64,
) -> Option<Page> {
    let slice = address / SLICE_BYTES;
    let second = memory.word(entries.checked_add(slice / ENTRIES * 8)?)?;
    let page = memory.word(second.checked_add(slice % ENTRIES * 8)?)?;
    let (page, _) = described(memory, layout, page, 0..0)?;
    Some(page)
}
