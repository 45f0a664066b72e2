//! The structures of glibc's malloc/malloc.c by version, on x86-64. Read from the sources of the
//! releases 2.26 to 2.41; offsets in bytes.

/// Chunk header: `mchunk_prev_size`, `mchunk_size`.
pub const HEADER_BYTES: u64 = 16;
/// MALLOC_ALIGNMENT.
pub const ALIGNMENT: u64 = 16;
/// MINSIZE.
pub const MIN_CHUNK_BYTES: u64 = 32;
/// The flag bits of `mchunk_size`.
pub const PREV_INUSE: u64 = 1;
/// The chunk is a mapping of its own.
pub const IS_MMAPPED: u64 = 2;
/// The chunk is not of the main arena.
pub const NON_MAIN_ARENA: u64 = 4;
/// All flag bits.
pub const FLAGS: u64 = 7;
/// HEAP_MAX_SIZE: 2 * DEFAULT_MMAP_THRESHOLD_MAX; heaps of other arenas are aligned to it.
pub const HEAP_MAX_BYTES: u64 = 64 << 20;
/// NFASTBINS.
pub const FASTBINS: u64 = 10;
/// NBINS; bin 0 does not exist, bin 1 is the unsorted one.
pub const BINS: u64 = 128;
/// TCACHE_MAX_BINS.
pub const TCACHE_BINS: u64 = 64;

/// What differs between versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// `malloc_state.fastbinsY`. 2.27 moved the flag "may have fast chunks" out of `flags` into a
    /// word of its own (`have_fastchunks`).
    pub fastbins: u64,
    /// `sizeof (heap_info)`. 2.35 added `pagesize`.
    pub heap_info: u64,
    /// Width of `tcache_perthread_struct.counts[i]`: `char` until 2.29, `uint16_t` since 2.30.
    pub tcache_count: u64,
    /// Lists of fast and tcache chunks are mangled with their own address (PROTECT_PTR, 2.32).
    pub safe_linking: bool,
    /// From `malloc_par.mmapped_mem` back to `n_mmaps`. 2.35 put `hp_flags` before it, and with
    /// that padding behind the four counters.
    pub n_mmaps_back: u64,
}

impl Layout {
    /// The layout of glibc 2.`minor`.
    pub fn of(minor: u32) -> Option<Layout> {
        if !(26..=41).contains(&minor) {
            return None;
        }
        Some(Layout {
            fastbins: if minor >= 27 { 16 } else { 8 },
            heap_info: if minor >= 35 { 48 } else { 32 },
            tcache_count: if minor >= 30 { 2 } else { 1 },
            safe_linking: minor >= 32,
            n_mmaps_back: if minor >= 35 { 20 } else { 16 },
        })
    }

    /// `malloc_state.top`.
    pub fn top(&self) -> u64 {
        self.fastbins + FASTBINS * 8
    }

    /// `malloc_state.bins`, after `top` and `last_remainder`.
    pub fn bins(&self) -> u64 {
        self.top() + 16
    }

    /// `malloc_state.next`, after the bins and their bit map.
    pub fn next(&self) -> u64 {
        self.bins() + (BINS * 2 - 2) * 8 + BINS / 8
    }

    /// `malloc_state.system_mem`, after `next`, `next_free`, `attached_threads`.
    pub fn system_mem(&self) -> u64 {
        self.next() + 24
    }

    /// `sizeof (struct malloc_state)`, after `max_system_mem`.
    pub fn arena_bytes(&self) -> u64 {
        self.system_mem() + 16
    }

    /// Chunk that holds a `tcache_perthread_struct`: counts, then entries.
    pub fn tcache_chunk(&self) -> u64 {
        (TCACHE_BINS * (self.tcache_count + 8) + 8).next_multiple_of(ALIGNMENT)
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

    #[test]
    fn known_offsets() {
        // main_arena.top at 96 and a state of 2200 bytes since 2.27; 88 and 2192 in 2.26.
        let new = Layout::of(36).unwrap();
        assert_eq!((new.top(), new.arena_bytes()), (96, 2200));
        assert_eq!(new.tcache_chunk(), 0x290);
        let old = Layout::of(26).unwrap();
        assert_eq!((old.top(), old.arena_bytes()), (88, 2192));
        assert_eq!(old.tcache_chunk(), 0x250);
        assert_eq!(Layout::of(42), None);
    }
}
