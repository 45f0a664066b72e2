//! Random object graphs: marking agrees with a simple search over the planted edges.

use crate::blocks::{BlockTable, Segment, SegmentKind};
use crate::dissect::Heap;
use crate::graph::finder::MarkOptions;
use crate::graph::leaks::leaks;
use crate::graph::mark::mark;
use crate::graph::twice::fingerprints;
use crate::reclaim::choose::reclaimable;
use crate::snapshot::{Snapshot, ThreadState};
use crate::testing;
use proptest::prelude::*;
use std::collections::BTreeSet;

const HEAP: u64 = 0x5555_0000_0000;
pub(super) const ROOTS: u64 = 0x7fff_0000_0000;
const ROOT_WORDS: usize = 512;

#[derive(Clone, Debug)]
pub(super) struct Graph {
    /// Number of words in each block.
    pub(super) sizes: Vec<usize>,
    /// Edges: a block and a word in it, the target block and a byte offset in it. All numbers are
    /// reduced modulo the existing range.
    edges: Vec<(usize, usize, usize, u64)>,
    roots: Vec<(usize, usize, u64)>,
    pub(super) registers: Vec<usize>,
}

pub(super) fn graphs() -> impl Strategy<Value = Graph> {
    (1usize..60).prop_flat_map(|n| {
        (
            prop::collection::vec(1usize..40, n),
            prop::collection::vec((0..n, 0usize..64, 0..n, 0u64..400), 0..n * 2),
            prop::collection::vec((0..ROOT_WORDS, 0..n, 0u64..400), 0..6),
            prop::collection::vec(0..n, 0..3),
        )
            .prop_map(|(sizes, edges, roots, registers)| Graph {
                sizes,
                edges,
                roots,
                registers,
            })
    })
}

/// Lays the graph out as memory. Also returns the final edges, because a later edge may overwrite
/// an earlier one.
pub(super) fn lay_out(graph: &Graph) -> (Snapshot, Heap, Vec<BTreeSet<usize>>, BTreeSet<usize>) {
    let mut addresses = Vec::new();
    let mut at = HEAP;
    let mut chunks = Vec::new();
    for &words in &graph.sizes {
        // Usable bytes are 8 more than a multiple of 16.
        let chunk = (words as u64 * 8 + 8).next_multiple_of(16).max(32);
        addresses.push((at + 16, chunk - 8));
        chunks.push(chunk);
        at += chunk;
    }
    let mut heap_bytes = vec![0u8; (at + 4096 - HEAP) as usize];
    let mut root_bytes = vec![0u8; ROOT_WORDS * 8];
    let place = |bytes: &mut Vec<u8>, offset: usize, to: usize, inside: u64| {
        // The address may be inside the block, or just past its end.
        let target = addresses[to].0 + inside % (addresses[to].1 + 1);
        bytes[offset..offset + 8].copy_from_slice(&target.to_le_bytes());
    };
    let mut words: std::collections::BTreeMap<(usize, usize), usize> = Default::default();
    for &(from, word, to, inside) in &graph.edges {
        let word = word % (addresses[from].1 / 8) as usize;
        let offset = (addresses[from].0 - HEAP) as usize + word * 8;
        place(&mut heap_bytes, offset, to, inside);
        words.insert((from, word), to);
    }
    let mut root_words: std::collections::BTreeMap<usize, usize> = Default::default();
    for &(word, to, inside) in &graph.roots {
        place(&mut root_bytes, word * 8, to, inside);
        root_words.insert(word, to);
    }
    let mut edges = vec![BTreeSet::new(); graph.sizes.len()];
    for (&(from, _), &to) in &words {
        edges[from].insert(to);
    }
    let mut roots: BTreeSet<usize> = root_words.values().copied().collect();
    roots.extend(&graph.registers);
    let mut segment = Segment::new(HEAP, at + 32, SegmentKind::Arena(0));
    for (&(user, _), &chunk) in addresses.iter().zip(&chunks) {
        assert!(segment.push(user, chunk));
    }
    let mut snapshot = testing::snapshot(vec![(HEAP, heap_bytes), (ROOTS, root_bytes)]);
    snapshot.meta.threads.push(ThreadState {
        tid: 1,
        words: graph.registers.iter().map(|&b| addresses[b].0).collect(),
        ..ThreadState::default()
    });
    let heap = Heap {
        blocks: BlockTable::new(vec![segment]),
        ranges: vec![HEAP..at + 4096],
        ..Heap::empty()
    };
    (snapshot, heap, edges, roots)
}

pub(super) fn closure(from: &BTreeSet<usize>, edges: &[BTreeSet<usize>]) -> BTreeSet<usize> {
    let mut seen = from.clone();
    let mut waiting: Vec<usize> = from.iter().copied().collect();
    while let Some(block) = waiting.pop() {
        for &next in &edges[block] {
            if seen.insert(next) {
                waiting.push(next);
            }
        }
    }
    seen
}

#[test]
fn a_round_address_counts_only_for_who_frees() {
    let boundary = 5u64 << 30;
    let mut root = vec![0u8; 16];
    root[..8].copy_from_slice(&boundary.to_le_bytes());
    let options = MarkOptions {
        ignore_round: true,
        ..MarkOptions::default()
    };
    // One block spans the boundary, and one starts at it.
    for (start, counts) in [(boundary - 0x1000, false), (boundary, true)] {
        let block = vec![0u8; 0x2000];
        let snapshot = testing::snapshot(vec![(start, block), (ROOTS, root.clone())]);
        let mut heap = Heap::empty();
        assert_eq!(heap.add_foreign(&snapshot, &mut [(start, 0x2000)]), 1);
        let (number, _) = heap.blocks.find(start).expect("a block");
        let cautious = mark(&snapshot, &heap, MarkOptions::default());
        assert!(cautious.reached.contains(number));
        assert_eq!(
            mark(&snapshot, &heap, options).reached.contains(number),
            counts
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn exactly_the_unreachable_is_leaked(graph in graphs()) {
        let (snapshot, heap, edges, roots) = lay_out(&graph);
        let reachable = closure(&roots, &edges);
        let marked = mark(&snapshot, &heap, MarkOptions::default());
        for block in 0..graph.sizes.len() {
            prop_assert_eq!(marked.reached.contains(block as u32), reachable.contains(&block));
        }
        let found = leaks(&snapshot, &heap.blocks, &marked, MarkOptions::default());
        prop_assert_eq!(found.len(), graph.sizes.len() - reachable.len());
        let direct: BTreeSet<usize> = found
            .iter()
            .filter(|l| l.is_direct())
            .map(|l| l.block as usize)
            .collect();
        for leak in &found {
            let held = closure(&BTreeSet::from([leak.owner as usize]), &edges);
            prop_assert!(held.contains(&(leak.block as usize)));
            prop_assert!(direct.contains(&(leak.owner as usize)));
        }
        // No direct leak can be reached from another: each represents its own source component.
        for &one in &direct {
            let held = closure(&BTreeSet::from([one]), &edges);
            prop_assert!(direct.iter().all(|d| *d == one || !held.contains(d)));
        }
    }

    /// A block that is new, or was written to, keeps everything that it reaches.
    #[test]
    fn only_what_nothing_uncertain_reaches_may_go(graph in graphs(), new in prop::collection::vec(0usize..60, 0..8)) {
        let (snapshot, heap, edges, roots) = lay_out(&graph);
        let options = MarkOptions::default();
        let marked = mark(&snapshot, &heap, options);
        let found = leaks(&snapshot, &heap.blocks, &marked, options);
        let mut before = fingerprints(&snapshot, &heap.blocks, &found);
        let leaked = |block: &usize| !marked.reached.contains(*block as u32);
        let new: BTreeSet<usize> = new
            .into_iter()
            .filter(|block| *block < graph.sizes.len() && leaked(block))
            .collect();
        for &block in &new {
            before.remove(heap.blocks.get(block as u32).address);
        }
        let kept = closure(&roots.union(&new).copied().collect(), &edges);
        let may_go: BTreeSet<usize> = reclaimable(&snapshot, &heap, options, &found, &before, &[])
            .into_iter()
            .map(|block| block as usize)
            .collect();
        let expected: BTreeSet<usize> = (0..graph.sizes.len()).filter(|b| !kept.contains(b)).collect();
        prop_assert_eq!(may_go, expected);
    }
}
