//! Pointers to blocks in a copy of a process's memory.

use crate::arch::native;
use crate::blocks::{Block, BlockStart, BlockTable, Near};
use crate::snapshot::{CopiedRegion, Snapshot, words};
use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks of at least this size are scanned only where they have pages.
const LARGE_BYTES: u64 = 64 * 1024;
const WORD_BYTES: usize = 8;
/// The bits of a user-space address, unless a program requests more (Documentation/arch/x86/x86_64/5level-paging.rst).
const ADDRESS_BITS: u64 = (1 << 48) - 1;
/// Address bits of a pointer that fits into four bytes.
const SHORT_ADDRESS_BITS: u64 = (1 << 32) - 1;

/// Addresses of a block that keep it alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pointers {
    /// Any address inside the block, and the address just past its end.
    #[default]
    Interior,
    /// The block's start. The first element of an array behind its cookie (8 or 16 bytes) counts as the start, and so
    /// does a secondary base class: an offset with a vtable pointer in a block that begins with one.
    Start,
}

/// Words that are multiples of this are rarely pointers: [`MarkOptions::ignore_round`].
const ROUND_BYTES: u64 = 1 << 30;

/// Options of marking.
#[derive(Clone, Copy, Debug, Default)]
pub struct MarkOptions {
    /// Addresses that count as references.
    pub pointers: Pointers,
    /// Look at every byte offset, not only at multiples of eight.
    pub unaligned: bool,
    /// Do not count a multiple of 1 GiB as a pointer into the middle of a block. Such a word is rarely a pointer:
    /// jemalloc's threads remember the GiB that an address is in (`rtree_leafkey` of rtree.h), and an old pointer whose
    /// lower half has become an `int` is a multiple of 4 GiB, for example in the stack frame of glibc 2.31's
    /// `__libc_start_main`. A single such word hits a block of 64 MiB in one run of 16. A search for blocks to release
    /// does count these words.
    pub ignore_round: bool,
    /// Count the address directly after the end of a block even if the next block begins there. Regions of a slab are
    /// adjacent, so a pointer to one region then also keeps the region before it reachable. Only a search for blocks to
    /// release does this.
    pub counts_ends: bool,
    /// Accept any value in the upper 16 bits of an address. They are zero in user-space addresses, but programs store
    /// counters and tags there, or pack addresses into six bytes. If the heap is below 4 GiB, the upper 32 bits may
    /// have any value.
    pub ignores_upper_bits: bool,
}

impl MarkOptions {
    /// Default options of a search for a report.
    pub fn to_report() -> MarkOptions {
        MarkOptions {
            ignore_round: true,
            ..MarkOptions::default()
        }
    }

    /// Options of a search for blocks to release. Every possible pointer counts, even at odd offsets, because packed
    /// structures such as `struct epoll_event` contain pointers there.
    pub fn to_reclaim() -> MarkOptions {
        MarkOptions {
            pointers: Pointers::Interior,
            unaligned: true,
            ignore_round: false,
            counts_ends: true,
            ignores_upper_bits: true,
        }
    }
}

/// A word that may keep a block alive.
pub(crate) enum Candidate {
    /// A word near a block. It counts only if its address keeps the block alive.
    Near(Near),
    /// A word that certainly keeps this block alive: the block's address as mangled by setjmp, or the address of its
    /// end.
    Certain(BlockStart),
}

/// A part of the copied memory. The bytes around the part stay available, regardless of their owner, because a pointer
/// may begin in one part and end in the next.
#[derive(Clone, Copy)]
pub struct Piece<'a> {
    /// The whole region that contains the part.
    region: &'a CopiedRegion,
    from: usize,
    to: usize,
}

impl<'a> Piece<'a> {
    /// Returns the part of a region at these addresses, if the region contains all of them.
    fn of(region: &'a CopiedRegion, range: Range<u64>) -> Option<Piece<'a>> {
        let from = usize::try_from(range.start.checked_sub(region.start)?).ok()?;
        let to = usize::try_from(range.end.checked_sub(region.start)?).ok()?;
        region.bytes.get(from..to)?;
        Some(Piece { region, from, to })
    }

    /// Returns the first address of the part.
    pub fn address(&self) -> u64 {
        self.region.start + self.from as u64
    }

    /// Returns the bytes of the part.
    pub fn bytes(&self) -> &'a [u8] {
        self.region.bytes.get(self.from..self.to).unwrap_or(&[])
    }

    /// Returns the number of words that begin at multiples of eight starting at the first address.
    pub fn words(&self) -> usize {
        (self.to - self.from) / WORD_BYTES
    }

    /// Returns the indexes into the region of the words that have at least one byte in the part.
    fn starts(&self) -> Range<usize> {
        self.from.saturating_sub(WORD_BYTES - 1)..self.to
    }

    /// Returns the word that begins at an index of the region. Bytes past the end of the region
    /// read as zeros, as after a six-byte address at the end of a mapping.
    fn word_at(&self, index: usize) -> u64 {
        let behind = self.region.bytes.get(index..).unwrap_or(&[]);
        match behind.first_chunk() {
            Some(word) => u64::from_le_bytes(*word),
            None => behind
                .iter()
                .rev()
                .fold(0, |word, &byte| word << 8 | u64::from(byte)),
        }
    }
}

/// Finds pointers to blocks in memory.
pub struct Finder<'a> {
    snapshot: &'a Snapshot,
    pub(crate) blocks: &'a BlockTable,
    options: MarkOptions,
    /// The region of each segment.
    regions: Vec<Option<&'a CopiedRegion>>,
    /// Word with which setjmp mangles pointers; 0 if unknown.
    guard: u64,
    /// True if addresses of blocks fit into four bytes.
    has_short_addresses: bool,
}

/// Returns the pointer guard of the process. glibc copies the guard of the creating thread into
/// each new thread. A thread that has set its thread pointer to its own memory has another word
/// there.
fn guard(snapshot: &Snapshot) -> u64 {
    let mut counts = BTreeMap::new();
    for thread in &snapshot.meta.threads {
        if let Some(word) = native::pointer_guard(snapshot, thread) {
            *counts.entry(word).or_insert(0u32) += 1;
        }
    }
    let most = counts.into_iter().max_by_key(|&(_, count)| count);
    most.map_or(0, |(word, _)| word)
}

impl<'a> Finder<'a> {
    /// Prepares a search for pointers to the blocks of a snapshot.
    pub fn new(snapshot: &'a Snapshot, blocks: &'a BlockTable, options: MarkOptions) -> Self {
        let segments = blocks.segments().iter();
        Finder {
            snapshot,
            blocks,
            options,
            regions: segments.map(|s| snapshot.region(s.start)).collect(),
            guard: guard(snapshot),
            has_short_addresses: blocks
                .segments()
                .first()
                .is_some_and(|s| s.start <= SHORT_ADDRESS_BITS),
        }
    }

    /// Returns the number of the block that a word keeps alive.
    pub fn kept_by(&self, word: u64) -> Option<u32> {
        let place = self.target(word).or_else(|| self.mangled(word))?;
        Some(self.blocks.number(place))
    }

    /// Returns the block that a word points to.
    #[inline]
    fn target(&self, word: u64) -> Option<BlockStart> {
        self.target_near(self.blocks.near(word)?)
    }

    #[inline]
    pub(crate) fn target_near(&self, near: Near) -> Option<BlockStart> {
        let (place, offset) = self.blocks.place_near(near)?;
        let word = near.address;
        if self.options.ignore_round && word.is_multiple_of(ROUND_BYTES) && offset != 0 {
            return None;
        }
        let counts = self.options.pointers == Pointers::Interior
            || matches!(offset, 0 | 8 | 16)
            || self.is_secondary_base(word, word - offset);
        counts.then_some(place)
    }

    /// Returns the block that a word of a `jmp_buf` keeps reachable. setjmp stores rbp, which may contain any pointer,
    /// as rol(rbp ^ guard, 17) (PTR_MANGLE in sysdeps/unix/sysv/linux/x86_64).
    #[inline]
    fn mangled(&self, word: u64) -> Option<BlockStart> {
        let plain = word.rotate_right(17) ^ self.guard;
        if self.guard == 0 || !self.blocks.may_be(plain) {
            return None;
        }
        self.blocks.place(plain).map(|(place, _)| place)
    }

    /// Reads a byte at an address in a segment, to bring it into the cache.
    #[inline]
    pub(crate) fn touch(&self, address: u64, segment: usize) -> u8 {
        let region = self.regions.get(segment).copied().flatten();
        let byte = region.and_then(|r| r.bytes.get(address.wrapping_sub(r.start) as usize));
        byte.copied().unwrap_or(0)
    }

    fn is_secondary_base(&self, address: u64, start: u64) -> bool {
        let is_table = |at| {
            let word = self.snapshot.word(at).unwrap_or(0);
            let modules = &self.snapshot.meta.modules;
            modules.iter().any(|m| word >= m.start && word < m.end)
        };
        address.is_multiple_of(8) && is_table(address) && is_table(start)
    }

    /// Calls `found` with the number of each block that a piece points to.
    #[inline]
    pub fn in_piece(&self, piece: &Piece, mut found: impl FnMut(u32)) {
        self.candidates_in(piece, |candidate| {
            self.number(candidate).into_iter().for_each(&mut found)
        });
    }

    /// Returns the number of the block that a candidate keeps alive.
    fn number(&self, candidate: Candidate) -> Option<u32> {
        let place = match candidate {
            Candidate::Near(near) => self.target_near(near)?,
            Candidate::Certain(place) => place,
        };
        Some(self.blocks.number(place))
    }

    /// Calls `found` for each word of a piece that may point to a block.
    #[inline]
    pub(crate) fn candidates_in(&self, piece: &Piece, mut found: impl FnMut(Candidate)) {
        if !self.options.unaligned {
            words(piece.bytes()).for_each(|word| self.candidates_of_memory(word, &mut found));
            return;
        }
        let starts = piece.starts();
        let behind = piece.region.bytes.len().min(starts.end + WORD_BYTES - 1);
        let whole = piece.region.bytes.get(starts.start..behind).unwrap_or(&[]);
        let windows = whole
            .windows(WORD_BYTES)
            .filter_map(|window| window.first_chunk());
        windows.for_each(|word| self.candidates_of_memory(u64::from_le_bytes(*word), &mut found));
        // The words that begin here reach past the end of the copied memory.
        let cut = (behind + 1).saturating_sub(WORD_BYTES).max(starts.start)..starts.end;
        cut.for_each(|index| self.candidates_of_memory(piece.word_at(index), &mut found));
    }

    /// Finds the addresses that a word in memory may represent.
    #[inline]
    fn candidates_of_memory(&self, word: u64, found: &mut impl FnMut(Candidate)) {
        self.candidates_of(word, found);
        if let Some(place) = self.mangled(word) {
            found(Candidate::Certain(place));
        }
    }

    /// Finds the addresses that a word in memory or in a register may represent.
    #[inline]
    pub(crate) fn candidates_of(&self, word: u64, found: &mut impl FnMut(Candidate)) {
        self.candidates_at(word, found);
        if self.options.ignores_upper_bits {
            if word > ADDRESS_BITS {
                self.candidates_at(word & ADDRESS_BITS, found);
            }
            if self.has_short_addresses && word > SHORT_ADDRESS_BITS {
                self.candidates_at(word & SHORT_ADDRESS_BITS, found);
            }
        }
    }

    #[inline]
    fn candidates_at(&self, address: u64, found: &mut impl FnMut(Candidate)) {
        if let Some(near) = self.blocks.near(address) {
            found(Candidate::Near(near));
        }
        if self.options.counts_ends
            && let Some(place) = self.blocks.ending_at(address)
        {
            found(Candidate::Certain(place));
        }
    }

    /// Calls `found` with the number of each block that the word at this index of a piece points
    /// to. With odd offsets, it also reports words that begin inside that word, and for the first
    /// index, words that end inside it.
    #[inline]
    pub(crate) fn at_word(&self, piece: &Piece, index: usize, mut found: impl FnMut(u32)) {
        let from = piece.from + index * WORD_BYTES;
        let starts = match (self.options.unaligned, index) {
            (false, _) => from..from + 1,
            (true, 0) => piece.starts().start..from + WORD_BYTES,
            (true, _) => from..from + WORD_BYTES,
        };
        for start in starts {
            let mut found = |candidate| self.number(candidate).into_iter().for_each(&mut found);
            self.candidates_of_memory(piece.word_at(start), &mut found);
        }
    }

    /// Returns the contents of a block. For a large block, returns only the parts that have pages.
    pub fn contents(&self, block: u32) -> impl Iterator<Item = Piece<'a>> + use<'a> {
        let (block, segment) = self.block(block);
        self.pieces(block, segment)
    }

    /// Returns a block and the index of its segment.
    pub(crate) fn block(&self, block: u32) -> (Block, usize) {
        let segments = self.blocks.segments();
        let index = segments
            .partition_point(|s| s.first <= block)
            .saturating_sub(1);
        (self.blocks.get(block), index)
    }

    /// Like [`Finder::contents`], for a block whose segment is known.
    pub(crate) fn pieces(
        &self,
        block: Block,
        segment: usize,
    ) -> impl Iterator<Item = Piece<'a>> + use<'a> {
        let region = self.regions.get(segment).copied().flatten();
        let (start, end) = (block.address, block.address + block.bytes);
        let (whole, parts) = match region {
            Some(region) if block.bytes >= LARGE_BYTES => {
                let first = region.runs.partition_point(|r| r.end <= start);
                (None, &region.runs[first..])
            }
            _ => (Some(start..end), Default::default()),
        };
        whole
            .into_iter()
            .chain(parts.iter().cloned().take_while(move |r| r.start < end))
            .filter_map(move |run| Piece::of(region?, run.start.max(start)..run.end.min(end)))
    }

    /// Calls `found` for each run of root memory that has pages.
    pub fn root_pieces(&self, start: u64, end: u64, mut found: impl FnMut(Piece<'a>)) {
        let mut at = start;
        while let Some(region) = self.snapshot.region(at) {
            let first = region.runs.partition_point(|r| r.end <= at);
            for run in region.runs[first..].iter().take_while(|r| r.start < end) {
                Piece::of(region, run.start.max(at)..run.end.min(end))
                    .into_iter()
                    .for_each(&mut found);
            }
            at = region.end();
            if at >= end {
                break;
            }
        }
    }
}
