//! The dominator tree as it is drawn: of limited size, with related blocks merged into one node.
//!
//! In memory, a map of a million nodes is a million blocks that hold each other. Blocks of one type
//! and size that retain one another directly form one structure. A block that any of them retains
//! is a child of the structure.

use super::kinds::HOLDER;
use super::rows::Sum;
use super::{HolderKind, Node, Retained};
use crate::dissect::Heap;
use crate::graph::types::Types;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Number of nodes at which splitting stops. The children of the node that is split last may exceed
/// this number.
const NODES: usize = 2000;
/// Maximum number of children of a node, in addition to the children that are summed up.
const CHILDREN: usize = 60;
/// Maximum depth of a picture. JSON parsers limit nesting, and people do not read further down.
const LEVELS: u32 = 40;

/// Meaning of a node of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PictureKind {
    /// Blocks of one type and size. Every block but the first is retained by another block of the
    /// structure.
    Structure,
    /// Blocks of one type that the parent retains side by side, with all that they retain.
    Group,
    /// Smaller blocks of any type, with all that they retain.
    Others,
    /// A holder of blocks.
    #[serde(untagged)]
    Holder(HolderKind),
}

/// A node of a picture.
#[derive(Clone, Debug, Serialize)]
pub struct PictureNode {
    /// Index of the node that retains this node; `None` for the first node.
    pub parent: Option<u32>,
    /// Meaning of the node.
    pub kind: PictureKind,
    /// The holder's name, or the type of the blocks.
    pub name: String,
    /// Address of a structure's first block, of a group's largest block, or of a variable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Number of blocks in the node, without other blocks that they retain.
    pub blocks: u64,
    /// Usable bytes of these blocks.
    pub bytes: u64,
    /// Usable bytes of all blocks that the node retains, its own included.
    pub retained_bytes: u64,
    /// Number of blocks that the node retains.
    pub retained_blocks: u64,
}

/// A block or a structure that a structure or a holder retains.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Child {
    retained: u64,
    position: Reverse<u32>,
    /// Number of the type.
    kind: u32,
}

/// Blocks that a structure or a holder retains.
#[derive(Default)]
struct Hanging {
    own: Sum,
    /// The largest blocks.
    largest: BinaryHeap<Reverse<Child>>,
    /// The rest by type.
    rest: FxHashMap<u32, Small>,
}

/// Children of one type that are summed up.
#[derive(Clone, Copy, Default)]
struct Small {
    own: Sum,
    all: Sum,
    /// Bytes of the largest child, and its position.
    largest: (u64, u32),
}

impl Hanging {
    fn put(&mut self, retained: &Retained, child: Child, smallest: u64) {
        let mut small = Some(child);
        if child.retained >= smallest {
            self.largest.push(Reverse(child));
            small = match self.largest.len() > CHILDREN {
                true => self.largest.pop().map(|Reverse(child)| child),
                false => None,
            };
        }
        let Some(child) = small else {
            return;
        };
        let Reverse(position) = child.position;
        let entry = self.rest.entry(child.kind).or_default();
        let sum = retained.sum(position);
        entry.all.add(sum.bytes, sum.blocks);
        if let Node::Block(_) = retained.at(position) {
            entry.own.add(retained.tree.own(position), 1);
        }
        entry.largest = entry.largest.max((child.retained, position));
    }
}

struct Drawing<'a, 'b> {
    retained: &'a Retained,
    types: &'a Types<'b>,
    heap: &'a Heap,
    nodes: Vec<PictureNode>,
    /// Nodes that wait to be split: retained bytes, index, position and level of each.
    waiting: BinaryHeap<(u64, Reverse<u32>, u32, u32)>,
    /// Limit below which retained memory is summed up.
    smallest: u64,
}

impl Retained {
    /// Returns the picture. Each node comes after its parent.
    pub fn picture(&self, heap: &Heap, types: &Types) -> Vec<PictureNode> {
        let mut drawing = Drawing {
            retained: self,
            types,
            heap,
            nodes: Vec::new(),
            waiting: BinaryHeap::new(),
            smallest: self.all().bytes / 5000,
        };
        drawing.add(None, 0, 0);
        while let Some((_, Reverse(index), position, level)) = drawing.waiting.pop() {
            if drawing.nodes.len() >= NODES || level >= LEVELS {
                continue;
            }
            drawing.split(index, position, level);
        }
        drawing.nodes
    }

    /// Returns the largest blocks that only holders hold. Each block comes with the chain of
    /// structures that contain most of the bytes that it retains.
    pub fn largest_blocks(&self, heap: &Heap, types: &Types, top: usize) -> Vec<LargestBlock> {
        let positions = self.largest(top);
        let nodes: Vec<u32> = positions.iter().map(|&at| self.tree.node(at)).collect();
        let mut pointing = self.holders.pointing_to(&nodes);
        let rows = positions.into_iter().zip(nodes).map(|(position, node)| {
            let path = self.tree.path(position);
            let mut holders = path.iter().filter_map(|&at| match self.at(at) {
                Node::Holder(holder) if holder > 0 => Some(holder),
                _ => None,
            });
            let held_by = holders.next_back();
            let is_shared = held_by
                .is_none_or(|holder| self.holders.all[holder as usize].kind == HolderKind::Module);
            let pointing = pointing.remove(&node).filter(|_| is_shared);
            let names = pointing.into_iter().flatten();
            let sum = self.sum(position);
            LargestBlock {
                held_by: held_by.map(|holder| self.full_name(holder)),
                pointed_to_by: names.map(|holder| self.full_name(holder)).collect(),
                retained_bytes: sum.bytes,
                retained_blocks: sum.blocks,
                path: self.way_down(heap, types, position),
            }
        });
        rows.collect()
    }

    /// Returns the structure at a position, followed by its largest child, the largest child of
    /// that child, and so on, as long as each child has at least half of the bytes that its parent
    /// retains.
    fn way_down(&self, heap: &Heap, types: &Types, position: u32) -> Vec<StructureStep> {
        let mut steps: Vec<StructureStep> = Vec::new();
        let mut at = position;
        while let Node::Block(block) = self.at(at)
            && steps.len() < 8
        {
            let mut next: Option<u32> = None;
            let own = self.hanging_on(at, |child| {
                if next.is_none_or(|n| self.tree.retained(n) < self.tree.retained(child)) {
                    next = Some(child);
                }
            });
            let found = heap.blocks.get(block);
            steps.push(StructureStep {
                address: format!("{:#x}", found.address),
                name: types.name(self.kinds.type_at(at)).to_owned(),
                block_bytes: found.bytes,
                blocks: own.blocks,
                retained_bytes: self.tree.retained(at),
            });
            match next {
                Some(child) if self.tree.retained(child) * 2 >= self.tree.retained(at) => {
                    at = child
                }
                _ => break,
            }
        }
        steps
    }

    /// Calls `found` with the position of each child of the structure that begins at this position.
    /// Returns the sum of the structure itself.
    fn hanging_on(&self, position: u32, mut found: impl FnMut(u32)) -> Sum {
        let mut own = Sum::default();
        let range = self.tree.dominated(position);
        let kind = self.kinds.at(position);
        let mut at = range.start;
        while at < range.end {
            if self.kinds.at(at) == kind {
                own.add(self.tree.own(at), 1);
                at += 1;
            } else {
                // The structure retains this block directly. Blocks that other blocks retain were
                // skipped.
                found(at);
                at = self.tree.dominated(at).end;
            }
        }
        own
    }

    /// Returns the name of a holder, preceded by its module if the holder is a variable.
    pub(super) fn full_name(&self, holder: u32) -> String {
        let found = &self.holders.all[holder as usize];
        match found.of.map(|module| &self.holders.all[module as usize]) {
            Some(module) => {
                let file = module.name.rsplit('/').next().unwrap_or(&module.name);
                format!("{} of {file}", found.name)
            }
            None => found.name.clone(),
        }
    }
}

/// A block that no other block retains.
#[derive(Clone, Debug, Serialize)]
pub struct LargestBlock {
    /// The holder of the block; `None` if several holders point to it.
    pub held_by: Option<String>,
    /// If there are several holders, or several variables of one module: the holders that point to
    /// the block. The list is empty if they only point to other blocks, which lead to this block.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pointed_to_by: Vec<String>,
    /// Usable bytes that the block retains.
    pub retained_bytes: u64,
    /// Number of blocks that it retains.
    pub retained_blocks: u64,
    /// The structure that begins with the block, followed by the structures that contain most of
    /// the retained bytes.
    pub path: Vec<StructureStep>,
}

/// Blocks of one type and size that hold each other.
#[derive(Clone, Debug, Serialize)]
pub struct StructureStep {
    /// Address of the first block.
    pub address: String,
    /// Type of the blocks.
    #[serde(rename = "type")]
    pub name: String,
    /// Usable bytes of each block.
    pub block_bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Usable bytes that the first block retains.
    pub retained_bytes: u64,
}

impl Drawing<'_, '_> {
    fn add(&mut self, parent: Option<u32>, position: u32, level: u32) {
        let Sum { bytes, blocks } = self.retained.sum(position);
        let index = self.nodes.len() as u32;
        let (kind, name, address) = match self.retained.at(position) {
            Node::Holder(number) => {
                let holder = &self.retained.holders.all[number as usize];
                let address = (holder.address > 0).then_some(holder.address);
                (
                    PictureKind::Holder(holder.kind),
                    holder.name.clone(),
                    address,
                )
            }
            Node::Block(block) => {
                let name = self
                    .types
                    .name(self.retained.kinds.type_at(position))
                    .to_owned();
                let address = self.heap.blocks.get(block).address;
                (PictureKind::Structure, name, Some(address))
            }
        };
        let is_block = kind == PictureKind::Structure;
        self.nodes.push(PictureNode {
            parent,
            kind,
            name,
            address: address.map(|address| format!("{address:#x}")),
            // If a structure is not split, its first block represents all of its blocks.
            blocks: u64::from(is_block),
            bytes: if is_block {
                self.retained.tree.own(position)
            } else {
                0
            },
            retained_bytes: bytes,
            retained_blocks: blocks,
        });
        self.waiting.push((bytes, Reverse(index), position, level));
    }

    /// Splits a node into its children.
    fn split(&mut self, index: u32, position: u32, level: u32) {
        let hanging = self.hanging(position);
        if let Node::Block(_) = self.retained.at(position) {
            let node = &mut self.nodes[index as usize];
            (node.blocks, node.bytes) = (hanging.own.blocks, hanging.own.bytes);
        }
        for Reverse(child) in hanging.largest.into_sorted_vec() {
            self.add(Some(index), child.position.0, level + 1);
        }
        let mut groups: Vec<(u32, Small)> = hanging.rest.into_iter().collect();
        groups.sort_by_key(|&(number, small)| (Reverse(small.all.bytes), number));
        let mut others = Small::default();
        for (i, (number, small)) in groups.into_iter().enumerate() {
            if small.all.bytes < self.smallest || i >= CHILDREN {
                others.own.add(small.own.bytes, small.own.blocks);
                others.all.add(small.all.bytes, small.all.blocks);
                continue;
            }
            let address = match self.retained.at(small.largest.1) {
                Node::Block(block) => Some(self.heap.blocks.get(block).address),
                Node::Holder(_) => None,
            };
            let name = self.types.name(number).to_owned();
            self.add_sum(index, PictureKind::Group, name, small, address);
        }
        if others.all.blocks > 0 {
            self.add_sum(index, PictureKind::Others, "others".into(), others, None);
        }
    }

    fn add_sum(
        &mut self,
        parent: u32,
        kind: PictureKind,
        name: String,
        small: Small,
        address: Option<u64>,
    ) {
        self.nodes.push(PictureNode {
            parent: Some(parent),
            kind,
            name,
            address: address.map(|address| format!("{address:#x}")),
            blocks: small.own.blocks,
            bytes: small.own.bytes,
            retained_bytes: small.all.bytes,
            retained_blocks: small.all.blocks,
        });
    }

    fn hanging(&self, position: u32) -> Hanging {
        let retained = self.retained;
        let smallest = self.smallest.max(1);
        let mut found = Hanging::default();
        let mut put = |position| {
            let child = Child {
                retained: retained.tree.retained(position),
                position: Reverse(position),
                kind: retained.kinds.type_at(position),
            };
            found.put(retained, child, smallest);
        };
        match retained.kinds.at(position) {
            HOLDER => retained.tree.children(position).for_each(put),
            _ => {
                let own = retained.hanging_on(position, &mut put);
                found.own = own;
            }
        }
        found
    }
}
