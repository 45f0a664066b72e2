//! All chunks of one range of an arena, each with its owner.

use crate::dissect::Heap;
use crate::glibc::free_lists::Kept;
use crate::glibc::layout::HEADER_BYTES;
use crate::glibc::walk::{ChunkKind, Piece, each_chunk};
use crate::snapshot::Snapshot;
use std::ops::Range;

/// Role of a chunk for malloc_trim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A block of the program, in the class with this number.
    Class(u32),
    /// In a bin, or in a fast list, which malloc_trim empties into the bins.
    Free,
    /// In the cache of a thread, which malloc_trim leaves alone.
    Cached,
    /// Memory of the allocator itself, or unknown.
    Allocator,
    /// The end of the arena.
    Top,
}

const FREE: u32 = u32::MAX;
const CACHED: u32 = u32::MAX - 1;
const ALLOCATOR: u32 = u32::MAX - 2;
const TOP: u32 = u32::MAX - 3;
/// Exclusive upper bound on class numbers.
const MAX_CLASSES: u32 = TOP;

/// The chunks of one piece in address order, without gaps. Adjacent free chunks are merged.
pub struct ChunkList {
    /// The piece.
    pub piece: Piece,
    starts: Vec<u64>,
    owners: Vec<u32>,
    end: u64,
}

impl ChunkList {
    /// Walks a piece. `class` returns the number of a block's class, given its address and its
    /// usable size.
    pub fn of(
        snapshot: &Snapshot,
        heap: &Heap,
        piece: Piece,
        mut class: impl FnMut(u64, u64) -> u32,
    ) -> ChunkList {
        let mut list = ChunkList {
            piece,
            starts: Vec::new(),
            owners: Vec::new(),
            end: piece.start,
        };
        each_chunk(snapshot, piece, &heap.kept, |at, size, kind| {
            let owner = match kind {
                ChunkKind::Free | ChunkKind::Kept(Kept::Fast) => FREE,
                ChunkKind::Kept(Kept::Tcache) => CACHED,
                ChunkKind::Top => TOP,
                ChunkKind::Used => {
                    let user = at + HEADER_BYTES;
                    match heap.caches.binary_search(&user) {
                        Ok(_) => ALLOCATOR,
                        Err(_) => class(user, size - 8).min(MAX_CLASSES - 1),
                    }
                }
            };
            list.push(at, at + size, owner);
        });
        list
    }

    fn push(&mut self, start: u64, end: u64, owner: u32) {
        if start > self.end {
            self.starts.push(self.end);
            self.owners.push(ALLOCATOR);
        }
        let is_more = owner == FREE && start == self.end && self.owners.last() == Some(&FREE);
        if !is_more {
            self.starts.push(start);
            self.owners.push(owner);
        }
        self.end = end;
    }

    /// Returns the highest class number plus one.
    pub fn classes(&self) -> usize {
        let classes = self.owners.iter().filter(|&&owner| owner < MAX_CLASSES);
        classes.max().map_or(0, |&highest| highest as usize + 1)
    }

    /// Returns the number of chunks.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Returns the addresses of a chunk.
    pub fn range(&self, index: usize) -> Range<u64> {
        let end = self.starts.get(index + 1).copied().unwrap_or(self.end);
        self.starts[index]..end
    }

    /// Returns the owner of a chunk.
    pub fn owner(&self, index: usize) -> Owner {
        match self.owners[index] {
            FREE => Owner::Free,
            CACHED => Owner::Cached,
            ALLOCATOR => Owner::Allocator,
            TOP => Owner::Top,
            class => Owner::Class(class),
        }
    }
}
