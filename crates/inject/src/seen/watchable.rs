//! Selects the parts of a mapping to watch, so that the mapping continues to grow as one.
//!
//! The kernel never merges a mapping that is registered with a userfaultfd with a new neighbour that is not. Once both
//! have their own pages, it never merges them, because their pages belong to different `anon_vma`s
//! (`is_mergeable_anon_vma` of mm/vma.c). A heap that grows while it is watched would gain a mapping with each growth,
//! for the rest of the process's life. A process may have 65,530 mappings (vm.max_map_count), and at that limit its
//! malloc fails. So
//! - the reserved memory of an arena is watched with it: mprotect(2) makes a part of it accessible, which merges with
//!   the rest;
//! - the last page of the brk(2) heap is not watched. It has the `anon_vma` of the rest and grows in place of the heap,
//!   and when the watch ends, the kernel merges the two.
//!
//! No other mapping is split: mremap(2) refuses ranges of several mappings, and a program may call mremap on its own
//! memory. The program may also have done so since the mappings were read: a mapping may then be longer, or moved, or
//! replaced by another. So mappings are watched together with everything between them, by one request, from the
//! unwatched memory before them to the unwatched memory after them. Wherever they are in that range, they are watched
//! completely.

use crate::page_scan::{PAGE_BYTES, PageScan, PageState};
use memhook_process::Mapping;
use std::ops::Range;

/// Size up to which an inaccessible neighbour counts as a guard, which is never made accessible. A heap can grow into a
/// larger neighbour.
const MOST_GUARD_BYTES: u64 = 64 << 10;

/// Upper bound on the growth of a mapping between reading the mappings and the next request.
const ROOM_TO_GROW: u64 = 64 << 20;

/// Lowest address in a request. By default, nothing is mapped below this address (vm.mmap_min_addr), and a request for
/// such memory is refused.
const LEAST_ADDRESS: u64 = 64 << 10;

/// Maximum number of mappings in a request. Threads that map or unmap memory wait for the request, which takes longer
/// with each mapping.
const MOST_TOGETHER: usize = 256;

/// A mapping, and the part of it to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watchable {
    /// Index in the list of mappings.
    pub mapping: usize,
    /// Part with pages that can be watched.
    pub part: Range<u64>,
}

/// Mappings that one request watches, so that no mapping is split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbours {
    /// Mappings in order, at least one.
    pub members: Vec<Watchable>,
    /// Range of the request: all mappings, together with the addresses into which they may grow or move.
    pub whole: Range<u64>,
}

impl Neighbours {
    /// Splits the mappings into two halves, because the request for all of them was refused. Returns `None` if there is
    /// only one mapping.
    pub(crate) fn halves(self) -> Option<[Neighbours; 2]> {
        let Neighbours { mut members, whole } = self;
        let second = members.split_off(members.len() / 2);
        let between = middle(members.last()?.part.end, second.first()?.part.start);
        let half = |members, whole| Neighbours { members, whole };
        Some([
            half(members, whole.start..between),
            half(second, between..whole.end),
        ])
    }
}

/// Returns the parts of the wanted mappings to watch, given all mappings of a process in order.
pub fn watchable(
    pages: &PageScan,
    maps: &[Mapping],
    is_wanted: &dyn Fn(&Mapping) -> bool,
) -> Vec<Neighbours> {
    let can_be_cut = |mapping: &Mapping, at: u64| {
        let mut huge = Vec::new();
        // If the mapping has no page of its own, the two parts would have no common `anon_vma`. If its last page is
        // part of a huge page, the huge page would be split.
        pages.has_own(mapping.start..mapping.end).unwrap_or(false)
            && pages
                .find(at..mapping.end, PageState::Huge, &mut huge)
                .is_ok()
            && huge.is_empty()
    };
    neighbours(maps, is_wanted, &can_be_cut)
}

fn neighbours(
    maps: &[Mapping],
    is_wanted: &dyn Fn(&Mapping) -> bool,
    can_be_cut: &dyn Fn(&Mapping, u64) -> bool,
) -> Vec<Neighbours> {
    let mut found: Vec<Neighbours> = Vec::new();
    // Start of the addresses into which the next mappings may have moved, and whether these addresses belong to the
    // previous mappings.
    let (mut free_from, mut goes_on) = (LEAST_ADDRESS, false);
    for (mapping, m) in maps.iter().enumerate() {
        let next_start = maps.get(mapping + 1).map_or(u64::MAX, |next| next.start);
        if !is_wanted(m) {
            let last = found.last_mut().filter(|_| goes_on);
            match last {
                Some(last) if is_reserve_of(m, last) => {
                    last.whole.end = room_behind(m.end, next_start);
                }
                _ if is_guard(m) => {}
                _ => (free_from, goes_on) = (m.end, false),
            }
        } else if m.path == "[heap]" {
            // This mapping grows only by brk(2), in place.
            let is_last = maps
                .get(mapping + 1)
                .is_none_or(|next| next.path != "[heap]");
            let last_page = m.end - PAGE_BYTES;
            let part_end = match is_last && can_be_cut(m, last_page) {
                true => last_page,
                false => m.end,
            };
            let members = vec![Watchable {
                mapping,
                part: m.start..part_end,
            }];
            let whole_end = match part_end == last_page {
                true => part_end,
                false => room_behind(m.end, next_start),
            };
            if m.start < part_end {
                let whole = m.start..whole_end;
                found.push(Neighbours { members, whole });
            }
            (free_from, goes_on) = (middle(m.end, next_start), false);
        } else {
            let member = Watchable {
                mapping,
                part: m.start..m.end,
            };
            let end = room_behind(m.end, next_start);
            match found.last_mut().filter(|_| goes_on) {
                Some(last) if last.members.len() < MOST_TOGETHER => {
                    last.members.push(member);
                    last.whole.end = end;
                }
                last => {
                    if let Some(last) = last {
                        let last_end = last.members.last().map_or(0, |member| member.part.end);
                        free_from = middle(last_end, m.start);
                        last.whole.end = last.whole.end.min(free_from);
                    }
                    let start = m.start.saturating_sub(ROOM_TO_GROW).max(free_from);
                    found.push(Neighbours {
                        members: vec![member],
                        whole: start.min(m.start)..end,
                    });
                    goes_on = true;
                }
            }
        }
    }
    found
}

/// Returns the page in the middle between two addresses.
fn middle(end: u64, start: u64) -> u64 {
    (end + start.saturating_sub(end) / 2) & !(PAGE_BYTES - 1)
}

/// Returns the end of the free addresses after a mapping, into which the mapping may have grown since the mappings were
/// read.
fn room_behind(end: u64, next_start: u64) -> u64 {
    end.saturating_add(ROOM_TO_GROW).min(next_start.max(end))
}

/// Returns the ranges to release for the wanted mappings, given all mappings of a process. Each range includes the free
/// addresses after its mapping, because the mapping may have grown in the meantime. A moved mapping is not watched
/// (`mremap_userfaultfd_prep` of fs/userfaultfd.c).
pub fn to_let_go(maps: &[Mapping], is_wanted: &dyn Fn(&Mapping) -> bool) -> Vec<Range<u64>> {
    let wanted = maps.iter().enumerate().filter(|(_, m)| is_wanted(m));
    let with_room = |(mapping, m): (usize, &Mapping)| {
        let next_start = maps.get(mapping + 1).map_or(u64::MAX, |next| next.start);
        m.start..room_behind(m.end, next_start)
    };
    wanted.map(with_room).collect()
}

/// Returns true if this memory is reserved for the last of these mappings.
fn is_reserve_of(m: &Mapping, others: &Neighbours) -> bool {
    let last = others.members.last();
    is_closed(m) && last.is_some_and(|last| last.part.end == m.start)
}

/// Returns true if this is a guard, for example of a stack.
fn is_guard(m: &Mapping) -> bool {
    is_closed(m) && m.end - m.start <= MOST_GUARD_BYTES
}

fn is_closed(m: &Mapping) -> bool {
    let is_private = !m.shared && m.file_id.2 == 0 && m.path.is_empty();
    is_private && !m.read && !m.write && !m.exec
}

#[cfg(test)]
mod tests {
    use super::*;
    use memhook_process::parse_maps;

    fn together(text: &str) -> Vec<Neighbours> {
        let maps = parse_maps(text);
        let is_wanted = |m: &Mapping| m.read && m.write;
        neighbours(&maps, &is_wanted, &|_, _| true)
    }

    /// Returns the parts and the range of each request.
    fn found(text: &str) -> Vec<(Vec<Range<u64>>, Range<u64>)> {
        let parts = |found: Neighbours| {
            let parts = found.members.into_iter().map(|member| member.part);
            (parts.collect(), found.whole)
        };
        together(text).into_iter().map(parts).collect()
    }

    fn alone(part: Range<u64>, whole: Range<u64>) -> (Vec<Range<u64>>, Range<u64>) {
        (vec![part], whole)
    }

    #[test]
    fn the_heap_grows_at_a_page_that_is_left_out() {
        let heap = "10000-20000 rw-p 0 00:00 0 [heap]\n";
        assert_eq!(found(heap), [alone(0x10000..0x1f000, 0x10000..0x1f000)]);
        // Memory that is already watched, and the last page of the heap, which was left out and has since grown into
        // more pages.
        let cut = "10000-1f000 rw-p 0 00:00 0 [heap]\n1f000-28000 rw-p 0 00:00 0 [heap]\n";
        let parts = [
            alone(0x10000..0x1f000, 0x10000..0x1f000),
            alone(0x1f000..0x27000, 0x1f000..0x27000),
        ];
        assert_eq!(found(cut), parts);
        assert_eq!(found("10000-11000 rw-p 0 00:00 0 [heap]\n"), []);
        // The mapping after it leaves it room to grow.
        let behind = "10000-20000 rw-p 0 00:00 0 [heap]\n30000-40000 rw-p 0 00:00 0\n";
        let end = 0x40000 + ROOM_TO_GROW;
        assert_eq!(found(behind)[1], alone(0x30000..0x40000, 0x28000..end));
    }

    #[test]
    fn an_arena_is_watched_with_its_reserve() {
        let arena = "10000000-10200000 rw-p 0 00:00 0\n10200000-14000000 ---p 0 00:00 0\n14000000-14001000 r--p 0 00:00 0\n";
        let whole = 0x0c00_0000..0x1400_0000;
        assert_eq!(found(arena), [alone(0x1000_0000..0x1020_0000, whole)]);
        // A reserve without a mapping before it.
        let apart = "10000-20000 rw-p 0 00:00 0\n30000-90000 ---p 0 00:00 0\n";
        assert_eq!(found(apart), [alone(0x10000..0x20000, 0x10000..0x30000)]);
        let file = "10000-20000 rw-p 0 00:00 0\n20000-90000 ---p 0 08:01 7 /lib/x\n";
        assert_eq!(found(file), [alone(0x10000..0x20000, 0x10000..0x20000)]);
    }

    #[test]
    fn what_may_have_moved_is_watched_where_it_is_now() {
        // A library, a gap, stacks with their guards, a gap, a library.
        let maps = "10000-20000 r--p 0 08:01 7 /lib/x\n30000-31000 ---p 0 00:00 0\n31000-40000 rw-p 0 00:00 0\n50000-51000 ---p 0 00:00 0\n51000-60000 rw-p 0 00:00 0\n80000-90000 r--p 0 08:01 7 /lib/y\n";
        let parts = vec![0x31000..0x40000, 0x51000..0x60000];
        assert_eq!(found(maps), [(parts, 0x20000..0x80000)]);
    }

    #[test]
    fn many_are_watched_by_several_requests_that_touch() {
        let line = |i: u64| {
            let start = 0x1000_0000 + i * 0x4000;
            format!("{start:x}-{:x} rw-p 0 00:00 0\n", start + 0x1000)
        };
        let count = 3 * MOST_TOGETHER + 1;
        let text: String = (0..count as u64).map(line).collect();
        let found = together(&text);
        assert_eq!(found.len(), 4);
        let members = found.iter().map(|found| found.members.len());
        assert_eq!(members.sum::<usize>(), count);
        for two in found.windows(2) {
            assert_eq!(two[0].whole.end, two[1].whole.start);
            let last = two[0].members.last().expect("one");
            assert_eq!(two[0].whole.end, last.part.end + 0x1000);
        }
        // Each half of the mappings, until each mapping is alone.
        let [first, second] = found[0].clone().halves().expect("two");
        assert_eq!(first.whole.end, second.whole.start);
        assert_eq!(first.members.len(), second.members.len());
        assert_eq!(found[3].clone().halves(), None);
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
        let found = neighbours(&maps, &|_| true, &|_, _| false);
        assert_eq!(found[0].members[0].part, 0x10000..0x20000);
        assert_eq!(found[0].whole, 0x10000..0x20000 + ROOM_TO_GROW);
    }
}
