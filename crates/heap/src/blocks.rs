//! The blocks of a heap: address to block in a few memory accesses, 9 bytes a block.
//!
//! A segment of heap has two bits for each unit of 16 bytes (8 where another allocator made the blocks):
//! a block begins there, a block ends there. The bits near an address give the block it lies in, with its
//! bounds; they take so little room that they stay in the processor's cache while millions of blocks are
//! searched in no order. Far from the begin of a large block the number of bits up to the address is the
//! number of the block, whose bounds stand in a list: no search, however large the block.

/// What the blocks of a segment are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SegmentKind {
    /// Chunks of the arena with this index.
    Arena(u32),
    /// One chunk that is a mapping of its own.
    #[default]
    Mapped,
    /// Blocks of another allocator, as the ledger knows them: there may be others between them.
    Foreign,
}

impl SegmentKind {
    /// Bytes at which blocks are aligned, and which their sizes are counted in.
    fn unit(self) -> u64 {
        match self {
            SegmentKind::Foreign => 8,
            _ => 16,
        }
    }
}

/// A range of heap walked as a whole.
#[derive(Clone, Debug, Default)]
pub struct Segment {
    /// First address.
    pub start: u64,
    /// Past the last address.
    pub end: u64,
    /// Number of its first block.
    pub first: u32,
    /// How many blocks.
    pub count: u32,
    /// What its blocks are.
    pub kind: SegmentKind,
    /// For each 64 units where blocks begin, and where they end; empty if there is one block.
    bits: Vec<[u64; 2]>,
    /// Blocks that begin before each line of eight.
    ranks: Vec<u32>,
    offsets: Vec<u32>,
    sizes: Vec<u32>,
    /// Sum of the units of the segments before it.
    first_unit: u64,
}

/// How many 64 units are looked at for the begin or the end of a block.
const NEAR: usize = 8;

/// Where a block begins: its segment's index, and the unit in that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    segment: u32,
    unit: u32,
}

impl Segment {
    /// An empty segment; its blocks follow in address order.
    pub fn new(start: u64, end: u64, kind: SegmentKind) -> Segment {
        Segment {
            start,
            end,
            kind,
            ..Segment::default()
        }
    }

    /// Adds a block by its user address and the size of its chunk; of a foreign one, its own size.
    pub fn push(&mut self, user: u64, chunk_bytes: u64) {
        let unit = self.kind.unit();
        let offset = user.wrapping_sub(self.start) / unit;
        let units = chunk_bytes.div_ceil(unit).min(u64::from(u32::MAX));
        if let Ok(offset) = u32::try_from(offset) {
            self.offsets.push(offset);
            self.sizes.push(units as u32);
        }
    }

    /// Units from its start to behind the end of the last block.
    fn units(&self) -> u64 {
        let last = self.offsets.last().zip(self.sizes.last());
        last.map_or(0, |(&offset, &size)| u64::from(offset) + u64::from(size)) + 1
    }

    fn index(&mut self) {
        if self.offsets.len() < 2 {
            return;
        }
        let words = (self.units() / 64 + 1) as usize;
        self.bits = vec![[0; 2]; words.next_multiple_of(8)];
        for (&offset, &size) in self.offsets.iter().zip(&self.sizes) {
            let end = u64::from(offset) + u64::from(size);
            self.bits[offset as usize / 64][0] |= 1 << (offset % 64);
            self.bits[end as usize / 64][1] |= 1 << (end % 64);
        }
        let mut rank = 0;
        for line in self.bits.chunks(8) {
            self.ranks.push(rank);
            rank += line.iter().map(|w| w[0].count_ones()).sum::<u32>();
        }
    }

    /// Index of the last block that begins at or before a unit.
    fn rank(&self, unit: usize) -> Option<u32> {
        if self.bits.is_empty() {
            return (*self.offsets.first()? as usize <= unit).then_some(0);
        }
        let unit = unit.min(self.bits.len() * 64 - 1);
        let (word, bit) = (unit / 64, unit % 64);
        let line = word / 8;
        let full = self.bits.get(line * 8..word)?;
        let before: u32 = full.iter().map(|w| w[0].count_ones()).sum();
        let last = (self.bits.get(word)?[0] & (u64::MAX >> (63 - bit))).count_ones();
        (self.ranks.get(line)? + before + last).checked_sub(1)
    }

    /// The unit in which the last block at or before `unit` begins.
    #[inline]
    fn begin(&self, unit: usize) -> Option<u32> {
        let word = unit / 64;
        if word < self.bits.len() {
            let mut begins = self.bits[word][0] & (u64::MAX >> (63 - unit % 64));
            for back in 0..NEAR.min(word + 1) {
                if back > 0 {
                    begins = self.bits[word - back][0];
                }
                if begins != 0 {
                    return Some((word - back) as u32 * 64 + 63 - begins.leading_zeros());
                }
            }
        }
        let index = self.rank(unit)?;
        self.offsets.get(index as usize).copied()
    }

    /// Units of the block that begins in this one.
    #[inline]
    fn size(&self, begin: u32) -> u64 {
        let from = begin as usize + 1;
        let word = from / 64;
        if word < self.bits.len() {
            let mut ends = self.bits[word][1] & (u64::MAX << (from % 64));
            for ahead in 0..NEAR.min(self.bits.len() - word) {
                if ahead > 0 {
                    ends = self.bits[word + ahead][1];
                }
                if ends != 0 {
                    let end = (word + ahead) as u64 * 64 + u64::from(ends.trailing_zeros());
                    return end - u64::from(begin);
                }
            }
        }
        let index = self.rank(begin as usize).unwrap_or(0);
        self.sizes.get(index as usize).copied().map_or(0, u64::from)
    }

    /// The block that begins in this unit.
    #[inline]
    fn block(&self, begin: u32) -> Block {
        let unit = self.kind.unit();
        // The last word of a chunk belongs to the next one's header; it is usable but for mappings.
        let overhead = match self.kind {
            SegmentKind::Arena(_) => 8,
            SegmentKind::Mapped => 16,
            SegmentKind::Foreign => 0,
        };
        Block {
            address: self.start + u64::from(begin) * unit,
            bytes: (self.size(begin) * unit).saturating_sub(overhead),
        }
    }
}

/// One block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// What the program was given.
    pub address: u64,
    /// Bytes it may use.
    pub bytes: u64,
}

/// All blocks in use, numbered in address order.
#[derive(Clone, Debug, Default)]
pub struct BlockTable {
    segments: Vec<Segment>,
    /// Their first addresses.
    starts: Vec<u64>,
    low: u64,
    span: u64,
    /// One bit for each 2 MiB of address, folded: whether a segment is near.
    filter: Vec<u64>,
    count: u32,
}

const FILTER_SHIFT: u32 = 21;
const FILTER_BITS: u64 = 1 << 20;

impl BlockTable {
    /// Takes segments in any order; those without blocks are dropped.
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

    /// The same with more segments, of other addresses.
    pub fn with(self, more: Vec<Segment>) -> BlockTable {
        let mut segments = self.segments;
        segments.extend(more);
        for segment in &mut segments {
            (segment.bits, segment.ranks) = Default::default();
        }
        BlockTable::new(segments)
    }

    /// How many blocks.
    pub fn len(&self) -> u32 {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The segments in address order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The places of a segment's blocks.
    pub fn places(&self, segment: usize) -> impl Iterator<Item = Place> + '_ {
        let offsets = self.segments[segment].offsets.iter();
        offsets.map(move |&unit| Place {
            segment: segment as u32,
            unit,
        })
    }

    /// The segment of a block.
    pub fn segment_of(&self, block: u32) -> &Segment {
        let after = self.segments.partition_point(|s| s.first <= block);
        &self.segments[after.saturating_sub(1)]
    }

    /// A block by its number, which must be below [`BlockTable::len`].
    pub fn get(&self, block: u32) -> Block {
        let segment = self.segment_of(block);
        segment.block(segment.offsets[(block - segment.first) as usize])
    }

    /// Blocks by number.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Block)> + '_ {
        self.segments.iter().flat_map(|segment| {
            let offsets = segment.offsets.iter().enumerate();
            offsets.map(|(i, &unit)| (segment.first + i as u32, segment.block(unit)))
        })
    }

    /// Whether a word can be the address of a block at all: cheap, and nearly always right.
    #[inline]
    pub fn may_be(&self, word: u64) -> bool {
        if word.wrapping_sub(self.low) > self.span {
            return false;
        }
        let bit = (word >> FILTER_SHIFT) % FILTER_BITS;
        self.filter[bit as usize / 64] >> (bit % 64) & 1 != 0
    }

    /// The block that an address lies in, or just past the end of (but for mappings of their own), with
    /// the offset.
    #[inline]
    pub fn find(&self, address: u64) -> Option<(u32, u64)> {
        let (place, offset) = self.place(address)?;
        Some((self.number(place), offset))
    }

    /// As [`BlockTable::find`], without the number.
    #[inline]
    pub fn place(&self, address: u64) -> Option<(Place, u64)> {
        if !self.may_be(address) {
            return None;
        }
        let index = self
            .starts
            .partition_point(|&s| s <= address)
            .checked_sub(1)?;
        let segment = &self.segments[index];
        if address > segment.end {
            return None;
        }
        let unit = segment.begin(((address - segment.start) / segment.kind.unit()) as usize)?;
        let block = segment.block(unit);
        let offset = address.wrapping_sub(block.address);
        // A mapping ends where the next one may begin: such a pointer is nearly always the other's
        // address (that of a library, say).
        let past_end = u64::from(segment.kind != SegmentKind::Mapped);
        let place = Place {
            segment: index as u32,
            unit,
        };
        (offset < block.bytes + past_end).then_some((place, offset))
    }

    /// The number of the block at a place.
    #[inline]
    pub fn number(&self, place: Place) -> u32 {
        let segment = &self.segments[place.segment as usize];
        segment.first + segment.rank(place.unit as usize).unwrap_or(0)
    }

    /// The block at a place, and the index of its segment.
    #[inline]
    pub fn at(&self, place: Place) -> (Block, usize) {
        let index = place.segment as usize;
        (self.segments[index].block(place.unit), index)
    }
}

/// Blocks that were seen, by place: one bit for each unit of heap.
#[derive(Debug)]
pub struct PlaceSet(Vec<u64>);

impl PlaceSet {
    /// An empty set.
    pub fn new(table: &BlockTable) -> PlaceSet {
        let last = table.segments.last();
        let units = last.map_or(0, |s| s.first_unit + s.units());
        PlaceSet(vec![0; (units / 64 + 1) as usize])
    }

    /// Adds a block; whether it was new.
    #[inline]
    pub fn insert(&mut self, table: &BlockTable, place: Place) -> bool {
        let segment = &table.segments[place.segment as usize];
        let at = segment.first_unit + u64::from(place.unit);
        let word = &mut self.0[(at / 64) as usize];
        let bit = 1 << (at % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// The same by number.
    pub fn numbers(&self, table: &BlockTable) -> BlockSet {
        let mut set = BlockSet::new(table.len());
        for segment in &table.segments {
            for (number, &unit) in (segment.first..).zip(&segment.offsets) {
                let at = segment.first_unit + u64::from(unit);
                if self.0[(at / 64) as usize] >> (at % 64) & 1 != 0 {
                    set.insert(number);
                }
            }
        }
        set
    }
}

/// A set of blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockSet(Vec<u64>);

impl BlockSet {
    /// An empty set for `count` blocks.
    pub fn new(count: u32) -> BlockSet {
        BlockSet(vec![0; count as usize / 64 + 1])
    }

    /// Adds a block; whether it was new.
    #[inline]
    pub fn insert(&mut self, block: u32) -> bool {
        let word = &mut self.0[block as usize / 64];
        let bit = 1 << (block % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Whether a block is in it.
    #[inline]
    pub fn contains(&self, block: u32) -> bool {
        self.0[block as usize / 64] >> (block % 64) & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_blocks_lie_side_by_side() {
        let mut segment = Segment::new(0x1000, 0x1100, SegmentKind::Foreign);
        for (address, bytes) in [(0x1008, 8), (0x1010, 20), (0x1080, 1)] {
            segment.push(address, bytes);
        }
        let table = BlockTable::default().with(vec![segment]);
        assert_eq!(table.find(0x1000), None);
        assert_eq!(table.find(0x100f), Some((0, 7)));
        assert_eq!(table.find(0x1010), Some((1, 0)));
        // What was asked for is rounded up to words; just past the end counts.
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
    fn every_address_finds_its_block() {
        let mut segment = Segment::new(0x1000, 0x40_0000, SegmentKind::Arena(0));
        let mut expected = Vec::new();
        let mut at = 0x1010;
        for i in 0..3000u64 {
            // Some larger than what is looked at near an address.
            let bytes = 32 + i % 37 * 16 + if i % 100 == 7 { 20_000 } else { 0 };
            if i % 3 != 0 {
                segment.push(at, bytes);
                expected.push((at, bytes));
            }
            at += bytes;
        }
        let mut alone = Segment::new(0x70_0000_0000, 0x70_0000_2000, SegmentKind::Mapped);
        alone.push(0x70_0000_0010, 0x2000);
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
