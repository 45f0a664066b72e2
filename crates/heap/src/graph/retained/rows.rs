//! Sums over the tree: by holder, by type, and the largest blocks.

use super::kinds::HOLDER;
use super::{HolderKind, Node, Retained};
use crate::graph::types::{Evidence, Types, TypesTold};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Memory that one holder retains.
#[derive(Clone, Debug, Serialize)]
pub struct HolderRow {
    /// Kind of the holder.
    pub kind: HolderKind,
    /// Name of the holder.
    pub name: String,
    /// Usable bytes that would become unreachable without the holder.
    pub retained_bytes: u64,
    /// Number of these blocks.
    pub retained_blocks: u64,
    /// Variables of the holder, the largest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<VariableRow>,
    /// Number of variables that retain blocks but are not listed.
    pub more_variables: u64,
    /// For a module: blocks that several of its variables reach but no single variable retains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub together: Option<Sum>,
}

/// Memory that one variable retains.
#[derive(Clone, Debug, Serialize)]
pub struct VariableRow {
    /// Name of the variable.
    pub name: String,
    /// Address of the variable.
    pub address: String,
    /// Usable bytes that would become unreachable without the variable.
    pub retained_bytes: u64,
    /// Number of these blocks.
    pub retained_blocks: u64,
}

/// Memory that the blocks of one type retain together.
#[derive(Clone, Debug, Serialize)]
pub struct TypeRow {
    /// The type.
    pub name: String,
    /// Evidence for the type.
    pub evidence: Evidence,
    /// Usable bytes of the blocks.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Usable bytes that these blocks retain. Bytes are counted once if one block of the type
    /// retains another.
    pub retained_bytes: u64,
    /// Number of retained blocks.
    pub retained_blocks: u64,
}

/// Number of bytes and blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sum {
    /// Usable bytes.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
}

impl Sum {
    pub(super) fn add(&mut self, bytes: u64, blocks: u64) {
        self.bytes += bytes;
        self.blocks += blocks;
    }
}

impl Retained {
    /// Returns the node at a position of the tree.
    pub(super) fn at(&self, position: u32) -> Node {
        let node = self.tree.node(position);
        match node.checked_sub(self.blocks) {
            Some(holder) => Node::Holder(holder),
            None => Node::Block(node),
        }
    }

    /// Returns the sum that the node at a position retains.
    pub(super) fn sum(&self, position: u32) -> Sum {
        let range = self.tree.dominated(position);
        let positions = &self.holder_positions;
        let before = |position| positions.partition_point(|&p| p < position);
        let holders = before(range.end) - before(range.start);
        Sum {
            bytes: self.tree.retained(position),
            blocks: u64::from(range.end - range.start) - holders as u64,
        }
    }

    /// Returns the sum of all blocks.
    pub fn all(&self) -> Sum {
        self.sum(0)
    }

    /// Returns the sum of the blocks that several holders reach but no holder retains alone.
    pub fn shared(&self) -> Sum {
        self.held_together(0)
    }

    /// Returns the sum of the blocks that the holder at a position retains, but none of its
    /// variables retains.
    fn held_together(&self, position: u32) -> Sum {
        let mut sum = Sum::default();
        for child in self.tree.children(position) {
            if let Node::Block(_) = self.at(child) {
                let Sum { bytes, blocks } = self.sum(child);
                sum.add(bytes, blocks);
            }
        }
        sum
    }

    /// Returns the `top` holders that retain the most, largest first, and the number of further
    /// holders.
    pub fn holders(&self, top: usize) -> (Vec<HolderRow>, u64) {
        let mut rows = Vec::new();
        for child in self.tree.children(0) {
            let Node::Holder(number) = self.at(child) else {
                continue;
            };
            let Sum { bytes, blocks } = self.sum(child);
            if blocks > 0 {
                rows.push((bytes, blocks, number, child));
            }
        }
        rows.sort_unstable_by_key(|&(bytes, blocks, number, _)| {
            (Reverse(bytes), Reverse(blocks), number)
        });
        let more = rows.len().saturating_sub(top) as u64;
        rows.truncate(top);
        let rows = rows.into_iter().map(|(bytes, blocks, number, position)| {
            let holder = &self.holders.all[number as usize];
            let mut variables = self.variables(position);
            let more_variables = variables.len().saturating_sub(top) as u64;
            variables.truncate(top);
            let is_module = holder.kind == HolderKind::Module;
            HolderRow {
                kind: holder.kind,
                name: holder.name.clone(),
                retained_bytes: bytes,
                retained_blocks: blocks,
                variables,
                more_variables,
                together: is_module.then(|| self.held_together(position)),
            }
        });
        (rows.collect(), more)
    }

    fn variables(&self, module: u32) -> Vec<VariableRow> {
        let mut rows = Vec::new();
        for child in self.tree.children(module) {
            let Sum { bytes, blocks } = self.sum(child);
            if let Node::Holder(number) = self.at(child)
                && blocks > 0
            {
                let holder = &self.holders.all[number as usize];
                rows.push(VariableRow {
                    name: holder.name.clone(),
                    address: format!("{:#x}", holder.address),
                    retained_bytes: bytes,
                    retained_blocks: blocks,
                });
            }
        }
        rows.sort_by_key(|row| (Reverse(row.retained_bytes), row.address.clone()));
        rows
    }

    /// Returns the `top` types whose blocks retain the most, and the number of further types.
    pub fn types(&self, types: &Types, top: usize) -> (Vec<TypeRow>, u64) {
        let mut rows: Vec<(Sum, Sum)> = Vec::new();
        // Types of the blocks that retain the current position, with the end of the part that each
        // block retains. A block of a type that is already in the list is not added, so there are
        // never more entries than types.
        let mut open: Vec<(u32, u32)> = Vec::new();
        for position in 0..self.tree.len() {
            while open.pop_if(|&mut (end, _)| end <= position).is_some() {}
            if self.kinds.at(position) == HOLDER {
                continue;
            }
            let number = self.kinds.type_at(position);
            if rows.len() <= number as usize {
                rows.resize(number as usize + 1, Default::default());
            }
            let (own, retained) = &mut rows[number as usize];
            own.add(self.tree.own(position), 1);
            if !open.iter().any(|&(_, open)| open == number) {
                let Sum { bytes, blocks } = self.sum(position);
                retained.add(bytes, blocks);
                open.push((self.tree.dominated(position).end, number));
            }
        }
        let mut rows: Vec<TypeRow> = (0u32..)
            .zip(rows)
            .filter(|(_, (own, _))| own.blocks > 0)
            .map(|(number, (own, retained))| TypeRow {
                name: types.name(number).to_owned(),
                evidence: types.evidence(number),
                bytes: own.bytes,
                blocks: own.blocks,
                retained_bytes: retained.bytes,
                retained_blocks: retained.blocks,
            })
            .collect();
        rows.sort_by_key(|row| (Reverse(row.retained_bytes), row.name.clone(), row.evidence));
        let more = rows.len().saturating_sub(top) as u64;
        rows.truncate(top);
        (rows, more)
    }

    /// Returns the share of the heap whose types are known.
    pub fn types_told(&self, types: &Types) -> TypesTold {
        let mut told = TypesTold {
            notes: types.notes().to_vec(),
            ..TypesTold::default()
        };
        for position in 0..self.tree.len() {
            if self.kinds.at(position) != HOLDER {
                let evidence = types.evidence(self.kinds.type_at(position));
                told.count(evidence, self.tree.own(position));
            }
        }
        told
    }

    /// Returns the positions of the blocks that retain the most, among those that no other block
    /// retains.
    pub(super) fn largest(&self, top: usize) -> Vec<u32> {
        let mut largest = BinaryHeap::new();
        let mut look = |holder: u32| {
            for child in self.tree.children(holder) {
                if let Node::Block(_) = self.at(child) {
                    largest.push(Reverse((self.tree.retained(child), Reverse(child))));
                    if largest.len() > top {
                        largest.pop();
                    }
                }
            }
        };
        self.holder_positions.iter().for_each(|&p| look(p));
        let sorted = largest.into_sorted_vec().into_iter();
        sorted.map(|Reverse((_, Reverse(at)))| at).collect()
    }
}
