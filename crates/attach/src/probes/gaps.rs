//! Free addresses for pads.

use crate::error::Error;
use memhook_inject::{CodeArea, Held, map_code_area};
use memhook_process::{Mapping, RemoteAddress, mappings};
use std::ffi::CStr;
use std::ops::Range;

/// Reach of a jump, minus some room for the data that pads refer to.
const REACH: u64 = (1 << 31) - (64 << 20);
/// Lowest address that a process may map on all systems (vm.mmap_min_addr), plus a margin.
const LOWEST: u64 = 1 << 20;
/// Space left for the growth of the heap. Without it, brk(2) fails, and the allocator continues with mmap(2).
const HEAP_ROOM: u64 = 1 << 30;
/// Distance from the upper end of a gap, where the kernel puts the next mapping (mm/mmap.c, top-down). In a process
/// that maps memory continuously, an address at this distance stays free for longer.
const ASIDE: u64 = 16 << 20;
/// First address above user space.
const HIGHEST: u64 = 0x7fff_ffff_f000;

/// Number of places tried, in case the process has mapped memory at the first one in the meantime.
const PLACE_TRIES: usize = 8;

/// Maps an area within reach of all addresses in `near` ([`map_code_area`]); `None` if there is no free place.
pub(crate) fn map_near(
    held: &mut Held,
    name: &CStr,
    near: &Range<u64>,
    bytes: u64,
    wiped_bytes: u64,
) -> Result<Option<CodeArea>, Error> {
    let places = places_near(&mappings(held.pid())?, near, bytes + wiped_bytes);
    for at in places.into_iter().take(PLACE_TRIES) {
        let area = map_code_area(held, name, RemoteAddress(at), bytes, wiped_bytes)?;
        if area.is_some() {
            return Ok(area);
        }
    }
    Ok(None)
}

/// Returns places for `bytes` bytes within reach of all addresses in `near`, best first. Leaves room below the stack,
/// and a gigabyte above the heap.
pub(super) fn places_near(maps: &[Mapping], near: &Range<u64>, bytes: u64) -> Vec<u64> {
    let low = near.end.saturating_sub(REACH).max(LOWEST);
    let high = near.start.saturating_add(REACH).min(HIGHEST);
    let mut found = Vec::new();
    let mut before: Option<&Mapping> = None;
    let ends = maps.iter().map(|m| (m.start, Some(m)));
    for (end, next) in ends.chain([(HIGHEST, None)]) {
        let start = before.map_or(0, |m| m.end);
        let is_of_stack = next.is_some_and(|m| m.path == "[stack]");
        // The heap begins after the program's data, now or later.
        let is_of_heap = before.is_some_and(|m| {
            let is_program_end =
                next.is_none_or(|next| next.path != m.path && next.path != "[heap]");
            m.path == "[heap]" || (is_program_end && is_of_main(maps, m))
        });
        let (start, end) = (start.max(low), end.min(high));
        let left_free = if is_of_heap { HEAP_ROOM } else { 0 };
        if !is_of_stack && start.saturating_add(left_free + bytes) <= end {
            found.push((end - bytes) & !4095);
            if start.saturating_add(left_free + ASIDE + bytes) <= end {
                found.push((end - ASIDE - bytes) & !4095);
            }
        }
        before = next.or(before);
    }
    found.retain(|&at| at >= low);
    found.sort_by_key(|&at| near.start.abs_diff(at));
    found
}

/// Returns true for a mapping of the program file, or of the program's unnamed data after the file.
fn is_of_main(maps: &[Mapping], mapping: &Mapping) -> bool {
    let Some(first) = maps.first() else {
        return false;
    };
    let last_named = maps.iter().rfind(|m| m.is_same_file(first));
    let end = last_named.map_or(first.end, |m| m.end);
    mapping.is_same_file(first) || (mapping.file_id.2 == 0 && mapping.start == end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memhook_process::parse_maps;

    #[test]
    fn the_heap_and_the_stack_keep_their_room() {
        let maps = parse_maps(
            "555555554000-555555560000 r-xp 00000000 fe:01 7 /bin/a\n\
             555555570000-555555580000 rw-p 00000000 00:00 0 [heap]\n\
             7ffff7c00000-7ffff7e00000 r-xp 00000000 fe:01 8 /lib/b.so\n\
             7ffffffde000-7ffffffff000 rw-p 00000000 00:00 0 [stack]\n",
        );
        let program = places_near(&maps, &(0x5555_5555_4000..0x5555_5556_0000), 0x10_0000);
        assert_eq!(program.first(), Some(&0x5555_5545_4000), "{program:x?}");
        // Higher addresses are used only if a gigabyte is left for the heap.
        let above = |at: &&u64| **at >= 0x5555_5556_0000;
        assert!(
            program
                .iter()
                .filter(above)
                .all(|&at| at >= 0x5555_5558_0000 + HEAP_ROOM)
        );
        let library = places_near(&maps, &(0x7fff_f7c0_0000..0x7fff_f7e0_0000), 0x10_0000);
        assert_eq!(
            library,
            [0x7fff_f7b0_0000, 0x7fff_f6b0_0000],
            "{library:x?}"
        );
    }
}
