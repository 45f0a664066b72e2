//! The structures of glibc's malloc/malloc.c by version, on x86-64. They were taken from the sources of the releases
//! 2.26 to 2.44. Offsets are in bytes.

/// Chunk header: `mchunk_prev_size`, `mchunk_size`.
pub const HEADER_BYTES: u64 = 16;
/// MALLOC_ALIGNMENT.
pub const ALIGNMENT: u64 = 16;
/// MINSIZE.
pub const MIN_CHUNK_BYTES: u64 = 32;
/// The flag bits of `mchunk_size`.
pub const PREV_INUSE: u64 = 1;
/// Flag of a chunk that has its own mapping.
pub const IS_MMAPPED: u64 = 2;
/// Flag of a chunk outside the main arena.
pub const NON_MAIN_ARENA: u64 = 4;
/// All flag bits.
pub const FLAGS: u64 = 7;
/// HEAP_MAX_SIZE: 2 * DEFAULT_MMAP_THRESHOLD_MAX. Heaps of arenas other than the main one are
/// aligned to it.
pub const HEAP_MAX_BYTES: u64 = 64 << 20;
/// Sizes of heaps if arenas use huge pages (glibc.malloc.hugetlb, `heap_max_size` of arena.c): four pages of 2 MiB, or
/// four of 1 GiB.
const HUGE_HEAP_BYTES: [u64; 2] = [8 << 20, 4 << 30];
/// Alignment of every heap of an arena, regardless of the heap's size.
pub const HEAP_ALIGNMENT: u64 = HUGE_HEAP_BYTES[0];
/// All sizes that the heaps of a process may have, the usual one first.
pub const HEAP_SIZES: [u64; 3] = [HEAP_MAX_BYTES, HUGE_HEAP_BYTES[0], HUGE_HEAP_BYTES[1]];
/// NFASTBINS.
pub const FASTBINS: u64 = 10;
/// NBINS; bin 0 does not exist, bin 1 is the unsorted one.
pub const BINS: u64 = 128;
/// TCACHE_SMALL_BINS: number of bins for one size each. Every later bin contains sizes up to the next power of two.
pub const TCACHE_SMALL_BINS: u64 = 64;
/// The largest chunk of the small bins (`tidx2csize (TCACHE_SMALL_BINS - 1)`).
const TCACHE_SMALL_BYTES: u64 = (TCACHE_SMALL_BINS - 1) * ALIGNMENT + MIN_CHUNK_BYTES;
/// The newest release whose sources were read.
pub const NEWEST: u32 = 44;

/// Differences between versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// `malloc_state.top`, after `fastbinsY` if there is one. 2.27 moved the flag "may have fast
    /// chunks" out of `flags` into a separate word (`have_fastchunks`); 2.43 has neither fast lists
    /// nor this flag.
    pub top: u64,
    /// Number of fast lists.
    pub fastbins: u64,
    /// `sizeof (heap_info)`. 2.35 added `pagesize`.
    pub heap_info: u64,
    /// Width of `tcache_perthread_struct.counts[i]`: `char` until 2.29, `uint16_t` since 2.30.
    pub tcache_count: u64,
    /// TCACHE_MAX_BINS; 2.42 added twelve for large chunks.
    pub tcache_bins: u64,
    /// 2.42 counts the free slots of a bin (`num_slots`); older versions count its chunks (`counts`).
    pub counts_slots: bool,
    /// Lists of fast and tcache chunks are mangled with their own address (PROTECT_PTR, 2.32).
    pub safe_linking: bool,
    /// Distance from `malloc_par.mmapped_mem` back to `n_mmaps`. 2.35 inserted `hp_flags` before
    /// `mmapped_mem`, and with it padding after the four counters.
    pub n_mmaps_back: u64,
    /// Distance from `malloc_par.mmapped_mem` back to the first field, `trim_threshold`. 2.35
    /// inserted `thp_pagesize`, `hp_pagesize` and `hp_flags` between them.
    pub parameters_back: u64,
    /// Bytes between the end of a chunk that has its own mapping and the end of that mapping. 2.43 leaves space for the
    /// next header there, as it does in an arena (`mmap_set_chunk`).
    pub mapped_foot: u64,
    /// Bytes by which `mmapped_mem` becomes too large each time a mapped chunk is resized in place.
    /// `mremap_chunk` of 2.43 adds the new size of the mapping minus the old size of the chunk,
    /// which does not include the foot.
    pub resize_surplus: u64,
}

/// Each layout with the first release that has it, newest first.
const LAYOUTS: [(u32, Layout); 7] = {
    let first = Layout {
        top: 88,
        fastbins: FASTBINS,
        heap_info: 32,
        tcache_count: 1,
        tcache_bins: TCACHE_SMALL_BINS,
        counts_slots: false,
        safe_linking: false,
        n_mmaps_back: 16,
        parameters_back: 56,
        mapped_foot: 0,
        resize_surplus: 0,
    };
    let of_27 = Layout { top: 96, ..first };
    let of_30 = Layout {
        tcache_count: 2,
        ..of_27
    };
    let of_32 = Layout {
        safe_linking: true,
        ..of_30
    };
    let of_35 = Layout {
        heap_info: 48,
        n_mmaps_back: 20,
        parameters_back: 80,
        ..of_32
    };
    let of_42 = Layout {
        tcache_bins: TCACHE_SMALL_BINS + 12,
        counts_slots: true,
        ..of_35
    };
    let of_43 = Layout {
        top: 8,
        fastbins: 0,
        mapped_foot: HEADER_BYTES,
        resize_surplus: HEADER_BYTES,
        ..of_42
    };
    [
        (43, of_43),
        (42, of_42),
        (35, of_35),
        (32, of_32),
        (30, of_30),
        (27, of_27),
        (26, first),
    ]
};

impl Layout {
    /// Returns the layouts that a heap of glibc 2.`minor` may have, the most likely first. The
    /// layout of the version itself is followed by newer ones, which a distribution may have
    /// backported.
    pub fn candidates(minor: u32) -> impl Iterator<Item = Layout> {
        let own = LAYOUTS.iter().find(|(since, _)| *since <= minor);
        let others = LAYOUTS.iter().filter(move |(since, _)| *since > minor);
        own.into_iter()
            .chain(others.rev().filter(move |_| own.is_some()))
            .map(|(_, layout)| *layout)
    }

    /// Offset of `malloc_state.fastbinsY`.
    pub fn first_fastbin(&self) -> u64 {
        self.top - self.fastbins * 8
    }

    /// Offset of `malloc_state.bins`, after `top` and `last_remainder`.
    pub fn bins(&self) -> u64 {
        self.top + 16
    }

    /// Offset of `malloc_state.next`, after the bins and their bit map.
    pub fn next(&self) -> u64 {
        self.bins() + (BINS * 2 - 2) * 8 + BINS / 8
    }

    /// Offset of `malloc_state.system_mem`, after `next`, `next_free`, `attached_threads`.
    pub fn system_mem(&self) -> u64 {
        self.next() + 24
    }

    /// Value of `sizeof (struct malloc_state)`, which ends after `max_system_mem`.
    pub fn arena_bytes(&self) -> u64 {
        self.system_mem() + 16
    }

    /// Size of the chunk that holds a `tcache_perthread_struct`: counts, then entries.
    pub fn tcache_chunk(&self) -> u64 {
        (self.tcache_bins * (self.tcache_count + 8) + 8).next_multiple_of(ALIGNMENT)
    }

    /// Returns true if a bin of a thread cache may contain a chunk of this size (`csize2tidx`, `large_csize2tidx`).
    pub fn is_of_bin(&self, bin: u64, chunk_bytes: u64) -> bool {
        if bin < TCACHE_SMALL_BINS {
            return chunk_bytes == bin * ALIGNMENT + MIN_CHUNK_BYTES;
        }
        let doublings = chunk_bytes
            .checked_ilog2()
            .and_then(|log| log.checked_sub(TCACHE_SMALL_BYTES.ilog2()));
        chunk_bytes > TCACHE_SMALL_BYTES
            && chunk_bytes.is_multiple_of(ALIGNMENT)
            && doublings == u32::try_from(bin - TCACHE_SMALL_BINS).ok()
    }

    /// Follows a link of a fast or tcache list that is stored at `place`.
    pub fn unmangle(&self, place: u64, link: u64) -> u64 {
        if self.safe_linking {
            link ^ (place >> 12)
        } else {
            link
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(minor: u32) -> Layout {
        Layout::candidates(minor).next().unwrap()
    }

    #[test]
    fn known_offsets() {
        // `main_arena.top` is at 88 of 2192 bytes in 2.26, at 96 of 2200 bytes since 2.27, and at 8
        // of 2112 bytes since 2.43.
        let states = [26, 36, 42, 43].map(|minor| (of(minor).top, of(minor).arena_bytes()));
        assert_eq!(states, [(88, 2192), (96, 2200), (96, 2200), (8, 2112)]);
        let caches = [26, 36, 42, 43].map(|minor| of(minor).tcache_chunk());
        assert_eq!(caches, [0x250, 0x290, 0x300, 0x300]);
        assert_eq!(of(36).first_fastbin(), 16);
    }

    #[test]
    fn a_newer_version_may_have_the_newest_layout_and_an_older_one_none() {
        assert_eq!(
            Layout::candidates(NEWEST + 9).collect::<Vec<_>>(),
            [of(NEWEST)]
        );
        let own_first: Vec<_> = Layout::candidates(41).collect();
        assert_eq!(own_first, [of(35), of(42), of(43)]);
        assert_eq!(Layout::candidates(25).count(), 0);
    }

    #[test]
    fn bins_of_the_thread_cache() {
        let layout = of(43);
        let bin_of = |size| (0..layout.tcache_bins).find(|&bin| layout.is_of_bin(bin, size));
        let sizes = [32, 1040, 1056, 2032, 2048, 4080, 4 << 20];
        let bins = [0, 63, 64, 64, 65, 65, 76].map(|bin| (bin < 76).then_some(bin));
        assert_eq!(sizes.map(bin_of), bins);
        assert_eq!(bin_of(40).or(bin_of(16)).or(bin_of(2056)), None);
    }
}
