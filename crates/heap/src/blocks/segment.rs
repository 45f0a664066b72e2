//! A range of the heap, with its blocks. A lookup finds the block that contains an address with a few memory accesses.
//!
//! A segment has two bits for each unit of 16 bytes (8 if another allocator made the blocks): a block begins there, and
//! a block ends there. The bits near an address show which block contains it, and the bounds of that block. They take
//! so little space that they stay in the processor's cache while millions of blocks are searched in random order. Far
//! from the start of a large block, the number of bits up to the address is the index of the block, whose bounds are in
//! a list. So no search is needed, regardless of the size of the block.

use crate::large_lists::{filled, with_room};

/// Kind of a segment's blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SegmentKind {
    /// Chunks of the arena with this index.
    Arena(u32),
    /// One chunk that has its own mapping.
    Mapped {
        /// True if the block extends to the end of the mapping.
        tight: bool,
    },
    /// Blocks known to the ledger, of an allocator whose heap was not walked. Unknown blocks may lie between them.
    #[default]
    Foreign,
    /// Live blocks of the dissected heap with this index in [`Heap::others`](crate::Heap::others).
    Sized(u32),
    /// Blocks that the program's own allocator has cut out of larger blocks.
    Described,
}

impl SegmentKind {
    /// Returns true if its blocks are chunks of an arena.
    pub(crate) fn is_arena(self) -> bool {
        matches!(self, SegmentKind::Arena(_))
    }

    /// Returns the alignment of blocks in bytes, which is also the unit of their sizes.
    pub(crate) fn unit(self) -> u64 {
        match self {
            SegmentKind::Foreign | SegmentKind::Sized(_) | SegmentKind::Described => 8,
            SegmentKind::Arena(_) | SegmentKind::Mapped { .. } => 16,
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
    /// Number of blocks.
    pub count: u32,
    /// Kind of its blocks.
    pub kind: SegmentKind,
    /// Two words for each 64 units: the units where blocks begin, and the units where blocks end.
    /// Empty if there is only one block.
    pub(crate) bits: Vec<[u64; 2]>,
    /// Number of blocks that begin before each word of `bits`.
    pub(crate) ranks: Vec<u32>,
    pub(crate) offsets: Vec<u32>,
    pub(crate) sizes: Vec<u32>,
    /// Total units of all segments before this one.
    pub(crate) first_unit: u64,
}

/// Number of words of `bits` that are searched for the start or the end of a block.
const NEAR: usize = 8;

/// Start of a block: the index of its segment, and the unit in that segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockStart {
    pub(crate) segment: u32,
    pub(crate) unit: u32,
}

/// An address in a segment: the index of the segment, and the unit in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Near {
    pub(crate) address: u64,
    pub(crate) segment: u32,
    pub(crate) unit: u64,
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

    /// Adds a block by its user address and its chunk size, or by its own size if it is foreign.
    /// Returns `false` if the block is too far from the segment's start, or too large.
    #[must_use]
    pub fn push(&mut self, user: u64, chunk_bytes: u64) -> bool {
        let unit = self.kind.unit();
        let offset = u32::try_from(user.wrapping_sub(self.start) / unit);
        let units = u32::try_from(chunk_bytes.div_ceil(unit));
        let (Ok(offset), Ok(units)) = (offset, units) else {
            return false;
        };
        self.offsets.push(offset);
        self.sizes.push(units);
        true
    }

    /// Like [`Segment::push`], but starts another segment if the block is too far from the start of
    /// the last segment.
    #[must_use]
    pub fn push_onto(segments: &mut Vec<Segment>, user: u64, chunk_bytes: u64) -> bool {
        let Some(last) = segments.last_mut() else {
            return false;
        };
        if last.push(user, chunk_bytes) {
            return true;
        }
        let mut next = Segment::new(user, last.end, last.kind);
        let fits = next.push(user, chunk_bytes);
        if fits {
            last.end = user;
            segments.push(next);
        }
        fits
    }

    /// Returns the number of units from the segment's start to the end of the last block.
    pub(crate) fn units(&self) -> u64 {
        let last = self.offsets.last().zip(self.sizes.last());
        last.map_or(0, |(&offset, &size)| u64::from(offset) + u64::from(size)) + 1
    }

    pub(crate) fn index(&mut self) {
        if self.offsets.len() < 2 {
            return;
        }
        // Offsets of single blocks are looked up in random order.
        let mut offsets = with_room(self.offsets.len());
        offsets.append(&mut self.offsets);
        self.offsets = offsets;
        let words = (self.units() / 64 + 1) as usize;
        self.bits = filled(words, [0; 2]);
        for (&offset, &size) in self.offsets.iter().zip(&self.sizes) {
            let end = u64::from(offset) + u64::from(size);
            self.bits[offset as usize / 64][0] |= 1 << (offset % 64);
            self.bits[end as usize / 64][1] |= 1 << (end % 64);
        }
        self.ranks = with_room(self.bits.len());
        let mut rank = 0;
        for [begins, _] in &self.bits {
            self.ranks.push(rank);
            rank += begins.count_ones();
        }
    }

    /// Returns the index of the last block that begins at or before a unit.
    pub(crate) fn rank(&self, unit: usize) -> Option<u32> {
        if self.bits.is_empty() {
            return (*self.offsets.first()? as usize <= unit).then_some(0);
        }
        let unit = unit.min(self.bits.len() * 64 - 1);
        let (word, bit) = (unit / 64, unit % 64);
        let last = (self.bits.get(word)?[0] & (u64::MAX >> (63 - bit))).count_ones();
        (self.ranks.get(word)? + last).checked_sub(1)
    }

    /// Returns the unit in which the last block at or before `unit` begins.
    #[inline]
    pub(crate) fn begin(&self, unit: usize) -> Option<u32> {
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

    /// Returns the number of units of the block that begins in this unit.
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

    /// Returns the block that begins in this unit.
    #[inline]
    pub(crate) fn block(&self, begin: u32) -> Block {
        let unit = self.kind.unit();
        // The last word of a chunk is the first word of the next header. The program may use it,
        // except at the end of a mapping.
        let overhead = match self.kind {
            SegmentKind::Arena(_) | SegmentKind::Mapped { tight: false } => 8,
            SegmentKind::Mapped { tight: true } => 16,
            SegmentKind::Foreign | SegmentKind::Sized(_) | SegmentKind::Described => 0,
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
    /// Address that the allocator returned to the program.
    pub address: u64,
    /// Usable bytes.
    pub bytes: u64,
}

impl Block {
    /// Returns the traced block inside this block of the heap. `traced` is sorted by address.
    ///
    /// A preloaded allocator, such as a debugging allocator, may keep a header before each of the program's blocks. So
    /// if no traced block begins at this block's address, a single traced block inside it counts.
    pub fn holding<'a, T>(&self, traced: &'a [T], address: impl Fn(&T) -> u64) -> Option<&'a T> {
        let first = traced.partition_point(|one| address(one) < self.address);
        let end = self.address.saturating_add(self.bytes);
        let mut within = traced[first..].iter().take_while(|&one| address(one) < end);
        let found = within.next()?;
        (address(found) == self.address || within.next().is_none()).then_some(found)
    }
}
