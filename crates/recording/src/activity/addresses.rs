//! Addresses of blocks at a few moments of a run, as cells of one or several pages with the live
//! blocks of each site.
//!
//! The number of cells of a moment is bounded, regardless of how many blocks are live. If there are
//! too many cells, the size of all cells is doubled. With very many sites, the bound allows a few
//! cells for each site, because every site is in at least one cell of any size. A block that covers
//! several cells completely has one entry for all of them.

use memhook_ledger::LiveBlock;
use rustc_hash::{FxHashMap, FxHashSet};

/// Size of the smallest cell as a power of two: a page of x86-64.
const PAGE_SHIFT: u32 = 12;
/// Size of the largest cell as a power of two.
const LARGEST_SHIFT: u32 = 47;
/// Bound on the addresses of a process. A damaged file may contain any number.
const LAST_ADDRESS: u64 = 1 << 57;
/// Number of cells for each site, if a map has more sites than it may have cells.
const CELLS_OF_SITE: usize = 2;
/// Minimum number of completely covered cells for which a block gets a separate entry.
const LEAST_RUN: u64 = 2;

/// Live blocks of a site in a cell, or in several adjacent cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressCell {
    /// Number of the cell: its first address divided by the size of a cell.
    pub start: u64,
    /// Number of further cells that the same block covers.
    pub more: u64,
    /// Index of the site.
    pub site: u32,
    /// Number of blocks that begin in the cell.
    pub blocks: u64,
    /// Requested bytes of these blocks, and of earlier blocks that extend into the cell.
    pub bytes: u64,
    /// Allocation time of the oldest of these blocks, in nanoseconds since the attach.
    pub oldest_ns: u64,
}

/// Addresses of live blocks at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressMap {
    /// The moment, in nanoseconds since the attach.
    pub at_ns: u64,
    /// Size of a cell, as a power of two.
    pub shift: u32,
    /// Live blocks, sorted by cell and site. Empty cells are left out.
    pub cells: Vec<AddressCell>,
}

#[derive(Clone, Copy)]
struct Held {
    blocks: u64,
    bytes: u64,
    oldest_ns: u64,
}

/// A block that is larger than a cell.
#[derive(Clone, Copy)]
struct Large {
    address: u64,
    size: u64,
    site: u32,
    time_ns: u64,
}

/// A map under construction.
struct Drawing {
    shift: u32,
    most: usize,
    sites: FxHashSet<u32>,
    held: FxHashMap<(u64, u32), Held>,
    large: Vec<Large>,
}

impl Drawing {
    fn new(most: usize) -> Drawing {
        Drawing {
            shift: PAGE_SHIFT,
            most,
            sites: FxHashSet::default(),
            held: FxHashMap::default(),
            large: Vec::new(),
        }
    }

    fn add(&mut self, block: Large) {
        if block.address.saturating_add(block.size) > LAST_ADDRESS {
            return;
        }
        self.sites.insert(block.site);
        if self.covered(&block).is_some() {
            self.large.push(block);
        } else {
            self.put_bytes(&block);
        }
        let most = self.most.max(CELLS_OF_SITE * self.sites.len());
        // A large block has one entry for each end, and one for the middle.
        while self.held.len() + 3 * self.large.len() > most && self.shift < LARGEST_SHIFT {
            self.coarsen();
        }
    }

    /// Returns the range of cells that a large block covers completely: the first cell, and the
    /// cell after the last.
    fn covered(&self, block: &Large) -> Option<(u64, u64)> {
        let size = 1u64 << self.shift;
        let first = block.address.div_ceil(size);
        let end = block.address.saturating_add(block.size) >> self.shift;
        (end.saturating_sub(first) >= LEAST_RUN).then_some((first, end))
    }

    /// Adds a block that spans a few cells to each of them.
    fn put_bytes(&mut self, block: &Large) {
        let end = block.address.saturating_add(block.size);
        let (mut at, mut blocks) = (block.address, 1);
        loop {
            let next = ((at >> self.shift) + 1) << self.shift;
            let until = next.min(end).max(at);
            self.put(at >> self.shift, block, blocks, until - at);
            if next >= end {
                return;
            }
            (at, blocks) = (next, 0);
        }
    }

    fn put(&mut self, cell: u64, block: &Large, blocks: u64, bytes: u64) {
        let nothing = Held {
            blocks: 0,
            bytes: 0,
            oldest_ns: u64::MAX,
        };
        let held = self.held.entry((cell, block.site)).or_insert(nothing);
        held.blocks += blocks;
        held.bytes = held.bytes.saturating_add(bytes);
        held.oldest_ns = held.oldest_ns.min(block.time_ns);
    }

    /// Doubles the size of cells.
    #[cold]
    fn coarsen(&mut self) {
        self.shift += 1;
        for ((cell, site), old) in std::mem::take(&mut self.held) {
            let held = self.held.entry((cell >> 1, site)).or_insert(Held {
                blocks: 0,
                bytes: 0,
                ..old
            });
            held.blocks += old.blocks;
            held.bytes = held.bytes.saturating_add(old.bytes);
            held.oldest_ns = held.oldest_ns.min(old.oldest_ns);
        }
        for block in std::mem::take(&mut self.large) {
            if self.covered(&block).is_some() {
                self.large.push(block);
            } else {
                self.put_bytes(&block);
            }
        }
    }

    fn finish(mut self, at_ns: u64) -> AddressMap {
        let mut cells = Vec::with_capacity(self.held.len() + 3 * self.large.len());
        for block in std::mem::take(&mut self.large) {
            let Some((first, end)) = self.covered(&block) else {
                continue;
            };
            let (from, to) = (first << self.shift, end << self.shift);
            let last = block.address.saturating_add(block.size);
            // The block is counted where it begins.
            let begins_inside = u64::from(block.address == from);
            if begins_inside == 0 {
                let cell = block.address >> self.shift;
                self.put(cell, &block, 1, from - block.address);
            }
            cells.push(AddressCell {
                start: first,
                more: end - first - 1,
                site: block.site,
                blocks: begins_inside,
                bytes: to - from,
                oldest_ns: block.time_ns,
            });
            if last > to {
                self.put(end, &block, 0, last - to);
            }
        }
        cells.extend(
            self.held
                .into_iter()
                .map(|((start, site), held)| AddressCell {
                    start,
                    more: 0,
                    site,
                    blocks: held.blocks,
                    bytes: held.bytes,
                    oldest_ns: held.oldest_ns,
                }),
        );
        cells.sort_unstable_by_key(|cell| (cell.start, cell.more, cell.site));
        AddressMap {
            at_ns,
            shift: self.shift,
            cells,
        }
    }
}

/// Maps of a run, collected during its replay. Sites have temporary numbers until their indices are
/// known.
#[derive(Default)]
pub(crate) struct AddressMaps {
    /// Times at which maps are due, the next one last.
    due_ns: Vec<u64>,
    most: usize,
    maps: Vec<AddressMap>,
    /// Temporary numbers by stack and thread.
    sites: FxHashMap<(u32, u32), u32>,
}

impl AddressMaps {
    /// Plans `moments` moments of a run from `from_ns` to `to_ns`, including the end, with about
    /// `most` cells in total, a third of them for the end. Without moments, there are no maps.
    pub fn new((from_ns, to_ns): (u64, u64), moments: usize, most: usize) -> AddressMaps {
        let steps = moments as u64;
        let step_ns = to_ns.saturating_sub(from_ns) / steps.max(1);
        AddressMaps {
            due_ns: (1..steps).rev().map(|n| from_ns + n * step_ns).collect(),
            most: if moments > 0 { most.max(3) } else { 0 },
            ..AddressMaps::default()
        }
    }

    /// Returns true if a map is due.
    #[inline]
    pub fn is_due(&self, now_ns: u64) -> bool {
        self.due_ns.last().is_some_and(|&due_ns| now_ns >= due_ns)
    }

    /// Draws the live blocks at a due moment.
    #[cold]
    pub fn draw(&mut self, now_ns: u64, blocks: impl Iterator<Item = LiveBlock>) {
        self.due_ns.retain(|&due_ns| due_ns > now_ns);
        let before_end = self.maps.len() + self.due_ns.len() + 1;
        self.push(now_ns, blocks, self.most * 2 / 3 / before_end);
    }

    fn push(&mut self, at_ns: u64, blocks: impl Iterator<Item = LiveBlock>, most: usize) {
        let mut drawing = Drawing::new(most);
        for block in blocks {
            let next = self.sites.len() as u32;
            let site = *self.sites.entry((block.stack, block.tid)).or_insert(next);
            drawing.add(Large {
                address: block.address,
                size: block.size,
                site,
                time_ns: block.time_ns,
            });
        }
        self.maps.push(drawing.finish(at_ns));
    }

    /// Returns the maps, including the map at the end of the run. `site_of` returns the index of a
    /// stack on a thread.
    pub fn finish(
        mut self,
        to_ns: u64,
        blocks: impl Iterator<Item = LiveBlock>,
        site_of: impl Fn(u32, u32) -> Option<u32>,
    ) -> Vec<AddressMap> {
        if self.most == 0 {
            return Vec::new();
        }
        self.push(to_ns, blocks, self.most / 3);
        let mut index_of = vec![None; self.sites.len()];
        for ((stack, tid), number) in self.sites {
            index_of[number as usize] = site_of(stack, tid);
        }
        for map in &mut self.maps {
            map.cells.retain_mut(|cell| {
                let index = index_of[cell.site as usize];
                cell.site = index.unwrap_or(0);
                index.is_some()
            });
            let order = |cell: &AddressCell| (cell.start, cell.more, cell.site);
            map.cells.sort_unstable_by_key(order);
        }
        self.maps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(address: u64, size: u64, stack: u32) -> LiveBlock {
        LiveBlock {
            address,
            size,
            stack,
            time_ns: address & 0xffff,
            tid: 1,
            sampling: 0,
        }
    }

    fn map_of(blocks: impl Iterator<Item = LiveBlock>, most: usize) -> AddressMap {
        let maps = AddressMaps::new((0, 100), 1, most);
        let mut maps = maps.finish(100, blocks, |stack, _| Some(stack));
        assert_eq!(maps.len(), 1);
        maps.remove(0)
    }

    /// Each of 1,000 sites has two blocks in two adjacent pages of a heap.
    #[test]
    fn many_sites_do_not_make_cells_as_large_as_the_address_space() {
        let blocks =
            (0..2_000u64).map(|at| block(0x7f00_0000_0000 + at * 2_048, 16, at as u32 / 2));
        let map = map_of(blocks, 100);
        assert!(map.shift < 20, "{}", map.shift);
        assert!(map.cells.len() <= CELLS_OF_SITE * 1_000);
    }

    #[test]
    fn blocks_lie_in_the_pages_that_they_reach_over() {
        let blocks = [
            block(0x10_0ff0, 0x20, 0),
            block(0x10_0000, 16, 0),
            block(0x10_0010, 0, 1),
            // The block covers three complete pages, and a part of the page before and of the page
            // after.
            block(0x20_0f00, 0x100 + 0x3000 + 0x10, 2),
            block(0x30_0000, 0x2000, 3),
        ];
        let map = map_of(blocks.into_iter(), 1000);
        assert_eq!((map.at_ns, map.shift), (100, 12));
        let found: Vec<_> = map
            .cells
            .iter()
            .map(|cell| (cell.start, cell.more, cell.site, cell.blocks, cell.bytes))
            .collect();
        let expected = [
            (0x100, 0, 0, 2, 0x20),
            (0x100, 0, 1, 1, 0),
            (0x101, 0, 0, 0, 0x10),
            (0x200, 0, 2, 1, 0x100),
            (0x201, 2, 2, 0, 0x3000),
            (0x204, 0, 2, 0, 0x10),
            (0x300, 1, 3, 1, 0x2000),
        ];
        assert_eq!(found, expected);
        assert_eq!(map.cells[0].oldest_ns, 0);
    }

    /// Ten million scattered blocks have at most the requested number of entries, and no bytes are
    /// lost.
    #[test]
    fn however_many_blocks_live_the_entries_are_bounded() {
        const COUNT: u64 = 10_000_000;
        let size = |n: u64| 16 + n % 7 * 24 + if n.is_multiple_of(1009) { 300_000 } else { 0 };
        let mut address = 0x5555_0000_0000;
        let mut total = 0;
        let blocks = (0..COUNT).map(|n| {
            let here = address;
            address += size(n).next_multiple_of(16)
                + 16
                + if n.is_multiple_of(40_000) { 1 << 26 } else { 0 };
            total += size(n);
            block(here, size(n), (n % 90) as u32)
        });
        let map = map_of(blocks, 60_000);
        assert!(map.cells.len() <= 20_000, "{}", map.cells.len());
        // With a hundredth of the entries, too little would be visible.
        assert!(map.cells.len() > 4_000, "{}", map.cells.len());
        let sum = |of: fn(&AddressCell) -> u64| map.cells.iter().map(of).sum::<u64>();
        assert_eq!(
            (sum(|cell| cell.blocks), sum(|cell| cell.bytes)),
            (COUNT, total)
        );
    }

    #[test]
    fn moments_are_drawn_once_each() {
        let mut maps = AddressMaps::new((0, 80), 4, 1000);
        let mut drawn = Vec::new();
        for now in [5, 19, 20, 21, 55, 62, 79] {
            if maps.is_due(now) {
                maps.draw(now, [block(0x1000, 8, 0)].into_iter());
                drawn.push(now);
            }
        }
        // The map due at 40 was drawn at 55.
        assert_eq!(drawn, [20, 55, 62]);
        let maps = maps.finish(80, std::iter::empty(), |_, _| None);
        let at: Vec<u64> = maps.iter().map(|map| map.at_ns).collect();
        assert_eq!(at, [20, 55, 62, 80]);
        let none = AddressMaps::new((0, 80), 0, 1000);
        assert!(none.finish(80, std::iter::empty(), |_, _| None).is_empty());
    }
}
