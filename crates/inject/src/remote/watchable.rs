//! Which part of a mapping can be watched so that the mapping goes on growing as one.
//!
//! The kernel never joins a mapping that belongs to a userfaultfd with a new one beside it that does not; and once each
//! of them has pages of its own, it never joins them again, because their pages belong to different `anon_vma`s
//! (`is_mergeable_anon_vma` of mm/vma.c). A heap that grows while it is watched would be a mapping more with each growth,
//! for as long as its process lives, and a process has room for 65,530 (vm.max_map_count): at the end of that, its
//! malloc fails.
//!
//! So one page is left out at each edge at which a mapping could grow. What is cut off has the `anon_vma` of the rest:
//! it grows as the mapping would, and when the watch ends, the kernel joins all of it. Both parts have it only if the
//! mapping had a page of its own before; one that has none is not watched.

use crate::page_scan::{PAGE_BYTES, PageScan};
use memhook_process::Mapping;
use std::ops::Range;

/// An inaccessible neighbour that is no larger is a guard, and is never opened; a larger one is what a heap grows into.
const MOST_GUARD_BYTES: u64 = 64 << 10;
/// vm.max_map_count where it cannot be read (`DEFAULT_MAX_MAP_COUNT` of include/linux/mm.h).
const USUAL_MOST_MAPPINGS: usize = 65_530;
/// Cutting takes no more of the mappings that a process may have than one in so many.
const SHARE_OF_MAPPINGS: usize = 2;

/// A mapping, and what of it can be watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watchable {
    /// Its number in the list of mappings.
    pub mapping: usize,
    /// The part.
    pub part: Range<u64>,
}

impl Watchable {
    /// The pages that are left out at the edges of a mapping.
    pub fn edges(&self, mapping: &Mapping) -> impl Iterator<Item = Range<u64>> + use<> {
        let edges = [mapping.start..self.part.start, self.part.end..mapping.end];
        edges.into_iter().filter(|edge| !edge.is_empty())
    }

    /// How many mappings more the process has while the part is watched.
    fn cuts(&self, mapping: &Mapping) -> usize {
        self.edges(mapping).count()
    }
}

/// What can be watched of the wanted ones among all mappings of a process, in order.
pub fn watchable(
    pages: &PageScan,
    maps: &[Mapping],
    is_wanted: &dyn Fn(&Mapping) -> bool,
) -> Vec<Watchable> {
    let has_own = |mapping: &Mapping| {
        mapping.shared || pages.has_own(mapping.start..mapping.end).unwrap_or(false)
    };
    let room = (most_mappings() / SHARE_OF_MAPPINGS).saturating_sub(maps.len());
    within(maps, parts(maps, is_wanted), room)
        .into_iter()
        .filter(|found| has_own(&maps[found.mapping]))
        .collect()
}

fn parts(maps: &[Mapping], is_wanted: &dyn Fn(&Mapping) -> bool) -> Vec<Watchable> {
    let wanted = maps.iter().enumerate().filter(|(_, m)| is_wanted(m));
    let part = |(mapping, m): (usize, &Mapping)| {
        let below = mapping.checked_sub(1).and_then(|i| maps.get(i));
        let below = below.filter(|below| below.end == m.start);
        let above = maps.get(mapping + 1);
        let above = above.filter(|above| above.start == m.end);
        // The kernel moves the edge of its first thread's stack by itself. Shared memory is of a file.
        let may_grow = !m.shared && m.path != "[stack]";
        // brk(2) only moves the end.
        let grows_down = may_grow && m.path != "[heap]" && below.is_none_or(is_reserve);
        let grows_up = may_grow && above.is_none_or(is_reserve);
        let page = |is_left_out: bool| if is_left_out { PAGE_BYTES } else { 0 };
        let (start, end) = (m.start + page(grows_down), m.end - page(grows_up));
        let part = start..end;
        (!part.is_empty()).then_some(Watchable { mapping, part })
    };
    wanted.filter_map(part).collect()
}

/// Whether this is memory that is kept for the mapping beside it.
fn is_reserve(m: &Mapping) -> bool {
    let is_closed = !m.read && !m.write && !m.exec && !m.shared && m.file_id.2 == 0;
    is_closed && m.end - m.start > MOST_GUARD_BYTES
}

/// Those that take no more than `room` mappings, the largest first.
fn within(maps: &[Mapping], found: Vec<Watchable>, room: usize) -> Vec<Watchable> {
    let cuts = |one: &Watchable| one.cuts(&maps[one.mapping]);
    if found.iter().map(cuts).sum::<usize>() <= room {
        return found;
    }
    let mut left = room;
    let mut by_size = found;
    by_size.sort_by_key(|one| one.part.start.wrapping_sub(one.part.end));
    by_size.retain(|one| {
        let fits = cuts(one) <= left;
        left -= if fits { cuts(one) } else { 0 };
        fits
    });
    by_size.sort_by_key(|one| one.mapping);
    by_size
}

fn most_mappings() -> usize {
    let text = memhook_process::proc_text("/proc/sys/vm/max_map_count");
    let number = text.ok().and_then(|text| text.trim().parse().ok());
    number.unwrap_or(USUAL_MOST_MAPPINGS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memhook_process::parse_maps;

    fn found(text: &str) -> Vec<(u64, u64)> {
        let maps = parse_maps(text);
        let is_wanted = |m: &Mapping| m.read && m.write;
        let parts = parts(&maps, &is_wanted).into_iter();
        parts
            .map(|found| (found.part.start, found.part.end))
            .collect()
    }

    #[test]
    fn edges_at_which_a_mapping_could_grow_are_left_out() {
        // By brk, into what an arena has reserved, and into free addresses.
        let heap = "10000-20000 rw-p 0 00:00 0 [heap]\n";
        assert_eq!(found(heap), [(0x10000, 0x1f000)]);
        let arena = "10000000-10200000 rw-p 0 00:00 0\n10200000-14000000 ---p 0 00:00 0\n";
        assert_eq!(found(arena), [(0x1000_1000, 0x101f_f000)]);
        let alone = "30000-40000 rw-p 0 00:00 0\n";
        assert_eq!(found(alone), [(0x31000, 0x3f000)]);
        // The second arena begins where the reserve of the first ends.
        let second = "10200000-14000000 ---p 0 00:00 0\n14000000-14010000 rw-p 0 00:00 0\n14010000-14020000 r--p 0 00:00 0\n";
        assert_eq!(found(second), [(0x1400_1000, 0x1401_0000)]);
    }

    #[test]
    fn edges_that_stay_where_they_are_are_watched() {
        // Between the guards of its own and of the next stack.
        let stacks =
            "10000-11000 ---p 0 00:00 0\n11000-20000 rw-p 0 00:00 0\n20000-21000 ---p 0 00:00 0\n";
        assert_eq!(found(stacks), [(0x11000, 0x20000)]);
        // What is watched already, and what was cut off it.
        let cut = "1000-2000 r--p 0 00:00 0\n2000-9000 rw-p 0 00:00 0\n9000-a000 rw-p 0 00:00 0\n";
        assert_eq!(found(cut), [(0x2000, 0x9000)]);
        let initial = "10000-20000 rw-p 0 00:00 0 [stack]\n";
        assert_eq!(found(initial), [(0x10000, 0x20000)]);
        let shared = "10000-20000 rw-s 0 00:01 9 /memfd:x (deleted)\n";
        assert_eq!(found(shared), [(0x10000, 0x20000)]);
        // Nothing is left of so small a one.
        assert_eq!(found("10000-12000 rw-p 0 00:00 0\n"), []);
    }

    #[test]
    fn a_process_near_its_limit_is_cut_less() {
        let mapping = |at: u64, bytes: u64| format!("{at:x}-{:x} rw-p 0 00:00 0\n", at + bytes);
        let guarded =
            "f0000-f1000 ---p 0 00:00 0\nf1000-f5000 rw-p 0 00:00 0\nf5000-f6000 ---p 0 00:00 0\n";
        let text = [
            mapping(0x10000, 0x4000),
            mapping(0x20000, 0x8000),
            mapping(0x30000, 0x6000),
            guarded.to_owned(),
        ];
        let maps = parse_maps(&text.concat());
        let all = parts(&maps, &|m| m.write);
        let starts = |room: usize| {
            let left = within(&maps, all.clone(), room).into_iter();
            left.map(|one| one.part.start).collect::<Vec<_>>()
        };
        assert_eq!(starts(6), [0x11000, 0x21000, 0x31000, 0xf1000]);
        assert_eq!(starts(4), [0x21000, 0x31000, 0xf1000]);
        assert_eq!(starts(3), [0x21000, 0xf1000]);
        assert_eq!(starts(0), [0xf1000]);
    }
}
