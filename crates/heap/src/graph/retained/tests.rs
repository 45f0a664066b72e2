//! Random graphs: a node retains the nodes that become unreachable when it is removed.

use super::dominators::dominators;
use super::search::{Edges, NONE, Numbered};
use super::tree::Tree;
use super::{Node, Retained};
use crate::graph::finder::MarkOptions;
use crate::graph::leaks::leaks;
use crate::graph::mark::mark;
use crate::graph::tests::{ROOTS, closure, graphs, lay_out};
use crate::graph::types::Types;
use crate::snapshot::words;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

struct Listed(Vec<Vec<u32>>);

impl Edges for Listed {
    fn nodes(&self) -> u32 {
        self.0.len() as u32
    }

    fn each(&self, node: u32, from: u32, mut found: impl FnMut(u32, u32) -> ControlFlow<()>) {
        // Every two edges share a step.
        let edges = self.0[node as usize].iter().enumerate();
        for (i, &to) in edges.skip(from as usize * 2) {
            if found(i as u32 / 2, to).is_break() {
                return;
            }
        }
    }
}

/// Returns the nodes that can be reached from a node without passing through another given node.
fn reachable(edges: &[Vec<u32>], from: u32, without: u32) -> BTreeSet<u32> {
    let mut seen = BTreeSet::new();
    let mut waiting = vec![from];
    while let Some(node) = waiting.pop() {
        if node != without && seen.insert(node) {
            waiting.extend(&edges[node as usize]);
        }
    }
    seen
}

fn tree_of(edges: &Listed, window: u64) -> Tree {
    let mut numbered = Numbered::new(edges.nodes(), window as usize);
    numbered.search(edges, 0, 0);
    Tree::new(dominators(edges, numbered, window), |node| 1 << (node % 40))
}

fn check(edges: Vec<Vec<u32>>, window: u64) -> Result<(), TestCaseError> {
    let all = reachable(&edges, 0, NONE);
    let edges = Listed(edges);
    let tree = tree_of(&edges, window);
    prop_assert_eq!(tree.len() as usize, all.len());
    for at in 0..tree.len() {
        let node = tree.node(at);
        let without = reachable(&edges.0, 0, node);
        let retained: BTreeSet<u32> = tree.dominated(at).map(|at| tree.node(at)).collect();
        let expected: BTreeSet<u32> = all.difference(&without).copied().collect();
        let bytes: u64 = expected.iter().map(|node| 1u64 << (node % 40)).sum();
        prop_assert_eq!(&retained, &expected, "node {}", node);
        prop_assert_eq!(tree.retained(at), bytes);
        prop_assert_eq!(tree.path(at).last().copied(), Some(at));
    }
    Ok(())
}

/// The node has more targets than may be pending at a time, and the targets point to each other.
#[test]
fn a_node_with_many_targets_is_read_in_parts() {
    let count = 400;
    let mut edges: Vec<Vec<u32>> = (0..count)
        .map(|node| vec![(node * 7 + 3) % count, (node * node + 1) % count])
        .collect();
    edges[0] = (1..count).filter(|node| node % 3 != 0).collect();
    edges[1] = (1..count).rev().chain(1..count).collect();
    for most in [1, 200, u64::MAX] {
        check(edges.clone(), most).expect("the same as without each node");
    }
}

/// A long list whose last node has many children, to which the first node points too. The first
/// node dominates each child, and the path from the last node up to the first is long.
struct Ladder {
    length: u32,
}

impl Edges for Ladder {
    fn nodes(&self) -> u32 {
        self.length * 2
    }

    fn each(&self, node: u32, from: u32, mut found: impl FnMut(u32, u32) -> ControlFlow<()>) {
        let rungs = self.length..self.length * 2;
        let targets = match node {
            // The first node's next node comes first.
            0 => (1..2).chain(rungs),
            _ if node + 1 < self.length => (node + 1..node + 2).chain(0..0),
            _ if node + 1 == self.length => (0..0).chain(rungs),
            _ => (0..0).chain(0..0),
        };
        for (step, to) in targets.enumerate().skip(from as usize) {
            if found(step as u32, to).is_break() {
                return;
            }
        }
    }
}

#[test]
fn a_long_way_up_takes_few_steps() {
    let ladder = Ladder { length: 500_000 };
    let mut numbered = Numbered::new(ladder.nodes(), usize::MAX);
    numbered.search(&ladder, 0, 0);
    let found = dominators(&ladder, numbered, u64::MAX);
    for (node, dominator) in found.node.iter().zip(&found.dominator) {
        let expected = match *node {
            0 => 0,
            node if node < ladder.length => node - 1,
            _ => 0,
        };
        assert_eq!(found.node[*dominator as usize], expected, "node {node}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn what_a_node_retains_vanishes_with_it(
        (count, edges) in (2u32..40).prop_flat_map(|n| {
            (Just(n), prop::collection::vec((0..n, 0..n), 0..n as usize * 3))
        })
    ) {
        let mut listed = vec![Vec::new(); count as usize];
        for (from, to) in edges {
            listed[from as usize].push(to);
        }
        check(listed.clone(), u64::MAX)?;
        check(listed, 1)?;
    }
    /// A block retains the blocks that become unreachable without it. Blocks are reached first from
    /// variables and other memory, then from stacks and registers, then from leaked blocks to which
    /// nothing points.
    #[test]
    fn what_a_block_retains_vanishes_with_it(graph in graphs()) {
        let (snapshot, heap, edges, _) = lay_out(&graph);
        let options = MarkOptions::default();
        let retained = Retained::of(&snapshot, &heap, options, &mut Types::new(&snapshot, &[]), None);
        let retained = retained.expect("room");
        let bytes = snapshot.bytes(ROOTS, 4096).expect("the roots");
        let of_memory: BTreeSet<usize> = words(bytes)
            .filter_map(|word| Some(heap.blocks.find(word)?.0 as usize))
            .collect();
        let of_registers: BTreeSet<usize> = graph.registers.iter().copied().collect();
        let marked = mark(&snapshot, &heap, options);
        let leaked = leaks(&snapshot, &heap.blocks, &marked, options);
        let leaked: BTreeSet<usize> =
            leaked.iter().filter(|l| l.is_direct()).map(|l| l.block as usize).collect();
        let mut left: BTreeSet<usize> = (0..graph.sizes.len()).collect();
        let mut checked = 0;
        for roots in [of_memory, of_registers, leaked] {
            let all: BTreeSet<usize> = closure(&roots, &edges).intersection(&left).copied().collect();
            for at in 0..retained.tree.len() {
                let Node::Block(block) = retained.at(at) else {
                    continue;
                };
                let block = block as usize;
                if !all.contains(&block) {
                    continue;
                }
                let mut without = edges.clone();
                without[block].clear();
                let mut roots = roots.clone();
                roots.remove(&block);
                for to in &mut without {
                    to.remove(&block);
                }
                let kept = closure(&roots, &without);
                let expected: BTreeSet<usize> = all.difference(&kept).copied().collect();
                let found: BTreeSet<usize> = retained.tree.dominated(at)
                    .map(|at| retained.tree.node(at) as usize)
                    .collect();
                prop_assert_eq!(&found, &expected, "block {}", block);
                let bytes: u64 = expected.iter().map(|&b| heap.blocks.get(b as u32).bytes).sum();
                prop_assert_eq!(retained.sum(at).bytes, bytes);
                prop_assert_eq!(retained.sum(at).blocks, expected.len() as u64);
                checked += 1;
            }
            left = left.difference(&all).copied().collect();
        }
        prop_assert_eq!(checked, graph.sizes.len());
        prop_assert!(left.is_empty());
    }
}

#[test]
fn a_tree_that_does_not_fit_is_refused_in_one_line() {
    let start = 0x5555_0000_0000;
    let snapshot = crate::testing::snapshot(vec![(start, vec![0; 0x20000])]);
    let mut heap = crate::Heap::empty();
    let mut blocks: Vec<(u64, u64)> = (0..4000).map(|i| (start + i * 32, 32)).collect();
    assert_eq!(heap.add_foreign(&snapshot, &mut blocks), 4000);
    let refused = |memory| {
        let mut types = Types::new(&snapshot, &[]);
        let found = Retained::of(
            &snapshot,
            &heap,
            MarkOptions::default(),
            &mut types,
            Some(memory),
        );
        found.err().map(|error| error.to_string())
    };
    let copied = snapshot.copied_bytes();
    assert_eq!(refused(copied + 4000 * 24), None);
    assert_eq!(
        refused(copied + 4000 * 24 - 1).as_deref(),
        Some(
            "computing what 4000 blocks retain would take about 93.8 KiB, and 93.7 KiB is allowed"
        )
    );
}
