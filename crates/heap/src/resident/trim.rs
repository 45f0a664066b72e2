//! Pages that malloc_trim(3) returns, by the rules of `mtrim`, `systrim` (malloc/malloc.c) and
//! `heap_trim` (malloc/arena.c), which have not changed from glibc 2.26 to 2.44.

use crate::glibc::arenas::{DEFAULT_TRIM_BYTES, Parameters};
use crate::glibc::layout::MIN_CHUNK_BYTES;
use crate::resident::pages::PAGE_BYTES;
use std::ops::Range;

/// `sizeof (struct malloc_chunk)`, which is the part of a free chunk that may hold list links.
const CHUNK_STRUCT_BYTES: u64 = 48;
/// Size of a freed chunk, merged with its free neighbours, at or above which `free` trims the top
/// of the arena (FASTBIN_CONSOLIDATION_THRESHOLD).
const TRIMMING_CHUNK_BYTES: u64 = 64 << 10;

/// Returns the pages that `mtrim` releases to the system from a free chunk in a bin.
pub fn of_chunk(chunk: &Range<u64>) -> Range<u64> {
    let first = (chunk.start + CHUNK_STRUCT_BYTES).next_multiple_of(PAGE_BYTES);
    let bytes = chunk.end.saturating_sub(first) & !(PAGE_BYTES - 1);
    first..first + bytes
}

/// Returns the pages that `systrim` releases to the system from the end of the main arena's top.
pub fn of_main_top(top: &Range<u64>) -> Range<u64> {
    end_of_top(top, 0)
}

/// Returns the part of a top that is released if the top keeps `pad` bytes and space for the
/// smallest chunk.
fn end_of_top(top: &Range<u64>, pad: u64) -> Range<u64> {
    let bytes = (top.end - top.start).saturating_sub(MIN_CHUNK_BYTES + 1);
    let bytes = bytes.saturating_sub(pad) & !(PAGE_BYTES - 1);
    top.end - bytes..top.end
}

/// Limits at which the tops of arenas other than the main arena shrink. They shrink when a large
/// chunk is freed, not by malloc_trim.
#[derive(Clone, Copy, Debug)]
pub struct TopLimits {
    threshold: u64,
    pad: u64,
}

impl TopLimits {
    /// Returns the limits that the allocator uses.
    pub fn of(parameters: Option<Parameters>) -> TopLimits {
        let (threshold, pad) = parameters.map_or((DEFAULT_TRIM_BYTES, DEFAULT_TRIM_BYTES), |p| {
            (p.trim_threshold, p.top_pad)
        });
        TopLimits { threshold, pad }
    }

    /// Returns the pages that are released when freeing a chunk that merges with the top. `top`
    /// includes the chunk.
    pub fn of_top(&self, top: &Range<u64>) -> Range<u64> {
        let bytes = top.end - top.start;
        if bytes < TRIMMING_CHUNK_BYTES || bytes < self.threshold {
            return top.end..top.end;
        }
        end_of_top(top, self.pad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_pages_behind_the_header() {
        assert_eq!(of_chunk(&(0x1000..0x3000)), 0x2000..0x3000);
        // The first page does not have enough room for the header that precedes it.
        assert_eq!(of_chunk(&(0x1fd0..0x3008)), 0x2000..0x3000);
        assert_eq!(of_chunk(&(0x1fe0..0x3fff)), 0x3000..0x3000);
        assert!(of_chunk(&(0x1010..0x1400)).is_empty());
    }

    #[test]
    fn tops() {
        // The top keeps 33 bytes, and the rest of that page.
        assert_eq!(of_main_top(&(0x1000..0x5000)), 0x2000..0x5000);
        assert_eq!(of_main_top(&(0x1fdf..0x5000)), 0x2000..0x5000);
        assert_eq!(of_main_top(&(0x1fe0..0x5000)), 0x3000..0x5000);
        let limits = TopLimits::of(None);
        assert!(limits.of_top(&(0..0x1_f000)).is_empty());
        assert_eq!(limits.of_top(&(0..0x10_0000)), 0x2_1000..0x10_0000);
    }
}
