//! The dominator tree, laid out so that a node is directly followed by the nodes that it retains.

use super::dominators::Dominators;
use crate::large_lists::{filled, with_room};
use std::ops::Range;

/// A dominator tree in preorder: each node is followed by all nodes that it dominates. Positions
/// are indexes in this order.
pub(crate) struct Tree {
    /// The node at each position.
    nodes: Vec<u32>,
    /// For each position, the end of the range that its node dominates.
    ends: Vec<u32>,
    /// Bytes of all nodes before each position, plus the total at the end.
    bytes: Vec<u64>,
}

impl Tree {
    /// Lays out a tree. `bytes` returns a node's own bytes.
    pub fn new(dominators: Dominators, bytes: impl Fn(u32) -> u64) -> Tree {
        let Dominators { node, dominator } = dominators;
        let count = node.len();
        let mut sizes = filled(count, 1u32);
        for at in (1..count).rev() {
            sizes[dominator[at] as usize] += sizes[at];
        }
        // Positions overwrite the dominators, which are no longer needed.
        let mut positions = dominator;
        let mut free = filled(count, 0u32);
        for at in 0..count {
            let position = match at {
                0 => 0,
                _ => {
                    let next = &mut free[positions[at] as usize];
                    let position = *next;
                    *next += sizes[at];
                    position
                }
            };
            positions[at] = position;
            free[at] = position + 1;
        }
        drop(free);
        let mut ends = filled(count, 0);
        for (&position, size) in positions.iter().zip(sizes) {
            ends[position as usize] = position + size;
        }
        let mut nodes = filled(count, 0);
        for (&position, node) in positions.iter().zip(node) {
            nodes[position as usize] = node;
        }
        drop(positions);
        let mut sums = with_room(count + 1);
        let mut sum = 0;
        for &node in &nodes {
            sums.push(sum);
            sum += bytes(node);
        }
        sums.push(sum);
        Tree {
            nodes,
            ends,
            bytes: sums,
        }
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// Returns the node at a position.
    pub fn node(&self, at: u32) -> u32 {
        self.nodes[at as usize]
    }

    /// Returns the positions of the nodes that the node at a position dominates, including itself.
    pub fn dominated(&self, at: u32) -> Range<u32> {
        at..self.ends[at as usize]
    }

    /// Returns the bytes of the nodes that the node at a position dominates, including itself.
    pub fn retained(&self, at: u32) -> u64 {
        self.bytes[self.ends[at as usize] as usize] - self.bytes[at as usize]
    }

    /// Returns the bytes of the node at a position itself.
    pub fn own(&self, at: u32) -> u64 {
        self.bytes[at as usize + 1] - self.bytes[at as usize]
    }

    /// Returns the positions of the nodes that the node at a position dominates immediately.
    pub fn children(&self, at: u32) -> impl Iterator<Item = u32> + '_ {
        let Range { start, end } = self.dominated(at);
        let mut next = start + 1;
        std::iter::from_fn(move || {
            let child = next;
            (child < end).then(|| {
                next = self.ends[child as usize];
                child
            })
        })
    }

    /// Returns the positions on the path from the root to this position, including both.
    pub fn path(&self, to: u32) -> Vec<u32> {
        let mut path = vec![0];
        let mut at = 0;
        while at != to {
            let mut children = self.children(at);
            let Some(next) = children.find(|&c| self.dominated(c).contains(&to)) else {
                break;
            };
            path.push(next);
            at = next;
        }
        path
    }
}
