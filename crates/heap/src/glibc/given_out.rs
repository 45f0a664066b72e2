//! Memory that glibc's malloc has handed out, according to its own counters, which are read while
//! the process runs, without a hold.
//!
//! Memory in use is the memory that the arenas obtained from the system, minus their top chunks and
//! the chunks in their free lists, plus the chunks that have their own mapping (`int_mallinfo` of
//! malloc.c). It is compared with the live blocks of a trace. A bound covers every difference that
//! can occur with a complete trace, so a larger difference means that the trace has missed calls.

use crate::capture::modules::module_info;
use crate::glibc::arenas::{Arena, Parameters, all, find_main, find_parameters};
use crate::glibc::free_lists::{binned, chunk_bytes};
use crate::glibc::layout::{
    ALIGNMENT, FLAGS, HEADER_BYTES, Layout, MIN_CHUNK_BYTES, TCACHE_SMALL_BINS,
};
use crate::live_memory::{LiveMemory, Memory};
use crate::snapshot::ModuleInfo;
use memhook_process::{ModuleImage, living_thread, mappings, threads};
use std::fs::File;
use std::time::{Duration, Instant};

/// Time limit of one reading. If a heap has more free chunks than can be followed in that time, the
/// heap is not compared.
const LONGEST_LOOK: Duration = Duration::from_millis(20);
/// Maximum number of attempts to follow a list that changes while it is read.
const TRIES: usize = 4;
/// Maximum number of free chunks that are followed.
const MOST_CHUNKS: u64 = 1 << 18;
const PAGE_BYTES: u64 = 4096;
/// Minimum size of a block that may have its own mapping because of its alignment. In that case,
/// the whole mapping counts.
const LARGE_BYTES: u64 = 32 << 10;
/// Default of `tcache_max_bytes` (larger by one since 2.42); a tunable can change it.
const USUAL_CACHE_BYTES: u64 = 1041;
/// Allowance for `heap_info` and `malloc_state` in an arena's first heap, a fencepost at each end,
/// and alignment.
const ARENA_BYTES: u64 = PAGE_BYTES;
/// Bytes that the C library allocates for a thread without going through a slot: the dtv and the
/// `tcache_perthread_struct`.
const THREAD_BYTES: u64 = 4096;

/// Memory that malloc has handed out at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenOut {
    /// Bytes of the chunks in use, including their headers and the chunks in thread caches.
    pub bytes: u64,
    /// Difference between two readings of the running process.
    pub spread_bytes: u64,
    /// Upper bound on the part of `bytes` that the caches of all threads hold.
    pub cached_bytes: u64,
    /// Upper bound on the bytes by which mapped chunks exceed their blocks.
    pub mapped_surplus_bytes: u64,
    /// Bytes that arenas and threads may take for themselves.
    pub own_bytes: u64,
}

/// Memory that blocks occupy in a heap of glibc's malloc.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes of the smallest chunks that can hold the blocks.
    pub bytes: u64,
    /// Upper bound on the excess of the real chunks.
    pub surplus_bytes: u64,
}

impl Footprint {
    /// Adds a block of this size.
    pub fn add(&mut self, address: u64, size: u64) {
        // The only overhead of a block is the size field of its chunk (`request2size`).
        let chunk = size.saturating_add(8).max(MIN_CHUNK_BYTES);
        let chunk = chunk.checked_next_multiple_of(ALIGNMENT).unwrap_or(chunk);
        self.bytes = self.bytes.saturating_add(chunk);
        // A remainder that is too small for a chunk stays with the block.
        let surplus = match size >= LARGE_BYTES {
            true => MIN_CHUNK_BYTES.max(1 << address.trailing_zeros().min(40)),
            false => MIN_CHUNK_BYTES - ALIGNMENT,
        };
        self.surplus_bytes = self.surplus_bytes.saturating_add(surplus);
    }
}

/// Reads the memory that malloc has handed out. Returns `None` if the process does not use glibc's
/// malloc, or if its lists cannot be followed while they change.
pub fn given_out(pid: i32, images: &[ModuleImage]) -> Option<GivenOut> {
    // Blocks of another allocator or of a second C library do not appear in this C library's
    // counters.
    let has_malloc =
        |image: &&ModuleImage| !image.is_loader && image.facts.exported("malloc").is_some();
    let mut with_malloc = images.iter().filter(has_malloc);
    let libc = with_malloc.next().filter(|image| image.is_libc)?;
    if with_malloc.next().is_some() {
        return None;
    }
    let libc = module_info(libc);
    libc.glibc_minor?;
    let reader = living_thread(pid);
    let memory = File::open(memhook_process::proc_path(reader, "mem")).ok()?;
    let brk = mappings(reader).ok()?;
    let brk = brk.iter().filter(|mapping| mapping.path == "[heap]");
    let brk: Vec<u64> = brk.map(|mapping| mapping.start).collect();
    let threads = threads(pid).ok()?.len() as u64;
    let looks = (0..TRIES).filter_map(|_| {
        let memory = LiveMemory::new(&memory, Instant::now() + LONGEST_LOOK);
        look(&memory, &libc, &brk)
    });
    let (first, last) = two(looks)?;
    Some(GivenOut {
        bytes: last.bytes,
        spread_bytes: first.bytes.abs_diff(last.bytes),
        cached_bytes: last.cached_bytes.saturating_mul(threads),
        mapped_surplus_bytes: last.mapped_chunks.saturating_mul(2 * PAGE_BYTES),
        own_bytes: last.arenas * ARENA_BYTES + threads * THREAD_BYTES,
    })
}

fn two<T>(mut all: impl Iterator<Item = T>) -> Option<(T, T)> {
    Some((all.next()?, all.next()?))
}

/// Result of one reading.
struct Look {
    bytes: u64,
    arenas: u64,
    mapped_chunks: u64,
    /// Upper bound on the contents of one thread's cache.
    cached_bytes: u64,
}

fn look(memory: &LiveMemory<'_>, libc: &ModuleInfo, brk: &[u64]) -> Option<Look> {
    let mut layouts = Layout::candidates(libc.glibc_minor?);
    let (layout, main) = layouts.find_map(|layout| {
        let main = find_main(memory, &layout, libc)?;
        Some((layout, main))
    })?;
    let parameters = find_parameters(memory, &layout, libc, brk)?;
    let (arenas, broken) = all(memory, &layout, main);
    if broken.is_some() {
        return None;
    }
    let mut bytes = parameters.mmapped_bytes;
    for arena in &arenas {
        bytes = bytes.checked_add(in_use(memory, &layout, arena)?)?;
    }
    (!memory.is_late()).then_some(Look {
        bytes,
        arenas: arenas.len() as u64,
        mapped_chunks: parameters.mmapped_chunks,
        cached_bytes: cached_bytes(&parameters),
    })
}

/// Returns `system_mem` minus the free memory.
fn in_use(memory: &impl Memory, layout: &Layout, arena: &Arena) -> Option<u64> {
    if arena.is_unused(layout) {
        return Some(arena.system_bytes);
    }
    let top = memory.word(arena.top.checked_add(8)?)? & !FLAGS;
    let (_, binned, damaged) = binned(memory, layout, arena, MOST_CHUNKS);
    if !damaged.is_empty() {
        return None;
    }
    let fast = fast_bytes(memory, layout, arena)?;
    let free = top.checked_add(binned)?.checked_add(fast)?;
    arena.system_bytes.checked_sub(free)
}

fn fast_bytes(memory: &impl Memory, layout: &Layout, arena: &Arena) -> Option<u64> {
    let (mut bytes, mut chunks) = (0, 0);
    for &head in &arena.fastbins {
        let mut chunk = head;
        while chunk != 0 {
            let entry = chunk.checked_add(HEADER_BYTES)?;
            chunks += 1;
            if chunks > MOST_CHUNKS {
                return None;
            }
            bytes += chunk_bytes(memory, entry)?;
            chunk = layout.unmangle(entry, memory.word(entry)?);
        }
    }
    Some(bytes)
}

/// Returns the bytes in a cache whose bins are all full.
fn cached_bytes(parameters: &Parameters) -> u64 {
    let small = (0..TCACHE_SMALL_BINS).map(|bin| bin * ALIGNMENT + MIN_CHUNK_BYTES);
    let small: u64 = small
        .filter(|&chunk| chunk - 8 <= parameters.cache_bytes)
        .sum();
    // Since 2.42, tunables can extend the cache to larger blocks, in bins that each end at a power
    // of two.
    let large: u64 = match parameters.cache_bytes > USUAL_CACHE_BYTES {
        true => (11..=22)
            .map(|power| 1 << power)
            .filter(|half| half / 2 < parameters.cache_bytes)
            .sum(),
        false => 0,
    };
    (small + large).saturating_mul(parameters.cache_count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_takes_a_chunk() {
        let of = |address, size| {
            let mut footprint = Footprint::default();
            footprint.add(address, size);
            (footprint.bytes, footprint.surplus_bytes)
        };
        assert_eq!(of(0x1010, 0), (32, 16));
        assert_eq!(of(0x1010, 24), (32, 16));
        assert_eq!(of(0x1010, 25), (48, 16));
        assert_eq!(of(0x1010, 40_000), (40_016, 32));
        // The block may be in its own mapping, which may exceed it by its alignment.
        assert_eq!(of(0x20_0000, 4 << 20), ((4 << 20) + 16, 2 << 20));
        assert_eq!(of(0, u64::MAX).0, u64::MAX);
    }

    #[test]
    fn a_cache_of_the_usual_size_holds_less_than_a_quarter_of_a_mebibyte() {
        let usual = Parameters {
            cache_bytes: 1032,
            cache_count: 7,
            ..Parameters::default()
        };
        assert_eq!(cached_bytes(&usual), 240_128);
        assert_eq!(cached_bytes(&Parameters::default()), 0);
    }
}
