//! What to watch of a mapping so that it goes on growing as one.
//!
//! The kernel never joins a mapping that belongs to a userfaultfd with a new one beside it that does not; and once each
//! of them has pages of its own, it never joins them again, because their pages belong to different `anon_vma`s
//! (`is_mergeable_anon_vma` of mm/vma.c). A heap that grows while it is watched would be a mapping more with each growth,
//! for as long as its process lives, and a process has room for 65,530 (vm.max_map_count): at the end of that, its
//! malloc fails. So
//! - what an arena has reserved is watched with it: mprotect(2) makes a part of it accessible, which joins the rest;
//! - of the heap that brk(2) makes, the last page is not watched. It has the `anon_vma` of the rest, it grows in the place
//!   of the heap, and when the watch ends, the kernel joins the two.
//!
//! Nothing else is cut: mremap(2) refuses ranges of several mappings, and a program may call it on memory of its own. A
//! mapping is watched and let go with the free addresses behind it, because it may have grown since it was looked at.

use crate::page_scan::{PAGE_BYTES, PageScan, PageState};
use memhook_process::Mapping;
use std::ops::Range;

/// An inaccessible neighbour that is no larger is a guard, and is never opened; a larger one is what a heap grows into.
const MOST_GUARD_BYTES: u64 = 64 << 10;

/// More than a mapping grows by between a look at it and the next request.
const ROOM_TO_GROW: u64 = 64 << 20;

/// A mapping, and what to watch of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watchable {
    /// Its number in the list of mappings.
    pub mapping: usize,
    /// The part with pages that can be watched.
    pub part: Range<u64>,
    /// What the watch has to be of: this part, and what the mapping may grow into.
    pub whole: Range<u64>,
}

/// What to watch of the wanted ones among all mappings of a process, in order.
pub fn watchable(
    pages: &PageScan,
    maps: &[Mapping],
    is_wanted: &dyn Fn(&Mapping) -> bool,
) -> Vec<Watchable> {
    let can_be_cut = |mapping: &Mapping, at: u64| {
        let mut huge = Vec::new();
        // Without a page there would be no `anon_vma` that both parts share; a huge page would be split.
        pages.has_own(mapping.start..mapping.end).unwrap_or(false)
            && pages
                .find(at..mapping.end, PageState::Huge, &mut huge)
                .is_ok()
            && huge.is_empty()
    };
    parts(maps, is_wanted, &can_be_cut)
}

fn parts(
    maps: &[Mapping],
    is_wanted: &dyn Fn(&Mapping) -> bool,
    can_be_cut: &dyn Fn(&Mapping, u64) -> bool,
) -> Vec<Watchable> {
    let wanted = maps.iter().enumerate().filter(|(_, m)| is_wanted(m));
    let part = |(mapping, m): (usize, &Mapping)| {
        let (mut part, mut whole) = (m.start..m.end, m.start..m.end);
        let next = maps.get(mapping + 1).filter(|next| next.start == m.end);
        let grows = m.path == "[heap]" && next.is_none_or(|next| next.path != "[heap]");
        let last_page = m.end - PAGE_BYTES;
        if grows && can_be_cut(m, last_page) {
            (part.end, whole.end) = (last_page, last_page);
        } else {
            let reserve = next.filter(|next| !m.shared && is_reserve(next));
            whole.end = reserve.map_or(room_behind(maps, mapping), |reserve| reserve.end);
        }
        (!part.is_empty()).then_some(Watchable {
            mapping,
            part,
            whole,
        })
    };
    wanted.filter_map(part).collect()
}

/// The end of the free addresses behind a mapping into which it may have grown since it was looked at: watching or letting
/// go less than all of it would cut it.
fn room_behind(maps: &[Mapping], mapping: usize) -> u64 {
    let end = maps[mapping].end;
    let next = maps.get(mapping + 1).map_or(u64::MAX, |next| next.start);
    end.saturating_add(ROOM_TO_GROW).min(next.max(end))
}

/// What to let go of the wanted ones among all mappings of a process.
pub fn to_let_go(maps: &[Mapping], is_wanted: &dyn Fn(&Mapping) -> bool) -> Vec<Range<u64>> {
    let wanted = maps.iter().enumerate().filter(|(_, m)| is_wanted(m));
    wanted
        .map(|(mapping, m)| m.start..room_behind(maps, mapping))
        .collect()
}

/// Whether this is memory that is kept for the mapping before it.
fn is_reserve(m: &Mapping) -> bool {
    let is_closed = !m.read && !m.write && !m.exec && !m.shared && m.file_id.2 == 0;
    is_closed && m.path.is_empty() && m.end - m.start > MOST_GUARD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use memhook_process::parse_maps;

    /// Start and end of each part, and the end of the whole.
    fn found(text: &str) -> Vec<(u64, u64, u64)> {
        let maps = parse_maps(text);
        let is_wanted = |m: &Mapping| m.read && m.write;
        let parts = parts(&maps, &is_wanted, &|_, _| true).into_iter();
        parts
            .map(|found| {
                assert_eq!(found.part.start, found.whole.start);
                (found.part.start, found.part.end, found.whole.end)
            })
            .collect()
    }

    #[test]
    fn the_heap_grows_at_a_page_that_is_left_out() {
        let heap = "10000-20000 rw-p 0 00:00 0 [heap]\n";
        assert_eq!(found(heap), [(0x10000, 0x1f000, 0x1f000)]);
        // What is watched already, and the page that was left out, which has grown.
        let cut = "10000-1f000 rw-p 0 00:00 0 [heap]\n1f000-28000 rw-p 0 00:00 0 [heap]\n";
        let parts = [(0x10000, 0x1f000, 0x1f000), (0x1f000, 0x27000, 0x27000)];
        assert_eq!(found(cut), parts);
        assert_eq!(found("10000-11000 rw-p 0 00:00 0 [heap]\n"), []);
    }

    #[test]
    fn an_arena_is_watched_with_its_reserve() {
        let arena = "10000000-10200000 rw-p 0 00:00 0\n10200000-14000000 ---p 0 00:00 0\n";
        assert_eq!(found(arena), [(0x1000_0000, 0x1020_0000, 0x1400_0000)]);
        // A guard, and a file.
        let guarded = "10000-20000 rw-p 0 00:00 0\n20000-21000 ---p 0 00:00 0\n";
        assert_eq!(found(guarded), [(0x10000, 0x20000, 0x20000)]);
        // mremap makes it longer.
        let alone = "10000-20000 rw-p 0 00:00 0\n50000-60000 r--p 0 00:00 0\n";
        assert_eq!(found(alone), [(0x10000, 0x20000, 0x50000)]);
        let file = "10000-20000 rw-p 0 00:00 0\n20000-90000 ---p 0 08:01 7 /lib/x\n";
        assert_eq!(found(file), [(0x10000, 0x20000, 0x20000)]);
    }

    #[test]
    fn free_addresses_are_let_go_with_what_may_grow_into_them() {
        let maps = parse_maps(
            "10000-20000 rw-p 0 00:00 0\n20000-30000 r--p 0 00:00 0\n40000-50000 rw-p 0 00:00 0\n60000-70000 rw-p 0 00:00 0\n",
        );
        let found = to_let_go(&maps, &|m| m.write);
        let expected = [
            0x10000..0x20000,
            0x40000..0x60000,
            0x60000..0x70000 + ROOM_TO_GROW,
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_heap_that_cannot_be_cut_is_watched_whole() {
        let maps = parse_maps("10000-20000 rw-p 0 00:00 0 [heap]\n");
        let parts = parts(&maps, &|_| true, &|_, _| false);
        assert_eq!(parts[0].part, 0x10000..0x20000);
    }
}
