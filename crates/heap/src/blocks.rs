//! The blocks of a heap, by address and by number.

mod segment;
mod sets;

use std::ops::Range;

pub use crate::blocks::segment::{Block, BlockStart, Near, Segment, SegmentKind};
pub use crate::blocks::sets::{BlockSet, BlockStartSet};

/// All blocks in use, numbered in address order.
#[derive(Clone, Debug, Default)]
pub struct BlockTable {
    segments: Vec<Segment>,
    /// First address of each segment.
    starts: Vec<u64>,
    low: u64,
    span: u64,
    /// Folded bitmap with one bit for each 2 MiB of addresses. A bit is set if a segment is near.
    filter: Vec<u64>,
    count: u32,
}

const FILTER_SHIFT: u32 = 21;
const FILTER_BITS: u64 = 1 << 20;

impl BlockTable {
    /// Builds a table from segments in any order. Segments without blocks are dropped.
    pub fn new(mut segments: Vec<Segment>) -> BlockTable {
        segments.retain(|s| !s.offsets.is_empty());
        segments.sort_by_key(|s| s.start);
        let mut table = BlockTable {
            filter: vec![0; FILTER_BITS as usize / 64],
            ..BlockTable::default()
        };
        let mut units = 0;
        for segment in &mut segments {
            segment.index();
            segment.first_unit = units;
            units += segment.units();
            segment.first = table.count;
            segment.count = segment.offsets.len() as u32;
            table.count = table.count.saturating_add(segment.count);
            for page in segment.start >> FILTER_SHIFT..=segment.end >> FILTER_SHIFT {
                let bit = page % FILTER_BITS;
                table.filter[bit as usize / 64] |= 1 << (bit % 64);
            }
        }
        table.low = segments.first().map_or(0, |s| s.start);
        table.span = segments.last().map_or(0, |s| s.end - table.low);
        table.starts = segments.iter().map(|s| s.start).collect();
        table.segments = segments;
        table
    }

    /// Replaces the segments of arenas.
    pub(crate) fn with_arenas(mut self, arenas: Vec<Segment>) -> BlockTable {
        self.segments.retain(|segment| !segment.kind.is_arena());
        self.with(arenas)
    }

    /// Adds segments at other addresses.
    pub fn with(self, more: Vec<Segment>) -> BlockTable {
        let mut segments = self.segments;
        segments.extend(more);
        for segment in &mut segments {
            (segment.bits, segment.ranks) = Default::default();
        }
        BlockTable::new(segments)
    }

    /// Returns the number of blocks.
    pub fn len(&self) -> u32 {
        self.count
    }

    /// Returns true if there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the segments in address order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the places of a segment's blocks.
    pub fn places(&self, segment: usize) -> impl Iterator<Item = BlockStart> + '_ {
        let offsets = self.segments[segment].offsets.iter();
        offsets.map(move |&unit| BlockStart {
            segment: segment as u32,
            unit,
        })
    }

    /// Returns the segment of a block.
    pub fn segment_of(&self, block: u32) -> &Segment {
        let after = self.segments.partition_point(|s| s.first <= block);
        &self.segments[after.saturating_sub(1)]
    }

    /// Returns a block by its number, which must be below [`BlockTable::len`].
    pub fn get(&self, block: u32) -> Block {
        let segment = self.segment_of(block);
        segment.block(segment.offsets[(block - segment.first) as usize])
    }

    /// Iterates over the blocks, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Block)> + '_ {
        self.segments.iter().flat_map(|segment| {
            let offsets = segment.offsets.iter().enumerate();
            offsets.map(|(i, &unit)| (segment.first + i as u32, segment.block(unit)))
        })
    }

    /// Iterates over the blocks that begin in a range, with their numbers.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = (u32, Block)> + '_ {
        let after = self.starts.partition_point(|&start| start <= range.start);
        let first = self
            .segments
            .get(after.saturating_sub(1)..)
            .unwrap_or_default();
        let segments = first
            .iter()
            .take_while(move |segment| segment.start < range.end);
        segments.flat_map(move |segment| {
            let unit = segment.kind.unit();
            let begin = range.start.saturating_sub(segment.start).div_ceil(unit);
            let before = segment
                .offsets
                .partition_point(|&offset| u64::from(offset) < begin);
            let end = range.end;
            let offsets = segment.offsets[before..].iter().enumerate();
            let blocks = offsets.map(move |(i, &offset)| {
                (segment.first + (before + i) as u32, segment.block(offset))
            });
            blocks.take_while(move |(_, block)| block.address < end)
        })
    }

    /// Returns true if a word may be the address of a block. The test is cheap and nearly always
    /// right.
    #[inline]
    pub fn may_be(&self, word: u64) -> bool {
        if word.wrapping_sub(self.low) > self.span {
            return false;
        }
        let bit = (word >> FILTER_SHIFT) % FILTER_BITS;
        // A table without blocks has no filter.
        let near = self.filter.get(bit as usize / 64);
        near.is_some_and(|bits| bits >> (bit % 64) & 1 != 0)
    }

    /// Returns the block that contains an address, and the offset in the block. The address just
    /// past a block also counts, except for blocks with their own mapping.
    #[inline]
    pub fn find(&self, address: u64) -> Option<(u32, u64)> {
        let (place, offset) = self.place(address)?;
        Some((self.number(place), offset))
    }

    /// Like [`BlockTable::find`], but without the block number.
    #[inline]
    pub fn place(&self, address: u64) -> Option<(BlockStart, u64)> {
        self.place_near(self.near(address)?)
    }

    /// Returns the segment near an address that passed [`BlockTable::may_be`], and the unit in it.
    #[inline]
    pub fn near(&self, address: u64) -> Option<Near> {
        if !self.may_be(address) {
            return None;
        }
        let index = self
            .starts
            .partition_point(|&s| s <= address)
            .checked_sub(1)?;
        let segment = &self.segments[index];
        let unit = (address - segment.start) / segment.kind.unit();
        (address <= segment.end).then_some(Near {
            address,
            segment: index as u32,
            unit,
        })
    }

    /// Reads the memory that [`BlockTable::place_near`] reads first, to bring it into the cache.
    #[inline]
    pub fn touch(&self, near: Near) -> u64 {
        let bits = &self.segments[near.segment as usize].bits;
        bits.get(near.unit as usize / 64).map_or(0, |word| word[0])
    }

    /// Like [`BlockTable::place`], for an address whose segment is known.
    #[inline]
    pub fn place_near(&self, near: Near) -> Option<(BlockStart, u64)> {
        let index = near.segment as usize;
        let segment = &self.segments[index];
        let unit = segment.begin(near.unit as usize)?;
        let block = segment.block(unit);
        let offset = near.address.wrapping_sub(block.address);
        // The end of a mapping may be the start of the next one. A pointer to this address nearly
        // always means the start (of a library, for example). A block that was cut out of a larger
        // one, or that is part of a slab, is followed by another block of the same kind, or by
        // space for one.
        let past_end = match segment.kind {
            SegmentKind::Mapped { tight: true }
            | SegmentKind::Sized(_)
            | SegmentKind::Described => 0,
            _ => 1,
        };
        let place = BlockStart {
            segment: index as u32,
            unit,
        };
        (offset < block.bytes + past_end).then_some((place, offset))
    }

    /// Returns the region of a dissected heap that ends at an address.
    #[inline]
    pub fn ending_at(&self, address: u64) -> Option<BlockStart> {
        let near = self.near(address.wrapping_sub(1))?;
        let segment = &self.segments[near.segment as usize];
        if !matches!(segment.kind, SegmentKind::Sized(_)) {
            return None;
        }
        let (place, offset) = self.place_near(near)?;
        (offset + 1 == segment.block(place.unit).bytes).then_some(place)
    }

    /// Returns the number of the block at a place.
    #[inline]
    pub fn number(&self, place: BlockStart) -> u32 {
        let segment = &self.segments[place.segment as usize];
        segment.first + segment.rank(place.unit as usize).unwrap_or(0)
    }

    /// Returns the block at a position, and the index of its segment.
    #[inline]
    pub fn at(&self, place: BlockStart) -> (Block, usize) {
        let index = place.segment as usize;
        (self.segments[index].block(place.unit), index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_holds_a_traced_one_at_its_address_or_the_only_one_inside() {
        let block = Block {
            address: 0x1000,
            bytes: 0x100,
        };
        let held = |traced: &[u64]| block.holding(traced, |&address| address).copied();
        assert_eq!(held(&[0xff0, 0x1000, 0x1080]), Some(0x1000));
        assert_eq!(held(&[0xff0, 0x1010, 0x1100]), Some(0x1010));
        assert_eq!(held(&[0x1010, 0x1080]), None);
        assert_eq!(held(&[0xff0, 0x1100]), None);
        assert_eq!(held(&[]), None);
    }

    #[test]
    fn foreign_blocks_lie_side_by_side() {
        let mut segment = Segment::new(0x1000, 0x1100, SegmentKind::Foreign);
        for (address, bytes) in [(0x1008, 8), (0x1010, 20), (0x1080, 1)] {
            assert!(segment.push(address, bytes));
        }
        let table = BlockTable::default().with(vec![segment]);
        assert_eq!(table.find(0x1000), None);
        assert_eq!(table.find(0x100f), Some((0, 7)));
        assert_eq!(table.find(0x1010), Some((1, 0)));
        // Requested sizes are rounded up to words. The address just past the end counts too.
        assert_eq!(table.find(0x1028), Some((1, 24)));
        assert_eq!(table.find(0x1029), None);
        assert_eq!(
            table.get(2),
            Block {
                address: 0x1080,
                bytes: 8
            }
        );
    }

    #[test]
    fn in_a_table_without_blocks_nothing_is_found() {
        for table in [BlockTable::default(), BlockTable::new(Vec::new())] {
            for word in [0, 1, u64::MAX] {
                assert!(!table.may_be(word) && table.find(word).is_none());
                assert_eq!(table.ending_at(word), None);
            }
        }
    }

    #[test]
    fn blocks_of_a_range() {
        let mut low = Segment::new(0x1000, 0x2000, SegmentKind::Sized(0));
        let mut high = Segment::new(0x3000, 0x4000, SegmentKind::Sized(0));
        for block in [0x1000, 0x1008, 0x1ff8] {
            assert!(low.push(block, 8));
        }
        assert!(high.push(0x3800, 8));
        let table = BlockTable::new(vec![low, high]);
        let of = |range| {
            table
                .within(range)
                .map(|(number, _)| number)
                .collect::<Vec<_>>()
        };
        assert_eq!(of(0..0x1000), [0u32; 0]);
        assert_eq!(of(0x1000..0x1008), [0]);
        assert_eq!(of(0x1001..0x3801), [1, 2, 3]);
        assert_eq!(of(0x2000..0x3800), [0u32; 0]);
        assert_eq!(of(0x3800..u64::MAX), [3]);
        assert_eq!(BlockTable::default().within(0..9).count(), 0);
        let ending = |address| table.ending_at(address).map(|place| table.number(place));
        assert_eq!(
            [0x1008, 0x1010, 0x2000, 0x3807].map(ending),
            [Some(0), Some(1), Some(2), None]
        );
    }

    #[test]
    fn heaps_of_more_than_four_billion_units() {
        let (start, end) = (0x1000, 0x1000 + (200 << 30));
        let far = start + (150 << 30);
        let mut segments = vec![Segment::new(start, end, SegmentKind::Arena(0))];
        for user in [start + 16, far, far + 48] {
            assert!(Segment::push_onto(&mut segments, user, 48));
        }
        assert!(!Segment::push_onto(&mut segments, far + 96, 70 << 30));
        let table = BlockTable::new(segments);
        assert_eq!(table.len(), 3);
        assert_eq!(table.find(start + 20), Some((0, 4)));
        assert_eq!(table.find(far - 1), None);
        assert_eq!(table.find(far + 40), Some((1, 40)));
        assert_eq!(table.find(far + 50), Some((2, 2)));
    }

    #[test]
    fn every_address_finds_its_block() {
        let mut segment = Segment::new(0x1000, 0x40_0000, SegmentKind::Arena(0));
        let mut expected = Vec::new();
        let mut at = 0x1010;
        for i in 0..3000u64 {
            // Some blocks are larger than the search distance near an address.
            let bytes = 32 + i % 37 * 16 + if i % 100 == 7 { 20_000 } else { 0 };
            if i % 3 != 0 {
                assert!(segment.push(at, bytes));
                expected.push((at, bytes));
            }
            at += bytes;
        }
        let mut alone = Segment::new(
            0x70_0000_0000,
            0x70_0000_2000,
            SegmentKind::Mapped { tight: true },
        );
        assert!(alone.push(0x70_0000_0010, 0x2000));
        let table = BlockTable::new(vec![alone, segment]);
        assert_eq!(table.len(), expected.len() as u32 + 1);
        for (i, &(user, bytes)) in expected.iter().enumerate() {
            let block = i as u32;
            assert_eq!(table.get(block).address, user);
            assert_eq!(table.find(user), Some((block, 0)));
            assert_eq!(table.find(user + bytes - 8), Some((block, bytes - 8)));
            assert_eq!(table.find(user + bytes / 2), Some((block, bytes / 2)));
            assert_eq!(table.get(block).bytes, bytes - 8);
            assert_ne!(table.find(user - 1).map(|f| f.0), Some(block));
            assert_ne!(table.find(user + bytes - 7).map(|f| f.0), Some(block));
        }
        assert_eq!(
            table.find(0x70_0000_1ff0),
            Some((expected.len() as u32, 0x1fe0))
        );
        let last = expected.len() as u32;
        assert_eq!(table.find(0x70_0000_1fff), Some((last, 0x1fef)));
        assert_eq!(table.find(0x70_0000_2000), None);
        assert_eq!(table.find(0), None);
        assert_eq!(table.find(u64::MAX), None);
    }
}
