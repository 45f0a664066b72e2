//! Threads that were inside malloc when their process ended.
//!
//! The kernel ends them at any point of their code (exit_group(2)), so the heap may be in the
//! middle of a change. A change affects free chunks and the block that is being allocated or
//! released, but never another block in use. So the verdict on all other blocks is right if these
//! rules are followed:
//!
//! - Each traced live block has to be in the dissected heap, at its address and with its size. A
//!   chunk with a half-written header misleads the walk, and the blocks behind it are missing.
//!   Their headers are intact, so the walk resumes at each of them. If some are still missing,
//!   there is no verdict. If all blocks were traced and found, the parts that could not be walked
//!   are free.
//! - A block in transit is not yet in a ledger, because an allocation is published before its
//!   address is returned, or no longer in it, because a release is published before the call. If
//!   nothing reaches such a block, it is not a leak of the program. The same applies to free chunks
//!   that were in no list at that moment, which look like blocks in use. So an unreachable block is
//!   a leak only if it was traced. If not all blocks were traced, and some block is not found to be
//!   in transit, there is no verdict.
//! - Blocks that the new block of a `realloc` points to are not leaked, even if only malloc knows
//!   that new block, by the address of its chunk.

use crate::mapped::unknown_mappings;
use crate::reached::{Search, Traced, judge_heap};
use memhook_heap::{
    Heap, Leak, MarkOptions, Marked, Snapshot, inside_malloc_note, leaks, mark_also,
};
use std::collections::HashSet;

/// Distance from a chunk to its block.
const HEADER_BYTES: u64 = 16;
/// Number of words at the top of a stack in which the functions of malloc may keep the address of a
/// chunk.
const STACK_WORDS: u64 = 64;

/// Returns true for an exiting process with threads inside malloc.
pub(crate) fn is_unfinished(snapshot: &Snapshot, search: Search) -> bool {
    snapshot.meta.in_malloc > 0 && search.before_ns.is_none()
}

/// A heap that threads left in the middle of a change.
pub(crate) struct Unfinished<'a> {
    snapshot: &'a Snapshot,
    traced: &'a Traced,
    is_complete: bool,
}

impl<'a> Unfinished<'a> {
    /// Returns `None` if no thread was inside malloc.
    pub fn of(snapshot: &'a Snapshot, traced: &'a Traced, search: Search) -> Option<Self> {
        is_unfinished(snapshot, search).then_some(Unfinished {
            snapshot,
            traced,
            is_complete: search.is_complete,
        })
    }

    /// Separates reachable from unreachable blocks. Adds a gap if the result is not certain.
    pub fn search(
        &self,
        heap: &mut Heap,
        options: MarkOptions,
        gaps: &mut Vec<String>,
    ) -> (Marked, Vec<Leak>) {
        let snapshot = self.snapshot;
        if !self.has_all_traced(heap) {
            let known: Vec<u64> = self.traced.iter().map(|known| known.address).collect();
            heap.walk_again(snapshot, &known);
        }
        let has_all_traced = self.has_all_traced(heap);
        if has_all_traced && self.is_complete {
            // The parts that were not parsed contain no block in use, so they are not roots either.
            heap.unparsed.clear();
        }
        let mut also = Vec::new();
        let were_exact = std::mem::replace(&mut heap.mmapped_exact, true);
        if !were_exact {
            // malloc updates the sums of mapped chunks before or after the chunks themselves.
            // Mapped chunks that were traced certainly exist.
            also.extend(unknown_mappings(heap, self.traced));
        }
        let mut marked = mark_also(snapshot, heap, options, &also);
        let on_their_way = self.on_their_way(heap, &marked);
        if !on_their_way.is_empty() {
            also.extend(on_their_way);
            marked = mark_also(snapshot, heap, options, &also);
        }
        let mut leaks = leaks(snapshot, &heap.blocks, &marked, options);
        // If nothing was traced, only the unknown blocks can be reported.
        if self.traced.iter().next().is_some() {
            leaks.retain(|leak| self.is_traced(heap, leak.block));
            for leak in &mut leaks {
                if !self.is_traced(heap, leak.owner) {
                    leak.owner = leak.block;
                }
            }
        }
        let has_unknown = || self.is_any_unknown(heap, &marked);
        let is_certain = has_all_traced
            && (self.is_complete || were_exact && heap.findings.is_empty() && !has_unknown());
        if !is_certain {
            gaps.push(inside_malloc_note(snapshot.meta.in_malloc));
            judge_heap(heap, gaps);
        }
        (marked, leaks)
    }

    fn is_traced(&self, heap: &Heap, block: u32) -> bool {
        self.traced.of(heap.blocks.get(block)).is_some()
    }

    fn has_all_traced(&self, heap: &Heap) -> bool {
        self.traced.iter().all(|known| {
            let found = heap.blocks.find(known.address);
            found.is_some_and(|(number, offset)| {
                offset == 0 && heap.blocks.get(number).bytes >= known.size
            })
        })
    }

    /// Returns unreachable blocks without an owner whose chunks are known to a thread inside the C
    /// library.
    fn on_their_way(&self, heap: &Heap, marked: &Marked) -> Vec<u64> {
        let chunks = self.words_of_malloc().into_iter();
        chunks
            .filter_map(|word| word.checked_add(HEADER_BYTES))
            .filter(|&block| self.is_nobodys(heap, marked, block))
            .collect()
    }

    /// Returns true if an unreached, untraced block begins at this address.
    fn is_nobodys(&self, heap: &Heap, marked: &Marked, block: u64) -> bool {
        let found = heap.blocks.find(block);
        found.is_some_and(|(number, offset)| {
            offset == 0 && !marked.reached.contains(number) && !self.is_traced(heap, number)
        })
    }

    /// Returns true if some unreached block was not traced and is not one of the free chunks that a
    /// thread is moving between lists. The thread has a pointer to the first of these chunks, and
    /// each chunk links to the next.
    fn is_any_unknown(&self, heap: &Heap, marked: &Marked) -> bool {
        let mut moved: HashSet<u64> = HashSet::new();
        let mut waiting = self.words_of_malloc();
        while let Some(word) = waiting.pop() {
            for block in [word, word.wrapping_add(HEADER_BYTES)] {
                if !self.is_nobodys(heap, marked, block) || !moved.insert(block) {
                    continue;
                }
                if let Some(link) = self.snapshot.word(block) {
                    // Since glibc 2.32, links are mangled (malloc.c, PROTECT_PTR).
                    waiting.extend([link, link ^ block >> 12]);
                }
            }
        }
        heap.blocks.iter().any(|(number, block)| {
            !marked.reached.contains(number)
                && !self.is_traced(heap, number)
                && !moved.contains(&block.address)
        })
    }

    /// Returns the registers and stack tops of threads inside the C library.
    fn words_of_malloc(&self) -> Vec<u64> {
        let Some(libc) = self.snapshot.libc() else {
            return Vec::new();
        };
        let threads = self.snapshot.meta.threads.iter();
        let inside = threads.filter(|t| (libc.start..libc.end).contains(&t.rip));
        inside
            .flat_map(|t| {
                let places = (0..STACK_WORDS).map(|i| t.rsp.wrapping_add(8 * i));
                let on_stack = places.filter_map(|at| self.snapshot.word(at));
                t.words.iter().copied().chain(on_stack)
            })
            .collect()
    }
}
