//! Memory that each block, variable and thread retains: the blocks that would become unreachable
//! without it.
//!
//! A node retains what it dominates: every path from outside the heap leads through the node. Paths
//! that begin in a variable or in other memory take precedence. Paths that begin in a thread's
//! stack and registers, or in the kernel, count only for blocks that no path of the first kind
//! reaches.

mod attributed;
mod dominators;
mod holders;
mod kinds;
mod picture;
mod rows;
mod search;
#[cfg(test)]
mod tests;
mod tree;
mod variables;

pub use attributed::{Attributed, Change, HeapGrowth, HolderGrowth, TypeGrowth};
pub use holders::{Holder, HolderKind};
pub use picture::{LargestBlock, PictureKind, PictureNode, StructureStep};
pub use rows::{HolderRow, Sum, TypeRow, VariableRow};

pub(crate) use self::variables::holding_blocks;

use self::dominators::dominators;
use self::holders::{Holders, PROCESS};
use self::kinds::Kinds;
use self::search::{Edges, Numbered};
use self::tree::Tree;
use crate::dissect::Heap;
use crate::graph::finder::{Finder, MarkOptions};
use crate::graph::leaks::leaks;
use crate::graph::mark::Marked;
use crate::graph::types::Types;
use crate::room::Room;
use crate::snapshot::Snapshot;
use crate::{Block, Error};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Memory that the search needs for each block.
const BYTES_PER_BLOCK: u64 = 24;
/// Minimum number of edges collected at a time.
const FEWEST_EDGES: u64 = 1 << 16;

/// Relation of holders and blocks in a heap.
pub struct Retained {
    tree: Tree,
    holders: Holders,
    /// Number of blocks. Nodes with this number or a higher one are holders.
    blocks: u32,
    /// Positions of the holders in the tree, in order.
    holder_positions: Vec<u32>,
    /// Kind of the block at each position of the tree.
    kinds: Kinds,
    /// Time of the computation.
    pub took: Duration,
}

/// A node of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    /// A block, by its number.
    Block(u32),
    /// A holder, by its number.
    Holder(u32),
}

/// The edges of a heap and of its holders.
struct HeapEdges<'a> {
    finder: &'a Finder<'a>,
    holders: &'a Holders,
    blocks: u32,
}

/// Returns the number of block bytes that one step covers, as a power of two. It is chosen so that
/// the steps of any block can be counted in 32 bits.
fn step_bits(block: Block) -> u32 {
    3 + (block.bytes >> 35)
        .checked_ilog2()
        .map_or(0, |bits| bits + 1)
}

impl Edges for HeapEdges<'_> {
    fn nodes(&self) -> u32 {
        self.blocks + self.holders.len()
    }

    fn each(&self, node: u32, from: u32, mut found: impl FnMut(u32, u32) -> ControlFlow<()>) {
        if let Some(holder) = node.checked_sub(self.blocks) {
            let targets = self.holders.targets(holder).iter().enumerate();
            for (step, &to) in targets.skip(from as usize) {
                if found(step as u32, to).is_break() {
                    return;
                }
            }
            return;
        }
        let (block, segment) = self.finder.block(node);
        let step_bits = step_bits(block);
        let start = block.address + (u64::from(from) << step_bits);
        for piece in self.finder.pieces(block, segment) {
            let first = (start.saturating_sub(piece.address()) / 8) as usize;
            for index in first..piece.words() {
                let at = piece.address() + index as u64 * 8;
                let step = ((at - block.address) >> step_bits) as u32;
                let mut flow = ControlFlow::Continue(());
                self.finder.at_word(&piece, index, |to| {
                    if flow.is_continue() {
                        flow = found(step, to);
                    }
                });
                if flow.is_break() {
                    return;
                }
            }
        }
    }
}

impl Retained {
    /// Computes the holders of all blocks. `memory` limits the memory for this computation; `None`
    /// allows all available memory.
    pub fn of(
        snapshot: &Snapshot,
        heap: &Heap,
        options: MarkOptions,
        types: &mut Types,
        memory: Option<u64>,
    ) -> Result<Retained, Error> {
        let begin = Instant::now();
        let blocks = heap.blocks.len();
        check_room(snapshot, blocks, memory)?;
        let finder = Finder::new(snapshot, &heap.blocks, options);
        let mut holders = Holders::of(snapshot, heap, &finder, types.images());
        let edges = HeapEdges {
            finder: &finder,
            holders: &holders,
            blocks,
        };
        let mut numbered = Numbered::new(edges.nodes(), blocks as usize);
        let top = blocks + PROCESS;
        numbered.search(&edges, top, 0);
        numbered.begin();
        // Stacks and registers hold stale and temporary pointers to blocks that other holders own,
        // and a single stale pointer to any node of a map would reach the whole map.
        for holder in holders.passing() {
            numbered.search(&edges, blocks + holder, 0);
        }
        numbered.begin();
        let marked = Marked {
            reached: numbered.reached.clone(),
            scanned_bytes: 0,
            took: Duration::ZERO,
        };
        let leaks = leaks(snapshot, &heap.blocks, &marked, options);
        holders.set_leaked(leaks.iter().filter(|l| l.is_direct()).map(|l| l.block));
        drop((leaks, marked));
        let edges = HeapEdges {
            finder: &finder,
            holders: &holders,
            blocks,
        };
        numbered.search(&edges, blocks + holders.leaked(), 0);
        let at_a_time = u64::from(blocks) / 2;
        let dominators = dominators(&edges, numbered, at_a_time.max(FEWEST_EDGES));
        let tree = Tree::new(dominators, |node| match node < blocks {
            true => heap.blocks.get(node).bytes,
            false => 0,
        });
        let holder_positions = (0..tree.len()).filter(|&at| tree.node(at) >= blocks);
        Ok(Retained {
            holder_positions: holder_positions.collect(),
            kinds: Kinds::of(heap, types, &tree),
            tree,
            holders,
            blocks,
            took: begin.elapsed(),
        })
    }
}

/// Fails for a heap whose tree would not fit into memory.
fn check_room(snapshot: &Snapshot, blocks: u32, memory: Option<u64>) -> Result<(), Error> {
    let needed = u64::from(blocks) * BYTES_PER_BLOCK;
    // The copy counts towards the user's limit.
    let room = match memory {
        Some(most) => Some(Room::of(most.saturating_sub(snapshot.copied_bytes()))),
        None => Room::for_copy(None),
    };
    match room {
        Some(room) if room.bytes < needed => Err(Error::NoRoomForTree {
            blocks,
            needed,
            room,
        }),
        _ => Ok(()),
    }
}
