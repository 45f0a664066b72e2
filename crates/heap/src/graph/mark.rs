//! Conservative marking: any word that may be the address of a block keeps it alive.

use crate::blocks::{Block, BlockSet, BlockStart, BlockStartSet, Near, SegmentKind};
use crate::dissect::Heap;
use crate::graph::finder::{Candidate, Finder, MarkOptions, Piece, Pointers};
use crate::graph::roots::root_ranges;
use crate::snapshot::Snapshot;
use std::time::{Duration, Instant};

/// Result of marking.
pub struct Marked {
    /// Reachable blocks.
    pub reached: BlockSet,
    /// Bytes searched.
    pub scanned_bytes: u64,
    /// Duration of the marking.
    pub took: Duration,
}

/// Number of blocks that are processed together. Their first bytes are prefetched before the first
/// block is searched, so that the accesses overlap.
const ABREAST: usize = 16;
/// Number of pointers that are prefetched together before they are looked up.
const POINTERS_ABREAST: usize = 32;
const WORD_BYTES: usize = 8;

/// Blocks found so far, and which of them have not been searched yet.
struct Search<'a> {
    finder: &'a Finder<'a>,
    reached: BlockStartSet,
    waiting: Vec<BlockStart>,
    /// Pointers that have not been looked up yet; the first `count` are valid.
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
        // The target of a pointer is most likely searched next.
        let asked = pointers.iter().map(|&near| {
            let blocks = finder.blocks;
            blocks.touch(near)
                ^ self.reached.touch(blocks, near)
                ^ u64::from(finder.touch(near.address, near.segment as usize))
        });
        std::hint::black_box(asked.fold(0, |sum, word| sum ^ word));
        for &near in pointers {
            if let Some(place) = finder.target_near(near) {
                self.find(place);
            }
        }
    }

    /// Searches memory outside of blocks.
    fn piece(&mut self, piece: &Piece) {
        let finder = self.finder;
        self.scanned_bytes += piece.bytes().len() as u64;
        finder.candidates_in(piece, |candidate| match candidate {
            Candidate::Near(near) => self.point(near),
            Candidate::Certain(place) => self.find(place),
        });
    }

    /// Searches all found blocks, and the blocks found in them.
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
        let asked = batch
            .iter()
            .map(|&(block, segment)| finder.touch(block.address, segment));
        std::hint::black_box(asked.fold(0u8, |sum, byte| sum.wrapping_add(byte)));
        for &(block, segment) in batch {
            for piece in finder.pieces(block, segment) {
                self.piece(&piece);
            }
        }
    }
}

/// Marks all blocks that can be reached from the roots.
pub fn mark(snapshot: &Snapshot, heap: &Heap, options: MarkOptions) -> Marked {
    mark_also(snapshot, heap, options, &[])
}

/// Marks all blocks that are reachable from the roots and from additional addresses.
pub fn mark_also(snapshot: &Snapshot, heap: &Heap, options: MarkOptions, also: &[u64]) -> Marked {
    // In a register, any address inside a block counts, regardless of which addresses count in
    // memory.
    mark_from(snapshot, heap, options, Pointers::Interior, also)
}

/// Returns the blocks that are reachable only through interior pointers. If the program keeps only
/// pointers to block starts, it has lost these blocks. Valgrind's memcheck calls them "possibly
/// lost".
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
    let of_loader = held_by_loader(snapshot, heap);
    let kept = mark_from(snapshot, heap, by_start, pointers, &of_loader);
    marked.reached.without(&kept.reached)
}

/// Returns the starts of the blocks into which variables of glibc's loader point. The loader aligns
/// the data for `_dl_find_object` within its block (elf/dl-find_object.c), so its pointer may or
/// may not point to the block's start.
fn held_by_loader(snapshot: &Snapshot, heap: &Heap) -> Vec<u64> {
    let modules = snapshot.meta.modules.iter();
    let loaders = modules.filter(|module| module.name().starts_with("ld-linux"));
    let data = loaders.flat_map(|loader| &loader.data);
    let words = data.flat_map(|area| area.clone().step_by(WORD_BYTES));
    let pointed = words.filter_map(|at| {
        let word = snapshot.word(at)?;
        let (_, offset) = heap.blocks.find(word)?;
        Some(word - offset)
    });
    pointed.collect()
}

/// Like [`mark`]. `registers` selects the addresses that count in registers and in kernel words.
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
    let meta = &snapshot.meta;
    let words = words.chain(&meta.kernel_words).chain(&meta.changed_words);
    for &word in words.chain(also) {
        finder.candidates_of(word, &mut |candidate| {
            let place = match (candidate, registers) {
                (Candidate::Certain(place), _) => Some(place),
                (Candidate::Near(near), Pointers::Interior) => {
                    heap.blocks.place_near(near).map(|(place, _)| place)
                }
                (Candidate::Near(near), Pointers::Start) => finder.target_near(near),
            };
            if let Some(place) = place {
                search.find(place);
            }
        });
    }
    // If the memory has changed, a different block may be there by now.
    for range in &meta.changed {
        let begins_before = heap.blocks.place(range.start).map(|(place, _)| place);
        let inside = heap.blocks.within(range.clone());
        let inside = inside.filter_map(|(_, block)| heap.blocks.place(block.address));
        for place in inside.map(|(place, _)| place).chain(begins_before) {
            search.find(place);
        }
    }
    search.drain();
    for root in root_ranges(snapshot, heap) {
        finder.root_pieces(root.start, root.end, |piece| search.piece(&piece));
        search.drain();
    }
    if !heap.mmapped_exact {
        // Memory that looks like a mapped chunk may be the program's own, so all blocks that it
        // points to count as reachable.
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
