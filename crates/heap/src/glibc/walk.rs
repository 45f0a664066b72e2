//! Walking the chunks of one range of heap from header to header.

use crate::blocks::{Segment, SegmentKind};
use crate::glibc::free_lists::Kept;
use crate::glibc::layout::{
    FLAGS, HEADER_BYTES, IS_MMAPPED, MIN_CHUNK_BYTES, NON_MAIN_ARENA, PREV_INUSE,
};
use crate::ranges::Runs;
use crate::snapshot::Snapshot;
use serde::{Deserialize, Serialize};

/// Number of consecutive sound chunks that are required before a walk resumes.
const SOUND_CHUNKS: usize = 32;
/// Maximum number of findings kept for one range.
const MAX_FINDINGS: usize = 20;

/// A range of heap.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The first chunk.
    pub start: u64,
    /// Past the last chunk.
    pub end: u64,
    /// The arena's top chunk, if it is in this piece.
    pub top: Option<u64>,
    /// Index of the arena; 0 is the main one.
    pub arena: u32,
}

/// An inconsistency of the heap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Address of the inconsistency.
    pub address: u64,
    /// Kind of damage.
    pub what: String,
}

/// Counts of a walk, in chunk bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Blocks of the program.
    pub used_chunks: u64,
    /// Bytes of their chunks.
    pub used_bytes: u64,
    /// Free chunks in the bins, by their headers.
    pub free_chunks: u64,
    /// Their bytes.
    pub free_bytes: u64,
    /// Chunks in thread caches.
    pub cached_chunks: u64,
    /// Their bytes.
    pub cached_bytes: u64,
    /// Chunks in fast lists.
    pub fast_chunks: u64,
    /// Their bytes.
    pub fast_bytes: u64,
    /// Bytes of the chunk at the end, which was never allocated.
    pub top_bytes: u64,
    /// The largest chunk in the bins.
    pub largest_free: u64,
}

/// The result of a walk.
pub struct Walked {
    /// The blocks.
    pub segments: Vec<Segment>,
    /// The sums.
    pub counts: Counts,
    /// Damage.
    pub findings: Vec<Finding>,
    /// Parts that could not be walked.
    pub unparsed: Runs,
}

struct View<'a> {
    bytes: &'a [u8],
    piece: Piece,
}

impl View<'_> {
    fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.piece.start)?).ok()?;
        let bytes = self.bytes.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Returns the chunk's size, or a description of the error in its header.
    fn chunk(&self, at: u64) -> Result<u64, String> {
        let header = self
            .word(at.wrapping_add(8))
            .ok_or("the header is cut off")?;
        let size = header & !FLAGS;
        let is_main = self.piece.arena == 0;
        if size < MIN_CHUNK_BYTES || !size.is_multiple_of(16) {
            return Err(format!("the size {size:#x} is not that of a chunk"));
        }
        if at
            .checked_add(size)
            .is_none_or(|next| next > self.piece.end)
        {
            return Err(format!(
                "the size {size:#x} reaches past the end of the heap"
            ));
        }
        // In other arenas, the flag is cleared in free chunks. Chunks of the main arena never have
        // the flag.
        if header & IS_MMAPPED != 0 || (is_main && header & NON_MAIN_ARENA != 0) {
            return Err(format!(
                "the flags {:#x} do not fit the arena",
                header & FLAGS
            ));
        }
        Ok(size)
    }

    /// Returns the size of a chunk that ends before the next known block begins, or a description
    /// of the error in its header.
    fn chunk_before(&self, at: u64, known: Option<u64>) -> Result<u64, String> {
        let size = self.chunk(at)?;
        match known.filter(|&known| known < at + size) {
            Some(known) => Err(format!(
                "the size {size:#x} reaches over the block at {:#x}, which is in use",
                known + HEADER_BYTES
            )),
            None => Ok(size),
        }
    }

    /// Returns true if enough sound chunks follow from here, or if all chunks up to the end are
    /// sound.
    fn is_sound(&self, from: u64) -> bool {
        let mut at = from;
        for done in 0..SOUND_CHUNKS {
            if Some(at) == self.piece.top {
                return true;
            }
            let Ok(size) = self.chunk(at) else {
                let header = self.word(at.wrapping_add(8)).unwrap_or(u64::MAX);
                return done > 0 && is_fence(header & !FLAGS);
            };
            let next = at + size;
            let in_use = self.word(next + 8).is_some_and(|h| h & PREV_INUSE != 0);
            if !in_use && self.word(next) != Some(size) {
                return false;
            }
            at = next;
        }
        true
    }
}

/// Returns true for the size of a fence: an abandoned range ends in headers of 16 and of 0 bytes
/// (`sysmalloc` of malloc.c).
fn is_fence(size: u64) -> bool {
    size <= HEADER_BYTES
}

/// Kind of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkKind {
    /// A block of the program.
    Used,
    /// In a bin.
    Free,
    /// Free, but in a list that its header does not show.
    Kept(Kept),
    /// The unallocated end of an arena.
    Top,
}

/// Damage to a piece.
#[derive(Default)]
struct Damage {
    findings: Vec<Finding>,
    unparsed: Runs,
}

/// Walks a piece. `lists` has the sorted chunks that are free although their headers mark them as
/// used. `known` has the sorted user addresses of blocks that are certainly in use. If, according
/// to its header, a chunk overlaps the beginning of such a block, the header is damaged, and the
/// walk resumes at that block.
pub fn walk(snapshot: &Snapshot, piece: Piece, lists: &[(u64, Kept)], known: &[u64]) -> Walked {
    let mut segments = vec![Segment::new(
        piece.start,
        piece.end,
        SegmentKind::Arena(piece.arena),
    )];
    let mut counts = Counts::default();
    let mut too_large = Damage::default();
    let damage = walk_chunks(snapshot, piece, lists, known, |at, size, kind| match kind {
        ChunkKind::Top => counts.top_bytes = size,
        ChunkKind::Kept(Kept::Tcache) => {
            counts.cached_chunks += 1;
            counts.cached_bytes += size;
        }
        ChunkKind::Kept(Kept::Fast) => {
            counts.fast_chunks += 1;
            counts.fast_bytes += size;
        }
        ChunkKind::Used => {
            counts.used_chunks += 1;
            counts.used_bytes += size;
            if !Segment::push_onto(&mut segments, at + HEADER_BYTES, size) {
                too_large.findings.push(Finding {
                    address: at,
                    what: format!("a block of {size:#x} bytes is too large to be searched"),
                });
                too_large.unparsed.push(at..at + size);
            }
        }
        ChunkKind::Free => {
            counts.free_chunks += 1;
            counts.free_bytes += size;
            counts.largest_free = counts.largest_free.max(size);
        }
    });
    let mut findings = damage.findings;
    findings.extend(too_large.findings);
    let mut unparsed = damage.unparsed;
    unparsed.extend(too_large.unparsed);
    Walked {
        segments,
        counts,
        findings,
        unparsed,
    }
}

/// Calls `each` with the address, the size and the kind of every chunk of a piece that parses, in
/// address order.
pub fn each_chunk(
    snapshot: &Snapshot,
    piece: Piece,
    lists: &[(u64, Kept)],
    each: impl FnMut(u64, u64, ChunkKind),
) {
    walk_chunks(snapshot, piece, lists, &[], each);
}

fn walk_chunks(
    snapshot: &Snapshot,
    piece: Piece,
    lists: &[(u64, Kept)],
    known: &[u64],
    mut each: impl FnMut(u64, u64, ChunkKind),
) -> Damage {
    let mut damage = Damage::default();
    let Some(bytes) = snapshot.bytes(piece.start, piece.end.saturating_sub(piece.start)) else {
        damage.findings.push(Finding {
            address: piece.start,
            what: format!("the heap up to {:#x} is not completely mapped", piece.end),
        });
        damage.unparsed.push(piece.start..piece.end);
        return damage;
    };
    let view = View { bytes, piece };
    let mut next_kept = lists.partition_point(|l| l.0 < piece.start);
    let mut at = piece.start;
    let mut was_free = false;
    let of_piece = known.partition_point(|&user| user < piece.start + HEADER_BYTES);
    let mut known = known[of_piece..]
        .iter()
        .map(|user| user - HEADER_BYTES)
        .take_while(|&chunk| chunk < piece.end)
        .peekable();
    while at < piece.end {
        let mut is_known = false;
        while let Some(chunk) = known.next_if(|&chunk| chunk <= at) {
            is_known = chunk == at;
        }
        let next_known = known.peek().copied();
        let size = match view.chunk_before(at, next_known) {
            Ok(size) => size,
            Err(what) => {
                let header = view.word(at + 8).unwrap_or(0);
                // The end of an abandoned range is freed, into a bin if it is large enough. The
                // fence then marks the preceding chunk as free.
                let fence = is_fence(header & !FLAGS)
                    && (header & PREV_INUSE != 0 || header & !FLAGS == HEADER_BYTES && was_free);
                let rest_is_fence = piece.end - at <= 2 * MIN_CHUNK_BYTES;
                if fence && (rest_is_fence || piece.arena != 0) && next_known.is_none() {
                    break;
                }
                // Memory after the fence of the main arena is the program's own sbrk memory.
                let limit = next_known.unwrap_or(piece.end);
                let resumed = (at + 16..limit).step_by(16).find(|&a| view.is_sound(a));
                let end = resumed.unwrap_or(limit);
                if damage.findings.len() < MAX_FINDINGS {
                    let what = if fence {
                        format!(
                            "{} bytes behind a fence do not belong to the allocator",
                            end - at
                        )
                    } else {
                        format!("{what}; {} bytes are skipped", end - at)
                    };
                    damage.findings.push(Finding { address: at, what });
                }
                damage.unparsed.push(at..end);
                at = end;
                continue;
            }
        };
        if Some(at) == piece.top {
            each(at, size, ChunkKind::Top);
            break;
        }
        let next = at + size;
        while lists.get(next_kept).is_some_and(|l| l.0 < at) {
            next_kept += 1;
        }
        let kept = lists.get(next_kept).filter(|l| l.0 == at).map(|l| l.1);
        let in_use = view.word(next + 8).is_none_or(|h| h & PREV_INUSE != 0);
        let kind = match kept {
            _ if is_known => ChunkKind::Used,
            Some(kept) => ChunkKind::Kept(kept),
            None if in_use => ChunkKind::Used,
            None => ChunkKind::Free,
        };
        if kind == ChunkKind::Free {
            let copy = view.word(next).unwrap_or(0);
            if copy != size && damage.findings.len() < MAX_FINDINGS {
                damage.findings.push(Finding {
                    address: at,
                    what: format!(
                        "a free chunk of {size:#x} bytes, or {copy:#x} according to the next chunk"
                    ),
                });
            }
        }
        each(at, size, kind);
        was_free = kind == ChunkKind::Free;
        at = next;
    }
    damage
}

/// Returns the user address and usable bytes of each chunk in use in a piece, if all chunks are
/// sound. The walk ends at a fence, or before the chunk at the end of the piece: that chunk is the
/// top, which is unallocated.
pub fn in_use(snapshot: &Snapshot, piece: Piece) -> Option<Vec<(u64, u64)>> {
    let bytes = snapshot.bytes(piece.start, piece.end.checked_sub(piece.start)?)?;
    let view = View { bytes, piece };
    let mut found = Vec::new();
    let mut at = piece.start;
    loop {
        let Ok(size) = view.chunk(at) else {
            let header = view.word(at.wrapping_add(8))?;
            return (at > piece.start && is_fence(header & !FLAGS)).then_some(found);
        };
        let next = at + size;
        if next == piece.end {
            return Some(found);
        }
        if view.word(next + 8)? & PREV_INUSE != 0 {
            found.push((at + HEADER_BYTES, size - 8));
        }
        at = next;
    }
}

/// Returns the first address from which a walk leads to `top`, tried page by page from `low`.
pub fn find_start(snapshot: &Snapshot, low: u64, top: u64, arena: u32) -> Option<u64> {
    let size = snapshot.word(top.checked_add(8)?)? & !FLAGS;
    let end = top.checked_add(size)?;
    (low..top).step_by(4096).find(|&start| {
        let Some(bytes) = snapshot.bytes(start, end - start) else {
            return false;
        };
        let piece = Piece {
            start,
            end,
            top: Some(top),
            arena,
        };
        let view = View { bytes, piece };
        let mut at = start;
        while at < top {
            match view.chunk(at) {
                Ok(size) => at += size,
                Err(_) => return false,
            }
        }
        at == top
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::{put, shell_on};
    use crate::{Block, dissect};
    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;
    use std::cell::RefCell;

    fn has_all(found: &crate::Heap, known: &[Block]) -> bool {
        known
            .iter()
            .all(|block| found.blocks.find(block.address).is_some_and(|f| f.1 == 0))
    }

    /// A half-written header can have any size, and lead past blocks that are in use.
    #[test]
    fn known_blocks_are_found_behind_any_header() {
        let mut snapshot = shell_on(None);
        let whole = dissect(&snapshot).expect("it has a heap");
        assert!(whole.findings.is_empty(), "{:?}", whole.findings);
        let blocks: Vec<Block> = whole.blocks.iter().map(|(_, block)| block).collect();
        assert!(blocks.len() > 3000);
        let in_arena = |block: &Block| {
            whole
                .pieces
                .iter()
                .any(|p| p.start < block.address && block.address < p.end)
        };
        let blocks: Vec<Block> = blocks.into_iter().filter(in_arena).collect();
        let snapshot = RefCell::new(&mut snapshot);
        let led_astray = RefCell::new(0);
        let mut runner = TestRunner::new(ProptestConfig::with_cases(200));
        let chosen = (any::<prop::sample::Index>(), 0u64..4096, 0u64..8);
        let checked = runner.run(&chosen, |(index, units, flags)| {
            let mut known = blocks.clone();
            let damaged = known.remove(index.index(known.len()));
            let mut snapshot = snapshot.borrow_mut();
            let header = damaged.address - 8;
            let was = snapshot.word(header).expect("it was copied");
            put(&mut snapshot, header, (units * 16) | flags);
            let found = dissect(&snapshot).map(|mut heap| {
                *led_astray.borrow_mut() += u32::from(!has_all(&heap, &known));
                let users: Vec<u64> = known.iter().map(|block| block.address).collect();
                heap.walk_again(&snapshot, &users);
                has_all(&heap, &known)
            });
            put(&mut snapshot, header, was);
            prop_assert!(found.expect("it has a heap"));
            Ok(())
        });
        checked.unwrap_or_else(|e| panic!("{e}"));
        assert!(led_astray.into_inner() > 20);
    }
}
