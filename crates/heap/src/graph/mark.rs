//! Conservative marking: any word that may be the address of a block keeps it alive.

use crate::blocks::{Block, BlockSet, BlockStart, BlockStartSet, BlockTable, Near, SegmentKind};
use crate::dissect::Heap;
use crate::graph::roots::root_ranges;
use crate::snapshot::{CopiedRegion, Snapshot, words};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Blocks from this size on are scanned only where they have pages.
const LARGE_BYTES: u64 = 64 * 1024;

/// Which addresses of a block keep it alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pointers {
    /// Any inside it, and the one just past its end.
    #[default]
    Interior,
    /// Its start; also the first element of an array behind its cookie (8 or 16 bytes), and a
    /// secondary base: a place that holds a vtable pointer as the start does.
    Start,
}

/// How marking is done.
#[derive(Clone, Copy, Debug, Default)]
pub struct MarkOptions {
    /// Which addresses count.
    pub pointers: Pointers,
    /// Look at every byte offset, not only at multiples of eight.
    pub unaligned: bool,
    /// Words with 32 zero bits at their end are no pointers into the middle of a block. They are rarely anything
    /// but an old pointer into the same 4 GiB whose lower half has become an `int`, as in the frame of glibc 2.31's
    /// `__libc_start_main`, and a block of 64 MiB is taken for held by one such word in 64 runs. Who frees what is
    /// not reached counts them.
    pub ignore_half_overwritten: bool,
    /// The address just past the end of a region keeps it, even where the next one begins. Regions of a slab lie side by
    /// side, so what points to one keeps the one before it, too: only who frees what is not reached is so careful.
    pub counts_ends: bool,
}

impl MarkOptions {
    /// How what is reported is searched for, unless somebody wants it otherwise.
    pub fn to_report() -> MarkOptions {
        MarkOptions {
            ignore_half_overwritten: true,
            ..MarkOptions::default()
        }
    }

    /// How what may be released is searched for: whatever could be a pointer counts, at odd offsets, too. Packed
    /// structures (`struct epoll_event` is one) hold pointers there.
    pub fn to_reclaim() -> MarkOptions {
        MarkOptions {
            pointers: Pointers::Interior,
            unaligned: true,
            ignore_half_overwritten: false,
            counts_ends: true,
        }
    }
}

/// What was reached.
pub struct Marked {
    /// Reachable blocks.
    pub reached: BlockSet,
    /// Bytes looked at.
    pub scanned_bytes: u64,
    /// Time it took.
    pub took: Duration,
}

/// What may keep a block alive.
enum Candidate {
    /// A word near a block, if it is one of its addresses that count.
    Near(Near),
    /// The block at this place: by what setjmp has made of its address, or by its end.
    Certain(BlockStart),
}

/// Finds pointers to blocks in memory.
pub struct Finder<'a> {
    snapshot: &'a Snapshot,
    blocks: &'a BlockTable,
    options: MarkOptions,
    /// The region of each segment.
    regions: Vec<Option<&'a CopiedRegion>>,
    /// What setjmp mangles pointers with; 0 if not known.
    guard: u64,
}

/// Where `tcbhead_t` has the pointer guard (sysdeps/x86_64/nptl/tls.h).
const GUARD_OFFSET: u64 = 0x30;

/// The guard of all threads: glibc gives each new one that of its maker. One that has set its thread pointer
/// to something of its own has another word there.
fn guard(snapshot: &Snapshot) -> u64 {
    let mut counts = BTreeMap::new();
    for thread in &snapshot.meta.threads {
        let at = thread.fs_base.checked_add(GUARD_OFFSET);
        if let Some(word) = at.and_then(|at| snapshot.word(at)) {
            *counts.entry(word).or_insert(0u32) += 1;
        }
    }
    let most = counts.into_iter().max_by_key(|&(_, count)| count);
    most.map_or(0, |(word, _)| word)
}

impl<'a> Finder<'a> {
    /// Prepares for the blocks of a snapshot.
    pub fn new(snapshot: &'a Snapshot, blocks: &'a BlockTable, options: MarkOptions) -> Self {
        let segments = blocks.segments().iter();
        Finder {
            snapshot,
            blocks,
            options,
            regions: segments.map(|s| snapshot.region(s.start)).collect(),
            guard: guard(snapshot),
        }
    }

    /// The number of the block that a word keeps alive.
    pub fn kept_by(&self, word: u64) -> Option<u32> {
        let place = self.target(word).or_else(|| self.mangled(word))?;
        Some(self.blocks.number(place))
    }

    /// The block that a word points to.
    #[inline]
    fn target(&self, word: u64) -> Option<BlockStart> {
        self.target_near(self.blocks.near(word)?)
    }

    #[inline]
    fn target_near(&self, near: Near) -> Option<BlockStart> {
        let (place, offset) = self.blocks.place_near(near)?;
        let word = near.address;
        if self.options.ignore_half_overwritten && word as u32 == 0 && offset != 0 {
            return None;
        }
        let counts = self.options.pointers == Pointers::Interior
            || matches!(offset, 0 | 8 | 16)
            || self.is_secondary_base(word, word - offset);
        counts.then_some(place)
    }

    /// The block that a word of a `jmp_buf` keeps alive: setjmp stores rbp, which may hold any
    /// pointer, as rol(rbp ^ guard, 17) (PTR_MANGLE in sysdeps/unix/sysv/linux/x86_64).
    #[inline]
    fn mangled(&self, word: u64) -> Option<BlockStart> {
        let plain = word.rotate_right(17) ^ self.guard;
        if self.guard == 0 || !self.blocks.may_be(plain) {
            return None;
        }
        self.blocks.place(plain).map(|(place, _)| place)
    }

    /// Reads a byte at an address, so that it is in the cache later.
    #[inline]
    fn touch(&self, near: Near) -> u8 {
        let region = self.regions.get(near.segment as usize).copied().flatten();
        let byte = region.and_then(|r| r.bytes.get(near.address.wrapping_sub(r.start) as usize));
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

    /// Calls `found` with the number of each block that these bytes point to.
    #[inline]
    pub fn in_bytes(&self, bytes: &[u8], mut found: impl FnMut(u32)) {
        self.candidates_in(bytes, |candidate| {
            let place = match candidate {
                Candidate::Near(near) => self.target_near(near),
                Candidate::Certain(place) => Some(place),
            };
            if let Some(place) = place {
                found(self.blocks.number(place));
            }
        });
    }

    /// Calls `found` for each of these bytes' words that may point to a block.
    #[inline]
    fn candidates_in(&self, bytes: &[u8], mut found: impl FnMut(Candidate)) {
        if self.options.unaligned {
            self.at_odd_offsets(bytes, &mut found);
        }
        for word in words(bytes) {
            self.near(word, &mut found);
            if let Some(place) = self.mangled(word) {
                found(Candidate::Certain(place));
            }
        }
    }

    /// What a word may point to.
    #[inline]
    fn near(&self, word: u64, found: &mut impl FnMut(Candidate)) {
        if let Some(near) = self.blocks.near(word) {
            found(Candidate::Near(near));
        }
        if self.options.counts_ends
            && let Some(place) = self.blocks.ending_at(word)
        {
            found(Candidate::Certain(place));
        }
    }

    /// Calls `found` with the number of each block that the word at this index points to; with odd offsets, also those
    /// that a word points to which begins in the one before it.
    #[inline]
    pub(crate) fn at_word(&self, bytes: &[u8], index: usize, found: impl FnMut(u32)) {
        let from = index.saturating_sub(usize::from(self.options.unaligned));
        if let Some(bytes) = bytes.get(from * 8..index * 8 + 8) {
            self.in_bytes(bytes, found);
        }
    }

    /// As [`Finder::candidates_in`], for the words that begin between the multiples of eight.
    fn at_odd_offsets(&self, bytes: &[u8], found: &mut impl FnMut(Candidate)) {
        let mut low = 0;
        for (i, high) in words(bytes).enumerate() {
            for shift in (8..64).step_by(8) {
                let word = low >> shift | high << (64 - shift);
                if i > 0 {
                    self.near(word, found);
                }
                if i > 0
                    && let Some(place) = self.mangled(word)
                {
                    found(Candidate::Certain(place));
                }
            }
            low = high;
        }
        // Behind the last whole word.
        let tail = bytes.len() - bytes.len() % 8;
        for window in bytes[tail.saturating_sub(7)..].windows(8) {
            let word = window.iter().rev().fold(0, |w, &b| w << 8 | u64::from(b));
            self.near(word, found);
        }
    }

    /// The contents of a block; of a large one only the parts that have pages.
    pub fn contents(&self, block: u32) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (block, segment) = self.block(block);
        self.pieces(block, segment).map(|(_, bytes)| bytes)
    }

    /// A block, and the index of its segment.
    pub(crate) fn block(&self, block: u32) -> (Block, usize) {
        let segments = self.blocks.segments();
        let index = segments
            .partition_point(|s| s.first <= block)
            .saturating_sub(1);
        (self.blocks.get(block), index)
    }

    /// As [`Finder::contents`], with the address of each part.
    pub(crate) fn pieces(
        &self,
        block: Block,
        segment: usize,
    ) -> impl Iterator<Item = (u64, &'a [u8])> + use<'a> {
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
            .filter_map(move |run| {
                let region = region?;
                let address = run.start.max(start);
                let from = (address - region.start) as usize;
                let to = (run.end.min(end) - region.start) as usize;
                Some((address, region.bytes.get(from..to)?))
            })
    }

    /// Calls `found` for each run of root memory that has pages.
    pub fn root_bytes(&self, start: u64, end: u64, mut found: impl FnMut(u64, &'a [u8])) {
        let mut at = start;
        while let Some(region) = self.snapshot.region(at) {
            let first = region.runs.partition_point(|r| r.end <= at);
            for run in region.runs[first..].iter().take_while(|r| r.start < end) {
                let (from, to) = (run.start.max(at), run.end.min(end));
                let low = (from - region.start) as usize;
                if let Some(bytes) = region.bytes.get(low..(to - region.start) as usize) {
                    found(from, bytes);
                }
            }
            at = region.end();
            if at >= end {
                break;
            }
        }
    }
}

/// So many blocks are looked at side by side: their first bytes are asked for before the first of them
/// is searched, so that the memory delivers them all at once.
const ABREAST: usize = 16;
/// Likewise so many pointers, before it is looked up what they point to.
const POINTERS_ABREAST: usize = 32;

/// Blocks found, and those of them that are still to be searched.
struct Search<'a> {
    finder: &'a Finder<'a>,
    reached: BlockStartSet,
    waiting: Vec<BlockStart>,
    /// Pointers that are still to be looked up: the first `count`.
    pointers: [Near; POINTERS_ABREAST],
    count: usize,
    scanned_bytes: u64,
}

impl Search<'_> {
    #[inline]
    fn find(&mut self, place: BlockStart) {
        if self.reached.insert(self.finder.blocks, place) {
            self.waiting.push(place);
        }
    }

    #[inline]
    fn point(&mut self, near: Near) {
        self.pointers[self.count] = near;
        self.count += 1;
        if self.count == POINTERS_ABREAST {
            self.look_up();
        }
    }

    fn look_up(&mut self) {
        let finder = self.finder;
        let pointers = self.pointers;
        let pointers = &pointers[..std::mem::take(&mut self.count)];
        // What a pointer points to is most likely searched next.
        let asked = pointers.iter().map(|&near| {
            let blocks = finder.blocks;
            blocks.touch(near) ^ self.reached.touch(blocks, near) ^ u64::from(finder.touch(near))
        });
        std::hint::black_box(asked.fold(0, |sum, word| sum ^ word));
        for &near in pointers {
            if let Some(place) = finder.target_near(near) {
                self.find(place);
            }
        }
    }

    /// Searches memory that is no block.
    fn root(&mut self, bytes: &[u8]) {
        let finder = self.finder;
        self.scanned_bytes += bytes.len() as u64;
        finder.candidates_in(bytes, |candidate| match candidate {
            Candidate::Near(near) => self.point(near),
            Candidate::Certain(place) => self.find(place),
        });
    }

    /// Searches all that was found, and what is found in that.
    fn drain(&mut self) {
        loop {
            while !self.waiting.is_empty() {
                self.some();
            }
            if self.count == 0 {
                return;
            }
            self.look_up();
        }
    }

    fn some(&mut self) {
        let finder = self.finder;
        let from = self.waiting.len().saturating_sub(ABREAST);
        let mut batch = [(Block::default(), 0); ABREAST];
        let mut count = 0;
        for place in self.waiting.drain(from..) {
            batch[count] = finder.blocks.at(place);
            count += 1;
        }
        let batch = &batch[..count];
        let first = |&(block, segment): &(Block, usize)| {
            let region = finder.regions.get(segment).copied().flatten()?;
            region.bytes.get((block.address - region.start) as usize)
        };
        let asked = batch.iter().filter_map(first);
        std::hint::black_box(asked.fold(0u8, |sum, &byte| sum.wrapping_add(byte)));
        for &(block, segment) in batch {
            for (_, bytes) in finder.pieces(block, segment) {
                self.root(bytes);
            }
        }
    }
}

/// Marks everything that can be reached from the roots.
pub fn mark(snapshot: &Snapshot, heap: &Heap, options: MarkOptions) -> Marked {
    mark_also(snapshot, heap, options, &[])
}

/// Marks everything that can be reached from the roots and from some more addresses.
pub fn mark_also(snapshot: &Snapshot, heap: &Heap, options: MarkOptions, also: &[u64]) -> Marked {
    // A register may hold any address of a block, whatever counts in memory.
    mark_from(snapshot, heap, options, Pointers::Interior, also)
}

/// Reachable blocks to which no chain of pointers leads that all point to the start of a block: a program that keeps
/// no other pointers has lost them. valgrind's memcheck calls them "possibly lost".
pub fn possibly_lost(
    snapshot: &Snapshot,
    heap: &Heap,
    marked: &Marked,
    options: MarkOptions,
) -> BlockSet {
    let pointers = Pointers::Start;
    let by_start = MarkOptions {
        pointers,
        ..options
    };
    let kept = mark_from(snapshot, heap, by_start, pointers, &[]);
    marked.reached.without(&kept.reached)
}

/// As [`mark`]; `registers` says which addresses count in registers and in what the kernel holds.
fn mark_from(
    snapshot: &Snapshot,
    heap: &Heap,
    options: MarkOptions,
    registers: Pointers,
    also: &[u64],
) -> Marked {
    let begin = Instant::now();
    let finder = Finder::new(snapshot, &heap.blocks, options);
    let mut search = Search {
        finder: &finder,
        reached: BlockStartSet::new(&heap.blocks),
        waiting: Vec::new(),
        pointers: [Near::default(); POINTERS_ABREAST],
        count: 0,
        scanned_bytes: 0,
    };
    let words = snapshot.meta.threads.iter().flat_map(|t| &t.words);
    for &word in words.chain(&snapshot.meta.kernel_words).chain(also) {
        let place = match registers {
            Pointers::Interior => heap.blocks.place(word).map(|(place, _)| place),
            Pointers::Start => finder.target(word),
        };
        if let Some(place) = place {
            search.find(place);
        }
        let ends_here = heap.blocks.ending_at(word).filter(|_| options.counts_ends);
        if let Some(place) = ends_here {
            search.find(place);
        }
    }
    search.drain();
    for root in root_ranges(snapshot, heap) {
        finder.root_bytes(root.start, root.end, |_, bytes| search.root(bytes));
        search.drain();
    }
    if !heap.mmapped_exact {
        // What looks like a mapped chunk may be the program's own memory: it keeps all it holds.
        for (index, segment) in heap.blocks.segments().iter().enumerate() {
            if matches!(segment.kind, SegmentKind::Mapped { .. }) {
                heap.blocks
                    .places(index)
                    .for_each(|place| search.find(place));
            }
        }
        search.drain();
    }
    Marked {
        reached: search.reached.numbers(&heap.blocks),
        scanned_bytes: search.scanned_bytes,
        took: begin.elapsed(),
    }
}
