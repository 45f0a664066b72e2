//! A depth-first search that numbers the nodes that it reaches.
//!
//! The search reads a node once, when it reaches the node, and looks up all of its edges together.
//! If edges were looked up one at a time, each lookup would wait for memory. Returning to a node
//! would wait again, because the node would no longer be in the cache. Targets that have not been
//! reached yet wait on a separate stack, which is bounded. If a node has too many targets, or if
//! the stack is full, the search stores its position in the node, and reads the node again later.
//! Per node, the search takes 13 bytes, four for the stack, and at most eight for the list of nodes
//! to read again.

use crate::blocks::BlockSet;
use crate::large_lists::{filled, with_room};
use std::ops::ControlFlow;

/// A directed graph whose nodes are numbered from 0.
pub(crate) trait Edges: Sync {
    /// Number of nodes.
    fn nodes(&self) -> u32;

    /// Calls `found` with the step and the target of each edge of a node, starting from the given
    /// step. A node's steps are in ascending order, and several edges may share a step.
    fn each(&self, node: u32, from: u32, found: impl FnMut(u32, u32) -> ControlFlow<()>);
}

/// Marks a missing node or number.
pub(crate) const NONE: u32 = u32::MAX;

/// Number of buckets that count the returning edges.
const BUCKETS: usize = 1 << 14;
/// Bits of [`Numbered::left`] for the number of waiting targets of the node.
const WAITING: u8 = 0x7f;
/// Bit of [`Numbered::left`] that is set if the node has edges in addition to those with waiting
/// targets.
const MORE: u8 = 0x80;

/// Nodes in the order of the search.
pub(crate) struct Numbered {
    /// The number of each node. Before the node is reached, this is the number of the first node
    /// with an edge to it, or [`NONE`].
    pub number: Vec<u32>,
    /// The reached nodes.
    pub reached: BlockSet,
    /// For each node, the number of the node from which it was reached; 0 for the first node.
    pub parent: Vec<u32>,
    /// For each node, the lowest number of a node with an edge to it, among the numbers lower than
    /// its own.
    pub lowest: Vec<u32>,
    /// Number of edges that lead to lower numbers, in buckets by target number.
    pub returning: Vec<u64>,
    /// First number of each search. Edges from a search to nodes of earlier searches do not count.
    searches: Vec<u32>,
    waiting: Waiting,
}

/// Targets that a search has seen and has yet to visit.
#[derive(Default)]
struct Waiting {
    /// Targets of the nodes on the current path. The targets of a node come after those of its
    /// ancestors.
    targets: Vec<u32>,
    /// Remaining targets of each node, by its number.
    left: Vec<u8>,
    /// Nodes with more edges than fit into `targets`, and the step at which to resume each.
    more: Vec<(u32, u32)>,
    /// Maximum number of waiting targets, unless there is only one node.
    most: usize,
}

impl Numbered {
    /// Prepares for `nodes` nodes, none of which has been reached. At most `most` targets may wait.
    pub fn new(nodes: u32, most: usize) -> Numbered {
        let count = nodes as usize;
        Numbered {
            number: filled(count, NONE),
            reached: BlockSet::new(nodes),
            parent: with_room(count),
            lowest: with_room(count),
            returning: vec![0; BUCKETS],
            searches: Vec::new(),
            waiting: Waiting {
                targets: Vec::new(),
                left: with_room(count),
                more: Vec::new(),
                most,
            },
        }
    }

    /// Returns the number of reached nodes.
    pub fn len(&self) -> u32 {
        self.parent.len() as u32
    }

    /// Returns the bucket of [`Numbered::returning`] that counts edges to this number.
    pub fn bucket(nodes: u32, number: u32) -> usize {
        (u64::from(number) * BUCKETS as u64 / u64::from(nodes).max(1)) as usize
    }

    /// Returns true if an edge from a node to a lower-numbered node should be counted.
    #[inline]
    pub fn returns(&self, from: u32, to: u32) -> bool {
        // The number of searches is very small.
        returns(&self.searches, from, to)
    }

    /// Begins a search. Its edges to nodes that earlier searches reached do not count.
    pub fn begin(&mut self) {
        self.searches.push(self.len());
    }

    /// Frees memory that only the search needs.
    pub fn end(&mut self) {
        self.reached = BlockSet::default();
        self.waiting = Waiting::default();
    }

    fn enter(&mut self, node: u32, parent: u32) -> u32 {
        let at = self.len();
        self.reached.insert(node);
        let number = &mut self.number[node as usize];
        // The parent that reached the node first has the lowest number of all candidates.
        self.lowest.push(parent.min(*number));
        *number = at;
        self.parent.push(parent);
        self.waiting.left.push(0);
        at
    }

    /// Numbers all nodes that can be reached from a start node and have no number yet. `parent` is
    /// the start node's parent.
    pub fn search(&mut self, graph: &impl Edges, start: u32, parent: u32) {
        if self.reached.contains(start) {
            return;
        }
        let first = self.enter(start, parent);
        self.look(graph, start, 0, first);
        let mut at = first;
        loop {
            if let Some(node) = self.next(graph, at) {
                at = self.enter(node, at);
                self.look(graph, node, 0, at);
            } else if at == first {
                return;
            } else {
                at = self.parent[at as usize];
            }
        }
    }

    /// Visits the edges of a node, beginning with this step.
    fn look(&mut self, graph: &impl Edges, node: u32, from: u32, at: u32) {
        let nodes = graph.nodes();
        let waiting = &mut self.waiting.targets;
        let before = waiting.len();
        let most = match before < self.waiting.most {
            true => usize::from(WAITING),
            false => 1,
        };
        let mut more = None;
        graph.each(node, from, |step, to| {
            let number = self.number[to as usize];
            if !self.reached.contains(to) {
                let is_repeated = waiting.len() > before && waiting.last() == Some(&to);
                if !is_repeated && waiting.len() - before == most {
                    // The step is repeated later, because it may have more edges.
                    more = Some((node, step));
                    return ControlFlow::Break(());
                }
                if !is_repeated {
                    waiting.push(to);
                }
                if number == NONE {
                    self.number[to as usize] = at;
                }
            } else if number > at {
                // An earlier edge has already reached the node.
                let lowest = &mut self.lowest[number as usize];
                *lowest = at.min(*lowest);
            } else if returns(&self.searches, at, number) {
                self.returning[Numbered::bucket(nodes, number)] += 1;
            }
            ControlFlow::Continue(())
        });
        let left = &mut self.waiting.left[at as usize];
        *left = (waiting.len() - before) as u8;
        if let Some(more) = more {
            *left |= MORE;
            self.waiting.more.push(more);
        }
    }

    /// Returns the next target of a node that has not been reached yet. All nodes that follow this
    /// node on the path must be done.
    fn next(&mut self, graph: &impl Edges, at: u32) -> Option<u32> {
        loop {
            let left = &mut self.waiting.left[at as usize];
            if *left & WAITING > 0 {
                *left -= 1;
                let to = self.waiting.targets.pop()?;
                if !self.reached.contains(to) {
                    return Some(to);
                }
            } else if *left & MORE > 0 {
                let (node, from) = self.waiting.more.pop()?;
                self.look(graph, node, from, at);
            } else {
                return None;
            }
        }
    }
}

/// Returns true if an edge from a node to a lower-numbered node should be counted, given the first
/// numbers of all searches.
#[inline]
fn returns(searches: &[u32], from: u32, to: u32) -> bool {
    // The number of searches is very small.
    to < from && !searches.iter().any(|&first| to < first && from >= first)
}
