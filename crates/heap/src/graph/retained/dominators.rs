//! Immediate dominators, by the semi-NCA algorithm (Georgiadis, Tarjan: "Finding dominators in practice", 2004).
//!
//! The algorithm needs the predecessors of each node, but a block in memory only contains its successors. Most edges
//! need no list of predecessors: for each node, the search itself keeps the lowest-numbered predecessor that was
//! reached before the node. This leaves only edges to lower numbers, which belong to cycles and to shared blocks. They
//! are collected for as many nodes at a time as fit into the available space. For this, the blocks are read in address
//! order, which is far faster than in search order. A node takes twenty bytes, and an edge four.
//!
//! Iterating over the edges to a fixed point (Cooper, Harvey, Kennedy) takes fewer arrays, but
//! walks up the tree for each edge. For a list of a million nodes that a table also points to, that
//! is a million walks of up to a million steps. The last step of semi-NCA also walks up once for
//! each node, but it takes shortcuts ([`Ways`]).

use super::search::{Edges, NONE, Numbered};
use crate::large_lists::{filled, with_room};
use memhook_abi::prefetch;
use std::ops::{ControlFlow, Range};

/// Number of edges ahead of a lookup for which memory is prefetched.
const AHEAD: usize = 16;

/// The dominator tree, by the numbers of the search.
pub(crate) struct Dominators {
    /// The node with each number.
    pub node: Vec<u32>,
    /// The number of each node's immediate dominator, which is lower than the node's; 0 for the
    /// first node.
    pub dominator: Vec<u32>,
}

/// Compressed path from a node towards the top.
#[derive(Clone, Copy)]
struct Link {
    /// A node further up.
    above: u32,
    /// The lowest semidominator on the path from the node up to `above`, exclusive.
    lowest: u32,
}

/// Computes the tree. At most `edges` edges are held at a time, unless one bucket has more.
pub(crate) fn dominators(graph: &impl Edges, numbered: Numbered, edges: u64) -> Dominators {
    let mut numbered = numbered;
    let count = numbered.len();
    numbered.end();
    let mut links: Vec<Link> = with_room(count as usize);
    links.extend(numbered.parent.iter().map(|&above| Link {
        above,
        lowest: NONE,
    }));
    let mut high = count;
    while high > 1 {
        let window = window(&numbered, graph.nodes(), high, edges);
        let mut found = returning(graph, &numbered, &window);
        for at in window.clone().rev() {
            let mut lowest = numbered.lowest[at as usize];
            for edges in &mut found {
                while let Some(edge) = edges.pop_if(|edge| (*edge >> 32) as u32 == at) {
                    ask_ahead(&links, edges);
                    lowest = lowest.min(lowest_above(&mut links, edge as u32, at));
                }
            }
            numbered.lowest[at as usize] = lowest;
            links[at as usize].lowest = lowest;
        }
        high = window.start;
    }
    drop(links);
    let Numbered {
        number,
        parent,
        lowest: mut dominator,
        ..
    } = numbered;
    let mut ways = Ways::new(count);
    for at in 1..count {
        let semidominator = dominator[at as usize];
        let found = ways.first_at_most(&dominator, parent[at as usize], semidominator);
        dominator[at as usize] = found;
        ways.add(at, found);
    }
    drop((parent, ways));
    let mut node = filled(count as usize, NONE);
    for (i, &number) in number.iter().enumerate() {
        if number != NONE {
            node[number as usize] = i as u32;
        }
    }
    Dominators { node, dominator }
}

/// Paths up a tree that grows at its leaves. Each node has a shortcut to a node further up, so any ancestor is found in
/// a logarithmic number of steps (Myers: "An applicative random-access stack", 1983). Without shortcuts, a long list
/// with many references to its end takes time that is quadratic in its length.
struct Ways {
    /// Distance of each node from the top.
    depth: Vec<u32>,
    /// The target of each node's shortcut; the root's shortcut points to itself.
    shortcut: Vec<u32>,
}

impl Ways {
    /// Prepares a tree that consists of its root and will have `count` nodes.
    fn new(count: u32) -> Ways {
        Ways {
            depth: filled(count as usize, 0),
            shortcut: filled(count as usize, 0),
        }
    }

    /// Adds a node below an existing one.
    fn add(&mut self, node: u32, above: u32) {
        let depth = |at: u32| self.depth[at as usize];
        let one = self.shortcut[above as usize];
        let two = self.shortcut[one as usize];
        // Two shortcuts of equal length are merged into one.
        let is_twice = depth(above) - depth(one) == depth(one) - depth(two);
        let shortcut = if is_twice { two } else { above };
        let depth = depth(above) + 1;
        self.depth[node as usize] = depth;
        self.shortcut[node as usize] = shortcut;
    }

    /// Returns the first number on the path up that is at most `most`. Numbers decrease on the way
    /// up.
    fn first_at_most(&self, above: &[u32], from: u32, most: u32) -> u32 {
        let mut at = from;
        while at > most {
            let shortcut = self.shortcut[at as usize];
            at = match shortcut > most {
                true => shortcut,
                false => above[at as usize],
            };
        }
        at
    }
}

/// Returns the numbers below `high` whose edges are collected together.
fn window(numbered: &Numbered, nodes: u32, high: u32, edges: u64) -> Range<u32> {
    let mut low = high - 1;
    let mut bucket = Numbered::bucket(nodes, low);
    let mut sum = numbered.returning[bucket];
    // At least one bucket is taken, however many edges it has.
    loop {
        while low > 1 && Numbered::bucket(nodes, low - 1) == bucket {
            low -= 1;
        }
        if low <= 1 {
            return 1..high;
        }
        bucket = Numbered::bucket(nodes, low - 1);
        sum += numbered.returning[bucket];
        if sum > edges {
            return low..high;
        }
    }
}

/// Returns the edges from higher numbers to numbers within the window, in one list for each searching thread. Each edge
/// is one word with the lower number in the upper half, and the lists are sorted.
fn returning(graph: &impl Edges, numbered: &Numbered, window: &Range<u32>) -> Vec<Vec<u64>> {
    let nodes = graph.nodes();
    let buckets =
        Numbered::bucket(nodes, window.start)..Numbered::bucket(nodes, window.end - 1) + 1;
    if numbered.returning[buckets].iter().all(|&count| count == 0) {
        return Vec::new();
    }
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(8)) as u32;
    let share = nodes.div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|i| share.saturating_mul(i).min(nodes)..share.saturating_mul(i + 1).min(nodes))
            .map(|part| scope.spawn(move || edges_of(graph, numbered, window, part)))
            .collect();
        let found = workers.into_iter().map(|worker| {
            let joined = worker.join();
            joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        found.collect()
    })
}

fn edges_of(
    graph: &impl Edges,
    numbered: &Numbered,
    window: &Range<u32>,
    nodes: Range<u32>,
) -> Vec<u64> {
    let mut edges = Vec::new();
    // Numbers are prefetched well before they are used.
    let mut asked = [(0, 0); AHEAD];
    let mut next = 0;
    let mut look = |(from, to): (u32, u32)| {
        let to = numbered.number[to as usize];
        if from > window.start && window.contains(&to) && numbered.returns(from, to) {
            let edge = u64::from(to) << 32 | u64::from(from);
            // An array often points to one block many times.
            if edges.last() != Some(&edge) {
                edges.push(edge);
            }
        }
    };
    for node in nodes {
        let from = numbered.number[node as usize];
        // Only edges to lower numbers matter.
        if from == NONE || from <= window.start {
            continue;
        }
        graph.each(node, 0, |_, to| {
            prefetch(&numbered.number[to as usize]);
            look(std::mem::replace(&mut asked[next % AHEAD], (from, to)));
            next += 1;
            ControlFlow::Continue(())
        });
    }
    for last in next..next + AHEAD {
        look(asked[last % AHEAD]);
    }
    edges.sort_unstable();
    edges
}

/// Prefetches the first two links needed for upcoming edges. Otherwise the lookups would wait for memory at random
/// addresses.
fn ask_ahead(links: &[Link], edges: &[u64]) {
    let from = |before: usize| Some(edges[edges.len().checked_sub(before)?] as u32);
    if let Some(from) = from(2 * AHEAD) {
        prefetch(&links[from as usize]);
    }
    if let Some(from) = from(AHEAD) {
        prefetch(&links[links[from as usize].above as usize]);
    }
}

/// Returns the lowest semidominator on the path up from a node, excluding nodes whose numbers are `end` or lower.
/// Halves the path for later calls.
fn lowest_above(links: &mut [Link], node: u32, end: u32) -> u32 {
    let mut lowest = NONE;
    let mut at = node as usize;
    loop {
        let link = links[at];
        lowest = lowest.min(link.lowest);
        if link.above <= end {
            return lowest;
        }
        let next = links[link.above as usize];
        lowest = lowest.min(next.lowest);
        if next.above <= end {
            return lowest;
        }
        links[at] = Link {
            above: next.above,
            lowest: link.lowest.min(next.lowest),
        };
        at = next.above as usize;
    }
}
