//! Reason why a block is alive: a shortest path to it from a root.

use crate::Error;
use crate::dissect::Heap;
use crate::graph::finder::{Finder, MarkOptions};
use crate::graph::roots::{RootKind, root_ranges};
use crate::graph::types::Types;
use crate::snapshot::{Snapshot, words};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::collections::VecDeque;

/// One block on the path.
#[derive(Clone, Debug, Serialize)]
pub struct WhyStep {
    /// Address of the block.
    pub address: String,
    /// Usable bytes of the block.
    pub bytes: u64,
    /// Class of the block, or a description of its contents.
    #[serde(rename = "type")]
    pub kind: String,
    /// Offset in this block of the pointer to the next block.
    pub offset: Option<u64>,
}

/// The path from a root to a block.
#[derive(Clone, Debug, Serialize)]
pub struct Why {
    /// The root, and where it holds the pointer; `None` if nothing reaches the block.
    pub root: Option<String>,
    /// The blocks on the path, beginning at the root. The last one is the block in question.
    pub path: Vec<WhyStep>,
}

const NONE: u32 = u32::MAX;

/// Returns the path that keeps a block alive. The block starts at `address` or contains it.
pub fn why(
    snapshot: &Snapshot,
    heap: &Heap,
    options: MarkOptions,
    types: &mut Types,
    address: u64,
) -> Result<Why, Error> {
    let Some((goal, _)) = heap.blocks.find(address) else {
        let within = heap.ranges.iter().any(|r| r.contains(&address));
        let hint = if within {
            ": free memory or a header"
        } else {
            ""
        };
        return Err(Error::NoBlock {
            address,
            hint: hint.into(),
        });
    };
    let search = Search::new(snapshot, heap, options, goal);
    let mut blocks = Vec::new();
    let mut root = None;
    if search.parents[goal as usize] != NONE {
        let mut at = goal;
        loop {
            blocks.push(at);
            let parent = search.parents[at as usize];
            if parent == at {
                break;
            }
            at = parent;
        }
        blocks.reverse();
        root = search.roots.get(&blocks[0]).map(|(at, kind)| match kind {
            RootKind::Register(_) | RootKind::Kernel => kind.to_string(),
            _ => format!("{kind}, at {at:#x}"),
        });
    } else {
        blocks.push(goal);
    }
    let finder = Finder::new(snapshot, &heap.blocks, options);
    let path = blocks
        .iter()
        .enumerate()
        .map(|(i, &number)| {
            let block = heap.blocks.get(number);
            let bytes = snapshot.bytes(block.address, block.bytes).unwrap_or(&[]);
            let next = blocks.get(i + 1);
            let offset =
                next.and_then(|&n| words(bytes).position(|w| finder.kept_by(w) == Some(n)));
            WhyStep {
                address: format!("{:#x}", block.address),
                bytes: block.bytes,
                kind: types.describe(&heap.blocks, number),
                offset: offset.map(|o| o as u64 * 8),
            }
        })
        .collect();
    Ok(Why { root, path })
}

struct Search {
    /// The block from which each block was reached. A block that was reached from a root names
    /// itself.
    parents: Vec<u32>,
    roots: FxHashMap<u32, (u64, RootKind)>,
}

impl Search {
    fn new(snapshot: &Snapshot, heap: &Heap, options: MarkOptions, goal: u32) -> Search {
        let finder = Finder::new(snapshot, &heap.blocks, options);
        let mut search = Search {
            parents: vec![NONE; heap.blocks.len() as usize],
            roots: FxHashMap::default(),
        };
        let mut waiting = VecDeque::new();
        let meta = &snapshot.meta;
        let registers = meta.threads.iter().flat_map(|thread| {
            let words = thread.words.iter();
            words.map(|&word| (word, RootKind::Register(thread.tid)))
        });
        let of_kernel = meta.kernel_words.iter().map(|&w| (w, RootKind::Kernel));
        for (word, kind) in registers.chain(of_kernel) {
            if let Some((block, _)) = heap.blocks.find(word)
                && search.parents[block as usize] == NONE
            {
                search.parents[block as usize] = block;
                search.roots.insert(block, (0, kind));
                waiting.push_back(block);
            }
        }
        for root in root_ranges(snapshot, heap) {
            finder.root_pieces(root.start, root.end, |piece| {
                for index in 0..piece.words() {
                    finder.at_word(&piece, index, |block| {
                        if search.parents[block as usize] == NONE {
                            search.parents[block as usize] = block;
                            let at = piece.address() + index as u64 * 8;
                            search.roots.insert(block, (at, root.kind.clone()));
                            waiting.push_back(block);
                        }
                    });
                }
            });
        }
        while let Some(block) = waiting.pop_front() {
            if search.parents[goal as usize] != NONE {
                break;
            }
            for piece in finder.contents(block) {
                finder.in_piece(&piece, |next| {
                    if search.parents[next as usize] == NONE {
                        search.parents[next as usize] = block;
                        waiting.push_back(next);
                    }
                });
            }
        }
        search
    }
}
