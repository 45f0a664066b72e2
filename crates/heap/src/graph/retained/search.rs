//! A depth-first search that numbers what it reaches, in 16 bytes a node.
//!
//! It has no stack of its own: each node's parent is the way back, and where a node was left to go deeper is in a
//! word that is free until the node is done. So a list of millions of blocks takes no more memory than a flat heap.

use std::ops::ControlFlow;

/// A directed graph whose nodes are numbered from 0.
pub(crate) trait Edges: Sync {
    /// Number of nodes.
    fn nodes(&self) -> u32;

    /// Calls `found` with the step and the target of each edge of a node, from this step on. A node's steps are in
    /// ascending order, and several edges may share one.
    fn each(&self, node: u32, from: u32, found: impl FnMut(u32, u32) -> ControlFlow<()>);
}

/// No node, no number.
pub(crate) const NONE: u32 = u32::MAX;

/// How many buckets the numbers are counted in.
const BUCKETS: usize = 1 << 14;

/// Nodes in the order in which they were reached.
pub(crate) struct Numbered {
    /// The number of each node; [`NONE`] if nothing has reached it.
    pub number: Vec<u32>,
    /// The node of each number.
    pub node: Vec<u32>,
    /// The number of the node from which each one was reached; the first node's is 0.
    pub parent: Vec<u32>,
    /// The lowest number of a node with an edge to it, among those with a lower number than its own.
    pub lowest: Vec<u32>,
    /// How many edges lead to lower numbers, by the number that they lead to.
    pub returning: Vec<u64>,
    /// Where the numbers of each search begin. Its edges to what earlier ones have reached do not count.
    searches: Vec<u32>,
}

impl Numbered {
    /// For so many nodes, with none reached.
    pub fn new(nodes: u32) -> Numbered {
        Numbered {
            number: vec![NONE; nodes as usize],
            node: Vec::with_capacity(nodes as usize),
            parent: Vec::with_capacity(nodes as usize),
            lowest: Vec::with_capacity(nodes as usize),
            returning: vec![0; BUCKETS],
            searches: Vec::new(),
        }
    }

    /// Nodes reached.
    pub fn len(&self) -> u32 {
        self.node.len() as u32
    }

    /// The bucket of [`Numbered::returning`] that counts edges to this number.
    pub fn bucket(nodes: u32, number: u32) -> usize {
        (u64::from(number) * BUCKETS as u64 / u64::from(nodes).max(1)) as usize
    }

    /// Whether an edge counts from a node to one with a lower number.
    #[inline]
    pub fn returns(&self, from: u32, to: u32) -> bool {
        // There are very few of them.
        to < from
            && !self
                .searches
                .iter()
                .any(|&first| to < first && from >= first)
    }

    /// Begins a search, whose edges to what has been reached so far do not count.
    pub fn begin(&mut self) {
        self.searches.push(self.len());
    }

    fn enter(&mut self, node: u32, parent: u32) -> u32 {
        let number = self.len();
        self.number[node as usize] = number;
        self.node.push(node);
        self.parent.push(parent);
        // Until the node is done: the step at which it goes on.
        self.lowest.push(0);
        number
    }

    /// Numbers all that can be reached from a node and has no number yet; `parent` is that of the node.
    pub fn search(&mut self, graph: &impl Edges, start: u32, parent: u32) {
        if self.number[start as usize] != NONE {
            return;
        }
        let nodes = graph.nodes();
        let first = self.enter(start, parent);
        let mut at = first;
        loop {
            let mut next = None;
            graph.each(
                self.node[at as usize],
                self.lowest[at as usize],
                |step, to| {
                    let number = self.number[to as usize];
                    if number == NONE {
                        next = Some((step, to));
                        return ControlFlow::Break(());
                    }
                    if number > at {
                        // It is done, as whatever is not has a lower number than the node in which the search is.
                        let lowest = &mut self.lowest[number as usize];
                        *lowest = at.min(*lowest);
                    } else if self.returns(at, number) {
                        self.returning[Numbered::bucket(nodes, number)] += 1;
                    }
                    ControlFlow::Continue(())
                },
            );
            if let Some((step, to)) = next {
                // The step is looked at once more: it may have more edges.
                self.lowest[at as usize] = step;
                at = self.enter(to, at);
                continue;
            }
            let parent = self.parent[at as usize];
            self.lowest[at as usize] = parent;
            if at == first {
                return;
            }
            at = parent;
        }
    }
}
