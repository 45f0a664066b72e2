//! Parts of a mapping to watch so that it continues to grow as one.
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
//! Nothing else is cut: mremap(2) refuses ranges of several mappings, and a program may call it on memory of its own. It may
//! also have called it since the mappings were looked at: one is longer then, or somewhere else, or another one is where
//! it was. So mappings are watched together with all that lies between them, by one request, from what is not watched
//! before them to what is not watched behind them. Wherever in there they are by then, they are watched whole.

use crate::page_scan::{PAGE_BYTES, PageScan, PageState};
use memhook_process::Mapping;
use std::ops::Range;

/// An inaccessible neighbour that is no larger is a guard, and is never opened; a larger one is what a heap grows into.
const MOST_GUARD_BYTES: u64 = 64 << 10;

/// More than a mapping grows by between a look at it and the next request.
const ROOM_TO_GROW: u64 = 64 << 20;

/// By default, nothing is mapped below (vm.mmap_min_addr), and a request for it is refused.
const LEAST_ADDRESS: u64 = 64 << 10;

/// Threads that map or unmap memory wait for a request, which takes longer with each mapping in it.
const MOST_TOGETHER: usize = 256;

/// A mapping, and what to watch of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watchable {
    /// Its number in the list of mappings.
    pub mapping: usize,
    /// The part with pages that can be watched.
    pub part: Range<u64>,
}

/// Mappings that are watched by one request, so that none of them is cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbours {
    /// In order, at least one.
    pub members: Vec<Watchable>,
    /// Range that the request has to cover: all of them, with what they may grow or move into.
    pub whole: Range<u64>,
}

impl Neighbours {
    /// Splits them into two halves, if there are any: a request for all of them was refused because of one.
    pub(super) fn halves(self) -> Option<[Neighbours; 2]> {
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

/// Returns what to watch of the wanted mappings among all mappings of a process, in order.
pub fn watchable(
    pages: &PageScan,
    maps: &[Mapping],
    is_wanted: &dyn Fn(&Mapping) -> bool,
) -> Vec<Neighbours> {
    let can_be_cut = |mapping: &Mapping, at: u64| {
        let mut huge = Vec::new();
        // Without a page there would be no `anon_vma` that both parts share; a huge page would be split.
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
    // What the next ones may have moved into begins here. Whether they belong to the last ones.
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
            // Grown by brk(2) alone, in its place.
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

/// The page in the middle between two addresses.
fn middle(end: u64, start: u64) -> u64 {
    (end + start.saturating_sub(end) / 2) & !(PAGE_BYTES - 1)
}

/// The end of the free addresses behind a mapping into which it may have grown since it was looked at.
fn room_behind(end: u64, next_start: u64) -> u64 {
    end.saturating_add(ROOM_TO_GROW).min(next_start.max(end))
}

/// Returns what to release of the wanted mappings among all mappings of a process: each with the free addresses behind
/// it, as it may have grown since. Where it moves to, it is not watched (`mremap_userfaultfd_prep` of
/// fs/userfaultfd.c).
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

/// Returns true if this is a guard beside a stack or the like.
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

    /// The parts, and what each request is for.
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
        // What is watched already, and the page that was left out, which has grown.
        let cut = "10000-1f000 rw-p 0 00:00 0 [heap]\n1f000-28000 rw-p 0 00:00 0 [heap]\n";
        let parts = [
            alone(0x10000..0x1f000, 0x10000..0x1f000),
            alone(0x1f000..0x27000, 0x1f000..0x27000),
        ];
        assert_eq!(found(cut), parts);
        assert_eq!(found("10000-11000 rw-p 0 00:00 0 [heap]\n"), []);
        // What lies behind it leaves it room.
        let behind = "10000-20000 rw-p 0 00:00 0 [heap]\n30000-40000 rw-p 0 00:00 0\n";
        let end = 0x40000 + ROOM_TO_GROW;
        assert_eq!(found(behind)[1], alone(0x30000..0x40000, 0x28000..end));
    }

    #[test]
    fn an_arena_is_watched_with_its_reserve() {
        let arena = "10000000-10200000 rw-p 0 00:00 0\n10200000-14000000 ---p 0 00:00 0\n14000000-14001000 r--p 0 00:00 0\n";
        let whole = 0x0c00_0000..0x1400_0000;
        assert_eq!(found(arena), [alone(0x1000_0000..0x1020_0000, whole)]);
        // A reserve that is nobody's.
        let apart = "10000-20000 rw-p 0 00:00 0\n30000-90000 ---p 0 00:00 0\n";
        assert_eq!(found(apart), [alone(0x10000..0x20000, 0x10000..0x30000)]);
        let file = "10000-20000 rw-p 0 00:00 0\n20000-90000 ---p 0 08:01 7 /lib/x\n";
        assert_eq!(found(file), [alone(0x10000..0x20000, 0x10000..0x20000)]);
    }

    #[test]
    fn what_may_have_moved_is_watched_where_it_is_now() {
        // A library, what is between, stacks with their guards, what is between, a library.
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
        // Each half of them, until each is alone.
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
