//! Finds and verifies the arenas without debug symbols.
//!
//! An empty bin of `malloc_state` points to itself (`malloc_init_state` of malloc.c), and most of
//! the 127 bins of an arena in use are empty. Nothing else in libc's data has that pattern.

use crate::glibc::layout::{BINS, FLAGS, HEADER_BYTES, Layout, NEWEST, TCACHE_SMALL_BINS};
use crate::live_memory::Memory;
use crate::snapshot::{ModuleInfo, Snapshot};
use std::ops::Range;

/// Minimum number of self-pointing bins that identify an arena.
const ENOUGH_EMPTY_BINS: u64 = 16;
/// Maximum number of large bins of a thread cache (since 2.42). MAX_TCACHE_SIZE of malloc.c limits
/// the size of their chunks.
const MOST_LARGE_BINS: u64 = 12;
const MOST_CACHED_BYTES: u64 = (4 << 20) + 1;
/// Maximum distance of `top` from the start of the state. Before 2.43, the fastbins and their flag
/// precede it.
const MOST_STATE_BYTES_BEFORE_TOP: u64 = 88;
/// Number of arenas above which the list is assumed to loop through garbage.
const MAX_ARENAS: usize = 65_536;

/// One `malloc_state`.
#[derive(Clone, Debug)]
pub struct Arena {
    /// Address of the structure.
    pub address: u64,
    /// True if its lock is taken.
    pub locked: bool,
    /// The chunk at the end of the arena.
    pub top: u64,
    /// Bytes that the arena got from the system.
    pub system_bytes: u64,
    /// Heads of the fast lists.
    pub fastbins: Vec<u64>,
}

impl Arena {
    fn read(memory: &impl Memory, layout: &Layout, address: u64) -> Option<Arena> {
        let word = |offset| memory.word(address.checked_add(offset)?);
        Some(Arena {
            address,
            locked: memory.half(address)? != 0,
            top: word(layout.top)?,
            system_bytes: word(layout.system_mem())?,
            fastbins: (0..layout.fastbins)
                .map(|i| word(layout.first_fastbin() + i * 8))
                .collect::<Option<_>>()?,
        })
    }

    /// Returns the address of bin `i` viewed as a chunk (`bin_at` of malloc.c).
    pub fn bin(&self, layout: &Layout, i: u64) -> u64 {
        bin(layout, self.address, i)
    }

    /// Returns true if the arena has never allocated memory: `top` is then the unsorted bin
    /// (`initial_top`).
    pub fn is_unused(&self, layout: &Layout) -> bool {
        self.top == 0 || self.top == self.bin(layout, 1)
    }
}

fn bin(layout: &Layout, arena: u64, i: u64) -> u64 {
    arena
        .wrapping_add(layout.bins())
        .wrapping_add((i.wrapping_sub(1)) * 16)
        .wrapping_sub(HEADER_BYTES)
}

/// Returns the number of bins that point to themselves; `None` if a bin contains an impossible
/// value.
fn empty_bins(memory: &impl Memory, layout: &Layout, address: u64) -> Option<u64> {
    let mut empty = 0;
    for i in 1..BINS {
        let at = bin(layout, address, i);
        // The program's data can forge this address, even one at the very end of the address space.
        let word = |offset| memory.word(at.wrapping_add(offset));
        let (forward, back) = (word(16)?, word(24)?);
        if forward == at && back == at {
            empty += 1;
        } else if forward % 16 != 0 || back % 16 != 0 || forward < 4096 || back < 4096 {
            return None;
        }
    }
    Some(empty)
}

/// Returns the address in libc's data at which a `malloc_state` would have the most empty bins.
fn emptiest(memory: &impl Memory, layout: &Layout, libc: &ModuleInfo) -> Option<u64> {
    let mut best = None;
    for &Range { start, end } in &libc.data {
        let last = end.saturating_sub(layout.arena_bytes());
        let mut at = start;
        while at <= last {
            let found = empty_bins(memory, layout, at).filter(|&n| n >= ENOUGH_EMPTY_BINS);
            if let Some(empty) = found
                && best.is_none_or(|(most, _)| empty > most)
            {
                best = Some((empty, at));
            }
            at += 8;
        }
    }
    best.map(|(_, at)| at)
}

/// Returns the address of the main arena's bins in a release whose `malloc_state` is unknown. `top`
/// precedes the bins, and the totals follow them.
pub fn find_bins(snapshot: &Snapshot, libc: &ModuleInfo) -> Option<Range<u64>> {
    let layout = Layout::candidates(NEWEST).next()?;
    let state = emptiest(snapshot, &layout, libc)?;
    let before = MOST_STATE_BYTES_BEFORE_TOP;
    Some(state.saturating_sub(before)..state + layout.arena_bytes())
}

/// Finds the main arena in the data of libc.
pub fn find_main(memory: &impl Memory, layout: &Layout, libc: &ModuleInfo) -> Option<Arena> {
    let arena = Arena::read(memory, layout, emptiest(memory, layout, libc)?)?;
    let top_fits = arena.is_unused(layout)
        || memory
            .word(arena.top.checked_add(8)?)
            .is_some_and(|size| size & !FLAGS <= arena.system_bytes);
    let next_fits = memory
        .word(arena.address + layout.next())
        .is_some_and(|n| n != 0);
    (top_fits && next_fits).then_some(arena)
}

/// Returns all arenas, the main one first. The list is circular (`malloc_state.next`). If it is
/// broken, the second value says where.
pub fn all(memory: &impl Memory, layout: &Layout, main: Arena) -> (Vec<Arena>, Option<String>) {
    let first = main.address;
    let mut at = first;
    let mut arenas = vec![main];
    loop {
        let Some(next) = memory.word(at + layout.next()) else {
            return (
                arenas,
                Some(format!("the arena list breaks off at {at:#x}")),
            );
        };
        if next == first {
            return (arenas, None);
        }
        let sound = empty_bins(memory, layout, next).is_some();
        let arena = Arena::read(memory, layout, next).filter(|_| sound);
        let known = arenas.iter().any(|a| a.address == next);
        match arena {
            Some(arena) if !known && arenas.len() < MAX_ARENAS => arenas.push(arena),
            _ => {
                let broken = format!(
                    "the arena list leads from {at:#x} to {next:#x}, which is not an arena"
                );
                return (arenas, Some(broken));
            }
        }
        at = next;
    }
}

/// The allocator's parameters and counters: `mp_` (struct malloc_par).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// Number of chunks that have their own mapping.
    pub mmapped_chunks: u64,
    /// Bytes of these mappings.
    pub mmapped_bytes: u64,
    /// First address that brk returned.
    pub brk_start: u64,
    /// Size of `top` above which free() of a large chunk returns memory to the system
    /// (M_TRIM_THRESHOLD).
    pub trim_threshold: u64,
    /// Bytes kept at the top of the main arena when it is trimmed (M_TOP_PAD).
    pub top_pad: u64,
    /// Exclusive upper bound on the size of chunks in a thread's cache.
    pub cache_bytes: u64,
    /// Maximum number of chunks of one size in a thread's cache.
    pub cache_count: u64,
}

impl Parameters {
    /// Returns true if malloc counts the same number of mapped chunks and bytes as were found.
    pub(crate) fn agree_with(&self, layout: &Layout, (chunks, bytes): (u64, u64)) -> bool {
        let surplus = self.mmapped_bytes.checked_sub(bytes);
        let is_explained = |surplus: u64| match layout.resize_surplus {
            0 => surplus == 0,
            each => surplus.is_multiple_of(each),
        };
        self.mmapped_chunks == chunks && surplus.is_some_and(is_explained)
    }
}

/// DEFAULT_TRIM_THRESHOLD, and DEFAULT_TOP_PAD.
pub const DEFAULT_TRIM_BYTES: u64 = 128 << 10;

/// Returns the addresses at which the brk(2) areas begin.
pub fn brk_starts(snapshot: &Snapshot) -> Vec<u64> {
    let areas = snapshot.meta.areas.iter();
    let areas = areas.filter(|area| area.kind == crate::AreaKind::Brk);
    areas.map(|area| area.start).collect()
}

/// Finds `mp_` in libc's data by its last fields: `mmapped_mem, max_mmapped_mem, sbrk_base,
/// tcache_bins, tcache_max_bytes, tcache_count`. In 2.42, `tcache_bins` is called
/// `tcache_small_bins`, and `tcache_max_bytes` is larger by one. Tunables can raise the latter up
/// to 4 MiB. `brk` has the addresses at which the brk(2) areas begin.
pub fn find_parameters(
    memory: &impl Memory,
    layout: &Layout,
    libc: &ModuleInfo,
    brk: &[u64],
) -> Option<Parameters> {
    for &Range { start, end } in &libc.data {
        let mut at = start + 64;
        while at + 40 <= end {
            let word = |offset| memory.word(at + offset).unwrap_or(u64::MAX);
            let base = word(0);
            let by_base = base != 0 && brk.iter().any(|&b| base.wrapping_sub(b) < 16);
            let by_tcache = word(8) == TCACHE_SMALL_BINS && matches!(word(16), 1032 | 1041);
            if (by_base || by_tcache)
                && (base == 0 || base >= 4096)
                && word(8) <= TCACHE_SMALL_BINS + MOST_LARGE_BINS
                && word(16) <= MOST_CACHED_BYTES
                && word(24) <= 65_535
            {
                let (mmapped, most) = (memory.word(at - 16)?, memory.word(at - 8)?);
                let chunks = memory.half(at - 16 - layout.n_mmaps_back)?;
                let is_sound = match layout.resize_surplus {
                    0 => mmapped % 4096 == 0 && (chunks == 0) == (mmapped == 0),
                    surplus => mmapped % surplus == 0 && (chunks == 0 || mmapped != 0),
                };
                if mmapped <= most && is_sound {
                    let first = at - 16 - layout.parameters_back;
                    let of_trimming = |offset| memory.word(first.checked_add(offset)?);
                    return Some(Parameters {
                        mmapped_chunks: u64::from(chunks),
                        mmapped_bytes: mmapped,
                        brk_start: base,
                        trim_threshold: of_trimming(0).unwrap_or(DEFAULT_TRIM_BYTES),
                        cache_bytes: word(16),
                        cache_count: word(24),
                        top_pad: of_trimming(8).unwrap_or(DEFAULT_TRIM_BYTES),
                    });
                }
            }
            at += 8;
        }
    }
    None
}
