//! Free chunks whose headers mark them as used: those in thread caches and fast lists. Also
//! computes sums over the bins.

use crate::arch::native;
use crate::glibc::arenas::Arena;
use crate::glibc::layout::{BINS, FLAGS, HEADER_BYTES, Layout, MIN_CHUNK_BYTES};
use crate::live_memory::Memory;
use crate::snapshot::Snapshot;
use rustc_hash::FxHashMap;

/// Maximum distance from a thread's pointer within which libc's static TLS is searched.
const TLS_BYTES: u64 = 256 * 1024;

/// Kind of list that holds a free chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kept {
    /// In the cache of a thread.
    Tcache,
    /// In a fast list of an arena.
    Fast,
}

/// Free chunks by the address of their header.
#[derive(Default, Debug)]
pub struct FreeLists {
    /// Chunks and their kinds of list, sorted.
    pub chunks: Vec<(u64, Kept)>,
    /// User addresses of the thread caches.
    pub caches: Vec<u64>,
    /// Distance from a thread's TCB down to the pointer to its cache; `None` if no cache was found.
    pub cache_distance: Option<u64>,
    /// Damaged lists: address, and description of the damage.
    pub damaged: Vec<(u64, String)>,
}

/// Reads the caches of all threads and the fast lists of all arenas.
pub fn read(snapshot: &Snapshot, layout: &Layout, arenas: &[Arena]) -> FreeLists {
    let mut lists = caches(snapshot, layout);
    // Each chunk is in at most one list, so a list with more chunks than could exist has a cycle.
    let mut left = most_chunks(snapshot);
    for cache in lists.caches.clone() {
        for bin in 0..layout.tcache_bins {
            let (count, mut entry) = cache_bin(snapshot, layout, cache, bin).unwrap_or((0, 0));
            // The last chunk of a list has a null link.
            let most = if layout.counts_slots { u64::MAX } else { count };
            for _ in 0..most {
                if entry == 0 {
                    break;
                }
                if left == 0 || !is_of_bin(snapshot, layout, bin, entry) {
                    let what = format!("tcache bin {bin}: {entry:#x} is not a chunk of that size");
                    lists.damaged.push((entry, what));
                    break;
                }
                left -= 1;
                lists.chunks.push((entry - HEADER_BYTES, Kept::Tcache));
                let link = snapshot.word(entry).unwrap_or(0);
                entry = layout.unmangle(entry, link);
            }
        }
    }
    for arena in arenas {
        for (i, &head) in arena.fastbins.iter().enumerate() {
            let mut chunk = head;
            while chunk != 0 {
                let entry = chunk.wrapping_add(HEADER_BYTES);
                let fits = chunk_bytes(snapshot, entry) == Some(i as u64 * 16 + 32);
                if !fits || left == 0 {
                    let what = format!(
                        "fast list {i} of the arena at {:#x}: {chunk:#x} is not a chunk of that size",
                        arena.address
                    );
                    lists.damaged.push((chunk, what));
                    break;
                }
                left -= 1;
                lists.chunks.push((chunk, Kept::Fast));
                chunk = layout.unmangle(entry, snapshot.word(entry).unwrap_or(0));
            }
        }
    }
    lists.chunks.sort_unstable();
    lists.chunks.dedup_by_key(|c| c.0);
    lists
}

/// Returns the maximum number of chunks that fit into the copied memory.
pub(super) fn most_chunks(snapshot: &Snapshot) -> u64 {
    snapshot.copied_bytes() / MIN_CHUNK_BYTES + 1
}

pub(super) fn chunk_bytes(memory: &impl Memory, user: u64) -> Option<u64> {
    if !user.is_multiple_of(16) {
        return None;
    }
    Some(memory.word(user.checked_sub(8)?)? & !FLAGS)
}

fn is_of_bin(snapshot: &Snapshot, layout: &Layout, bin: u64, entry: u64) -> bool {
    chunk_bytes(snapshot, entry).is_some_and(|bytes| layout.is_of_bin(bin, bytes))
}

/// Returns the count and the first entry of a bin of a thread cache.
fn cache_bin(snapshot: &Snapshot, layout: &Layout, cache: u64, bin: u64) -> Option<(u64, u64)> {
    let width = layout.tcache_count;
    let bytes = snapshot.bytes(cache + bin * width, width)?;
    let count = bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b));
    let entry = snapshot.word(cache + layout.tcache_bins * width + bin * 8)?;
    Some((count, entry))
}

/// Returns true if a `tcache_perthread_struct` may be here. One bin may be in the middle of a
/// change.
fn is_cache(snapshot: &Snapshot, layout: &Layout, user: u64) -> bool {
    // A remainder of 16 bytes is too small for a chunk, and stays with the chunk before it.
    let chunk = layout.tcache_chunk();
    if chunk_bytes(snapshot, user).is_none_or(|size| size != chunk && size != chunk + 16) {
        return false;
    }
    let bins: Option<Vec<(u64, u64)>> = (0..layout.tcache_bins)
        .map(|bin| cache_bin(snapshot, layout, user, bin))
        .collect();
    let Some(bins) = bins else { return false };
    let has_sound_heads = bins
        .iter()
        .zip(0..)
        .all(|(&(_, entry), bin)| entry == 0 || is_of_bin(snapshot, layout, bin, entry));
    // In an empty bin, all places are free, and every bin has the same number of places.
    let empty = if layout.counts_slots {
        bins.iter().map(|bin| bin.0).max().unwrap_or(0)
    } else {
        0
    };
    let odd = bins
        .iter()
        .filter(|(count, entry)| (*count == empty) != (*entry == 0))
        .count();
    let is_full = layout.counts_slots && bins.iter().all(|bin| bin.1 != 0);
    has_sound_heads && (odd <= 1 || is_full)
}

/// Finds the caches. Each thread has the pointer to its own cache at the same distance from its TCB
/// (a `__thread` variable of libc, in static TLS). If a thread's word at this distance is not such
/// a pointer, its cache cannot be read and its free chunks would look used, so this is reported.
fn caches(snapshot: &Snapshot, layout: &Layout) -> FreeLists {
    let threads = &snapshot.meta.threads;
    let mut votes: FxHashMap<u64, usize> = FxHashMap::default();
    for thread in threads {
        let Some(region) = snapshot.region(thread.fs_base) else {
            continue;
        };
        let memory = region.start..region.end();
        let storage = native::static_storage(thread.fs_base & !7, TLS_BYTES, memory);
        for at in storage.step_by(8) {
            let Some(word) = snapshot.word(at) else {
                continue;
            };
            if word >= 4096 && is_cache(snapshot, layout, word) {
                *votes.entry(thread.fs_base.wrapping_sub(at)).or_default() += 1;
            }
        }
    }
    // Among equals, the distance nearest to the TCB wins.
    let best = votes.into_iter().max_by_key(|&(distance, count)| {
        (count, std::cmp::Reverse((distance as i64).unsigned_abs()))
    });
    let libc = snapshot.libc();
    let mut lists = FreeLists::default();
    let Some((distance, _)) = best else {
        return lists;
    };
    lists.cache_distance = Some(distance);
    for thread in threads {
        let at = thread.fs_base.wrapping_sub(distance);
        match snapshot.word(at) {
            Some(0) => {}
            // The thread has not freed anything yet (2.43, `__tcache_dummy`).
            Some(word) if libc.is_some_and(|m| (m.start..m.end).contains(&word)) => {}
            Some(word) if is_cache(snapshot, layout, word) => lists.caches.push(word),
            _ => {
                let what = format!("the malloc cache of thread {} cannot be read", thread.tid);
                lists.damaged.push((at, what));
            }
        }
    }
    lists.caches.sort_unstable();
    lists.caches.dedup();
    lists
}

/// Returns the chunks and bytes in the unsorted, small and large bins of an arena. `most` is the
/// upper bound on the number of chunks. The error is the address at which a list is broken.
pub fn binned(
    memory: &impl Memory,
    layout: &Layout,
    arena: &Arena,
    most: u64,
) -> (u64, u64, Vec<(u64, String)>) {
    let (mut chunks, mut bytes) = (0, 0u64);
    let mut damaged = Vec::new();
    for i in 1..BINS {
        let bin = arena.bin(layout, i);
        let mut before = bin;
        let mut at = memory.word(bin + 16).unwrap_or(bin);
        while at != bin {
            let size = chunk_bytes(memory, at.wrapping_add(HEADER_BYTES));
            let back = memory.word(at.wrapping_add(24));
            let (Some(size), true, true) = (size, back == Some(before), chunks < most) else {
                let what = format!(
                    "bin {i} of the arena at {:#x}: {at:#x} does not point back to {before:#x}",
                    arena.address
                );
                damaged.push((at, what));
                break;
            };
            chunks += 1;
            bytes = bytes.saturating_add(size);
            before = at;
            at = memory.word(at + 16).unwrap_or(bin);
        }
    }
    (chunks, bytes, damaged)
}
