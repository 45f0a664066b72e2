//! The blocks of a heap: address to block in a few memory accesses, 9 bytes a block.
//!
//! Each segment of heap has one bit for each 16 bytes (8 where another allocator made the blocks), set
//! where a block begins. The number of bits
//! up to an address is the number of the block it may lie in: no search, however large the block.

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
    bits: Vec<u64>,
    /// Bits set before each line of eight words.
    ranks: Vec<u32>,
    offsets: Vec<u32>,
    sizes: Vec<u32>,
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

    fn index(&mut self) {
        if self.offsets.len() < 2 {
            return;
        }
        let words = ((self.end - self.start) / self.kind.unit() / 64 + 1) as usize;
        self.bits = vec![0; words.next_multiple_of(8)];
        for &offset in &self.offsets {
            self.bits[offset as usize / 64] |= 1 << (offset % 64);
        }
        let mut rank = 0;
        for line in self.bits.chunks(8) {
            self.ranks.push(rank);
            rank += line.iter().map(|w| w.count_ones()).sum::<u32>();
        }
    }

    /// Index of the last block that begins at or before an address inside the segment.
    fn rank(&self, address: u64) -> Option<u32> {
        let unit = ((address - self.start) / self.kind.unit()) as usize;
        if self.bits.is_empty() {
            return (*self.offsets.first()? as usize <= unit).then_some(0);
        }
        let (word, bit) = (unit / 64, unit % 64);
        let line = word / 8;
        let full = self.bits.get(line * 8..word)?;
        let before: u32 = full.iter().map(|w| w.count_ones()).sum();
        let last = (self.bits.get(word)? & (u64::MAX >> (63 - bit))).count_ones();
        (self.ranks.get(line)? + before + last).checked_sub(1)
    }
}

/// One block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        for segment in &mut segments {
            segment.index();
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

    /// The segment of a block.
    pub fn segment_of(&self, block: u32) -> &Segment {
        let after = self.segments.partition_point(|s| s.first <= block);
        &self.segments[after.saturating_sub(1)]
    }

    /// A block by its number, which must be below [`BlockTable::len`].
    pub fn get(&self, block: u32) -> Block {
        let segment = self.segment_of(block);
        Self::block_of(segment, block - segment.first)
    }

    fn block_of(segment: &Segment, index: u32) -> Block {
        let unit = segment.kind.unit();
        let chunk = u64::from(segment.sizes[index as usize]) * unit;
        // The last word of a chunk belongs to the next one's header; it is usable but for mappings.
        let overhead = match segment.kind {
            SegmentKind::Arena(_) => 8,
            SegmentKind::Mapped => 16,
            SegmentKind::Foreign => 0,
        };
        Block {
            address: segment.start + u64::from(segment.offsets[index as usize]) * unit,
            bytes: chunk.saturating_sub(overhead),
        }
    }

    /// Blocks by number.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Block)> + '_ {
        self.segments.iter().flat_map(|segment| {
            (0..segment.count).map(|i| (segment.first + i, Self::block_of(segment, i)))
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
        if !self.may_be(address) {
            return None;
        }
        let after = self.segments.partition_point(|s| s.start <= address);
        self.find_in(after.checked_sub(1)?, address)
    }

    #[inline]
    fn find_in(&self, segment: usize, address: u64) -> Option<(u32, u64)> {
        let segment = self.segments.get(segment)?;
        if address > segment.end {
            return None;
        }
        let index = segment.rank(address)?;
        let block = Self::block_of(segment, index);
        let offset = address.wrapping_sub(block.address);
        // A mapping ends where the next one may begin: such a pointer is nearly always the other's
        // address (that of a library, say).
        let past_end = u64::from(segment.kind != SegmentKind::Mapped);
        (offset < block.bytes + past_end).then_some((segment.first + index, offset))
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
        let mut segment = Segment::new(0x1000, 0x20_0000, SegmentKind::Arena(0));
        let mut expected = Vec::new();
        let mut at = 0x1010;
        for i in 0..3000u64 {
            let bytes = 32 + i % 37 * 16;
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
