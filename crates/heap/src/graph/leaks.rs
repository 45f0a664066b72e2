//! Unreachable blocks, and blocks that are reachable only through other unreachable blocks.

use crate::blocks::{BlockSet, BlockTable};
use crate::graph::finder::{Finder, MarkOptions};
use crate::graph::mark::Marked;
use crate::snapshot::Snapshot;

/// One leaked block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leak {
    /// Number of the block.
    pub block: u32,
    /// The direct leak through which the block was reachable. A direct leak names itself.
    pub owner: u32,
}

impl Leak {
    /// Returns true if no leaked block outside this block's cycle points to the block.
    pub fn is_direct(&self) -> bool {
        self.block == self.owner
    }
}

const NONE: u32 = u32::MAX;

/// Returns all leaked blocks in address order. If the snapshot records the blocks that earlier snapshots found
/// unreached, the result has only blocks that were unreached at two moments.
///
/// A block is direct if no other leaked block points to it. Blocks that no direct block reaches are
/// in cycles, or are reached from cycles. If nothing outside a cycle points to it, one of its
/// blocks represents it. That block is found as in Kosaraju's algorithm: the block that a
/// depth-first search finishes last is in such a cycle.
pub fn leaks(
    snapshot: &Snapshot,
    blocks: &BlockTable,
    marked: &Marked,
    options: MarkOptions,
) -> Vec<Leak> {
    let finder = Finder::new(snapshot, blocks, options);
    let leaked: Vec<u32> = (0..blocks.len())
        .filter(|&b| !marked.reached.contains(b))
        .collect();
    if leaked.is_empty() {
        return Vec::new();
    }
    let is_leaked = |b: u32| !marked.reached.contains(b);
    let mut pointed = BlockSet::new(blocks.len());
    for &block in &leaked {
        for piece in finder.contents(block) {
            finder.in_piece(&piece, |to| {
                if to != block {
                    pointed.insert(to);
                }
            });
        }
    }
    let mut owners = vec![NONE; blocks.len() as usize];
    let mut waiting = Vec::new();
    let mut flood = |owner: u32, owners: &mut Vec<u32>| {
        owners[owner as usize] = owner;
        waiting.push(owner);
        while let Some(block) = waiting.pop() {
            for piece in finder.contents(block) {
                finder.in_piece(&piece, |to| {
                    if is_leaked(to) && owners[to as usize] == NONE {
                        owners[to as usize] = owner;
                        waiting.push(to);
                    }
                });
            }
        }
    };
    for &block in leaked.iter().filter(|&&b| !pointed.contains(b)) {
        flood(block, &mut owners);
    }
    let rest: Vec<u32> = leaked
        .iter()
        .copied()
        .filter(|&b| owners[b as usize] == NONE)
        .collect();
    for block in finish_order(&finder, &rest, blocks.len()).into_iter().rev() {
        if owners[block as usize] == NONE {
            flood(block, &mut owners);
        }
    }
    let all = leaked.into_iter().map(|block| Leak {
        block,
        owner: owners[block as usize],
    });
    let earlier = snapshot.meta.earlier.as_ref();
    let Some(before) = earlier.and_then(|earlier| earlier.unreached.as_ref()) else {
        return all.collect();
    };
    // A block that a thread was allocating or freeing at one of the moments is not a leak.
    let was_leaked = |block: u32| {
        let block = blocks.get(block);
        before.binary_search(&(block.address, block.bytes)).is_ok()
    };
    kept(all, was_leaked)
}

/// Returns the leaks to keep. A block whose owner is not among them becomes a direct leak.
pub(super) fn kept(leaks: impl Iterator<Item = Leak>, is_kept: impl Fn(u32) -> bool) -> Vec<Leak> {
    let kept = leaks.filter(|leak| is_kept(leak.block)).map(|leak| Leak {
        block: leak.block,
        owner: if is_kept(leak.owner) {
            leak.owner
        } else {
            leak.block
        },
    });
    kept.collect()
}

/// Returns the blocks in the order in which a depth-first search among them finishes them.
fn finish_order(finder: &Finder, rest: &[u32], count: u32) -> Vec<u32> {
    let mut order = Vec::with_capacity(rest.len());
    if rest.is_empty() {
        return order;
    }
    let mut unseen = BlockSet::new(count);
    for &block in rest {
        unseen.insert(block);
    }
    let mut seen = BlockSet::new(count);
    // The targets of a block go onto a common stack when the block is entered.
    let mut edges: Vec<u32> = Vec::new();
    let mut path: Vec<(u32, usize)> = Vec::new();
    for &root in rest.iter().rev() {
        if !seen.insert(root) {
            continue;
        }
        let enter = |block: u32, edges: &mut Vec<u32>, seen: &BlockSet| {
            let base = edges.len();
            for piece in finder.contents(block) {
                finder.in_piece(&piece, |to| {
                    if unseen.contains(to) && !seen.contains(to) {
                        edges.push(to);
                    }
                });
            }
            base
        };
        let base = enter(root, &mut edges, &seen);
        path.push((root, base));
        while let Some(&(block, base)) = path.last() {
            if edges.len() > base {
                let next = edges.pop().unwrap_or(block);
                if seen.insert(next) {
                    let base = enter(next, &mut edges, &seen);
                    path.push((next, base));
                }
            } else {
                order.push(block);
                path.pop();
            }
        }
    }
    order
}
