//! The heaps of glibc's arenas in a process that is not held, found by their headers alone.

use crate::glibc::layout::{HEAP_ALIGNMENT, HEAP_MAX_BYTES};
use crate::ranges::Runs;
use memhook_process::MappingUse;
use std::collections::BTreeMap;

/// Header at the start of every heap of an arena, except in the main arena (arena.c, `heap_info`).
/// A heap starts at a multiple of HEAP_MAX_SIZE, which is at least [`HEAP_ALIGNMENT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeapHeader {
    /// Address of the arena, which follows the header of its first heap.
    arena: u64,
    /// Address of the previous heap of the arena.
    before: u64,
    bytes: u64,
}

/// Number of words at the start of a heap that are read.
const HEADER_WORDS: usize = 3;
/// Upper bound on `sizeof (heap_info)` in any version.
const MOST_HEADER_BYTES: u64 = 128;
/// Maximum number of mappings that get a name. Each name takes a system call.
const MOST_CANDIDATES: usize = 1 << 14;
const PAGE_BYTES: u64 = 4096;

/// Returns the ranges in which arenas keep chunks, sorted by address. `resident` lists the resident
/// pages of private anonymous mappings. Only these pages are read, so reading does not populate
/// further pages of the process. `words` reads from an address.
pub fn arena_heaps(
    mappings: &[MappingUse],
    resident: &Runs,
    mut words: impl FnMut(u64) -> Option<[u64; HEADER_WORDS]>,
) -> Runs {
    // Pages are enumerated rather than mappings, because a program may have reserved terabytes.
    let places = resident.iter().flat_map(|run| {
        let first = run.start.next_multiple_of(HEAP_ALIGNMENT);
        (first..run.end).step_by(HEAP_ALIGNMENT as usize)
    });
    let candidates = places.filter_map(|place| {
        let at = mappings.partition_point(|used| used.mapping.end <= place);
        // A heap may consist of several mappings, if parts of it were once advised, locked or
        // watched.
        let is_own = |used: &&MappingUse| used.mapping.path.is_empty() && !used.mapping.shared;
        let mut end = place;
        let parts = mappings[at..].iter().take_while(is_own);
        for MappingUse { mapping, .. } in parts {
            if mapping.start > end || end - place >= HEAP_MAX_BYTES {
                break;
            }
            end = mapping.end;
        }
        (end > place).then_some((place, end))
    });
    let mut heaps = BTreeMap::new();
    for (place, end) in candidates.take(MOST_CANDIDATES) {
        let Some([arena, before, bytes]) = words(place) else {
            continue;
        };
        let most = HEAP_MAX_BYTES.min(end - place);
        if (PAGE_BYTES..=most).contains(&bytes) && bytes.is_multiple_of(PAGE_BYTES) {
            let header = HeapHeader {
                arena,
                before,
                bytes,
            };
            heaps.insert(place, header);
        }
    }
    // Every heap either is the first of its arena, or points to another heap of the same arena.
    let is_first = |place: u64, heap: &HeapHeader| {
        heap.before == 0 && heap.arena > place && heap.arena - place <= MOST_HEADER_BYTES
    };
    let is_one = |place: u64, heap: &HeapHeader| {
        let first = heap.arena & !(PAGE_BYTES - 1);
        let has_first = heaps
            .get(&first)
            .is_some_and(|found| is_first(first, found) && found.arena == heap.arena);
        let before = heaps.get(&heap.before);
        has_first && (place == first || before.is_some_and(|found| found.arena == heap.arena))
    };
    let found = heaps.iter().filter(|(place, heap)| is_one(**place, heap));
    found
        .map(|(place, heap)| *place..place + heap.bytes)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use memhook_process::{MemoryUse, parse_maps};

    const HEAP: u64 = HEAP_MAX_BYTES;

    fn found(maps: &str, resident: &Runs, memory: &[(u64, [u64; 3])]) -> Runs {
        let mappings: Vec<MappingUse> = parse_maps(maps)
            .into_iter()
            .map(|mapping| MappingUse {
                mapping,
                memory: MemoryUse::default(),
            })
            .collect();
        arena_heaps(&mappings, resident, |place| {
            assert!(
                resident.iter().any(|run| run.contains(&place)),
                "{place:#x} is not in memory"
            );
            let at = memory.iter().find(|(at, _)| *at == place);
            at.map(|(_, words)| *words)
        })
    }

    #[test]
    fn an_arena_has_several_heaps() {
        let (one, two, other) = (4 * HEAP, 5 * HEAP, 9 * HEAP);
        let arena = one + 48;
        // The kernel shows the first two heaps as one mapping.
        let maps = format!(
            "{one:x}-{:x} rw-p 0 00:00 0\n{other:x}-{:x} rw-p 0 00:00 0\n",
            two + 0x20_0000,
            other + 0x10_0000
        );
        let resident = vec![one..one + 0x3000, two..two + 0x1000, other..other + 0x1000];
        let memory = [
            (one, [arena, 0, HEAP]),
            (two, [arena, one, 0x1f_f000]),
            (other, [other + 32, 0, 0x2000]),
        ];
        let heaps = [one..two, two..two + 0x1f_f000, other..other + 0x2000];
        assert_eq!(found(&maps, &resident, &memory), heaps);
        // Skips pages that the kernel would first have to load.
        let less = vec![one..one + 0x3000, other + 0x1000..other + 0x2000];
        assert_eq!(found(&maps, &less, &memory), heaps[..1]);
    }

    #[test]
    fn a_heap_may_be_several_mappings() {
        let at = 4 * HEAP;
        let maps = format!(
            "{at:x}-{:x} rw-p 0 00:00 0\n{:x}-{:x} rw-p 0 00:00 0\n{:x}-{:x} ---p 0 00:00 0\n",
            at + 0x3000,
            at + 0x3000,
            at + 0x8000,
            at + 0x8000,
            at + HEAP
        );
        let resident = vec![at..at + 0x8000];
        let header = [at + 48, 0, 0x8000];
        let heap = at..at + 0x8000;
        assert_eq!(found(&maps, &resident, &[(at, header)]), [heap]);
    }

    #[test]
    fn other_memory_is_no_heap() {
        let at = 4 * HEAP;
        let maps = format!(
            "{at:x}-{:x} rw-p 0 00:00 0\n{:x}-{:x} rw-p 0 fe:01 4 /data/x\n",
            at + 2 * HEAP,
            at + 4 * HEAP,
            at + 5 * HEAP
        );
        let resident = vec![at..at + 0x1000, at + HEAP..at + HEAP + 0x1000];
        for words in [
            [0, 0, 0],
            // The header names an arena at another address, and no heap leads to that address.
            [at - HEAP + 48, 0, HEAP],
            [at - HEAP + 48, at - HEAP, HEAP],
            // These are sizes that no heap has.
            [at + 48, 0, 0],
            [at + 48, 0, HEAP + 0x1000],
            [at + 48, 0, 0x1800],
            [at + 48, at, HEAP],
            [at + 4096, 0, HEAP],
            [u64::MAX, u64::MAX, u64::MAX],
        ] {
            let memory = [(at, words)];
            assert_eq!(found(&maps, &resident, &memory), [], "{words:x?}");
            // Another heap claims to belong to the first one's arena.
            let memory = [(at, words), (at + HEAP, [words[0], at, HEAP])];
            assert_eq!(found(&maps, &resident, &memory), [], "{words:x?}");
        }
        // The heap reaches past the end of its mapping.
        let maps = format!("{at:x}-{:x} rw-p 0 00:00 0\n", at + 0x2000);
        let memory = [(at, [at + 48, 0, 0x3000])];
        assert_eq!(found(&maps, &resident, &memory), []);
    }
}
