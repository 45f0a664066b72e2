//! Comparison of two snapshots of a process: the new blocks, their types, and their holders.

use super::kinds::HOLDER;
use super::rows::Sum;
use super::{Node, Retained};
use crate::blocks::{Block, BlockTable};
use crate::dissect::Heap;
use crate::graph::types::Types;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::cmp::Reverse;

/// Holder of blocks that no single holder retains.
const TOGETHER: &str = "several holders together";

/// The blocks of a heap, each with its holder and type.
pub struct Attributed {
    blocks: BlockTable,
    /// Holder and type of each block.
    of: Vec<(u32, u32)>,
    holders: Vec<String>,
    types: Vec<String>,
}

/// Changes of a process's blocks between two snapshots.
#[derive(Clone, Debug, Serialize)]
pub struct HeapGrowth {
    /// All blocks of the older snapshot.
    pub old: Sum,
    /// All blocks of the newer snapshot.
    pub new: Sum,
    /// Blocks that exist only in the newer snapshot, compared by address and size.
    pub added: Sum,
    /// Blocks that only the older snapshot has.
    pub gone: Sum,
    /// Changes by holder, the largest growth first.
    pub holders: Vec<HolderGrowth>,
    /// Number of holders that changed and are not listed.
    pub more_holders: u64,
    /// Changes by type, the largest growth first.
    pub types: Vec<TypeGrowth>,
    /// Number of types that changed and are not listed.
    pub more_types: u64,
}

/// Changes of the blocks that one holder retains.
#[derive(Clone, Debug, Serialize)]
pub struct HolderGrowth {
    /// The holder.
    pub name: String,
    /// Change of the holder's blocks.
    #[serde(flatten)]
    pub change: Change,
    /// Types of the holder's blocks that grew most.
    pub types: Vec<TypeGrowth>,
}

/// Changes of the blocks of one type.
#[derive(Clone, Debug, Serialize)]
pub struct TypeGrowth {
    /// The type.
    pub name: String,
    /// Change of the type's blocks.
    #[serde(flatten)]
    pub change: Change,
}

/// Difference between the older and the newer snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Usable bytes in the newer snapshot minus those in the older one.
    pub change_bytes: i64,
    /// Number of blocks in the newer snapshot minus the number in the older one.
    pub change_blocks: i64,
    /// Blocks that are only in the newer snapshot.
    pub added: Sum,
    /// Blocks that are only in the older snapshot.
    pub gone: Sum,
}

impl Change {
    fn count(&mut self, bytes: u64, is_new: bool, is_in_both: bool) {
        let sign = if is_new { 1 } else { -1 };
        self.change_bytes += sign * bytes as i64;
        self.change_blocks += sign;
        match (is_in_both, is_new) {
            (true, _) => {}
            (false, true) => self.added.add(bytes, 1),
            (false, false) => self.gone.add(bytes, 1),
        }
    }

    fn is_none(&self) -> bool {
        *self == Change::default()
    }

    fn order(&self) -> (Reverse<i64>, Reverse<u64>) {
        (Reverse(self.change_bytes), Reverse(self.added.bytes))
    }
}

impl Retained {
    /// Returns each block with the innermost holder that retains it, and its type.
    pub fn attributed(self, heap: Heap, types: &Types) -> Attributed {
        let mut of = vec![(0, 0); heap.blocks.len() as usize];
        // Holders that retain the block at the current position, each with the end of the range
        // that it retains.
        let mut open: Vec<(u32, u32)> = Vec::new();
        for position in 0..self.tree.len() {
            while open.pop_if(|&mut (end, _)| end <= position).is_some() {}
            match self.at(position) {
                Node::Holder(holder) => open.push((self.tree.dominated(position).end, holder)),
                Node::Block(block) => {
                    let holder = open.last().map_or(0, |&(_, holder)| holder);
                    of[block as usize] = (holder, self.kinds.type_at(position));
                }
            }
        }
        debug_assert_eq!(self.kinds.at(0), HOLDER);
        let holders = (0..self.holders.len()).map(|holder| match holder {
            0 => TOGETHER.to_owned(),
            _ => self.full_name(holder),
        });
        Attributed {
            of,
            holders: holders.collect(),
            types: types.names().to_vec(),
            blocks: heap.blocks,
        }
    }
}

/// Holder and type, by numbers that both snapshots share.
type Key = (u32, u32);

/// Names of two snapshots by number.
#[derive(Default)]
struct Names {
    numbers: FxHashMap<String, u32>,
    names: Vec<String>,
}

impl Names {
    fn number(&mut self, name: &str) -> u32 {
        let next = self.names.len() as u32;
        let number = *self.numbers.entry(name.to_owned()).or_insert(next);
        if number == next {
            self.names.push(name.to_owned());
        }
        number
    }
}

impl Attributed {
    /// Compares these blocks with a newer snapshot. Returns the `top` rows of each kind.
    pub fn growth(&self, newer: &Attributed, top: usize) -> HeapGrowth {
        let (mut holders, mut types) = (Names::default(), Names::default());
        let mut keys = |of: &Attributed| -> (Vec<u32>, Vec<u32>) {
            let of_holders = of.holders.iter().map(|name| holders.number(name));
            let of_types = of.types.iter().map(|name| types.number(name));
            (of_holders.collect(), of_types.collect())
        };
        let (old_names, new_names) = (keys(self), keys(newer));
        let mut pairs: FxHashMap<Key, Change> = FxHashMap::default();
        let mut all = [Sum::default(); 2];
        let mut count = |side: &Attributed, block: (u32, Block), is_new: bool, is_in_both: bool| {
            let (holder, kind) = side.of[block.0 as usize];
            let names = if is_new { &new_names } else { &old_names };
            let key = (names.0[holder as usize], names.1[kind as usize]);
            all[usize::from(is_new)].add(block.1.bytes, 1);
            let change = pairs.entry(key).or_default();
            change.count(block.1.bytes, is_new, is_in_both);
        };
        let mut old_blocks = self.blocks.iter().peekable();
        for new in newer.blocks.iter() {
            while let Some(old) = old_blocks.next_if(|old| old.1.address < new.1.address) {
                count(self, old, false, false);
            }
            let same = old_blocks.next_if(|old| old.1 == new.1);
            if let Some(old) = same {
                count(self, old, false, true);
            }
            count(newer, new, true, same.is_some());
        }
        old_blocks.for_each(|old| count(self, old, false, false));
        HeapGrowth::of(&pairs, &holders.names, &types.names, all, top)
    }
}

fn add(sum: &mut Change, change: &Change) {
    sum.change_bytes += change.change_bytes;
    sum.change_blocks += change.change_blocks;
    sum.added.add(change.added.bytes, change.added.blocks);
    sum.gone.add(change.gone.bytes, change.gone.blocks);
}

/// Returns the `top` rows that changed, the largest growth first, and the number of further rows.
fn type_rows(sums: FxHashMap<u32, Change>, names: &[String], top: usize) -> (Vec<TypeGrowth>, u64) {
    let changed = sums.into_iter().filter(|(_, change)| !change.is_none());
    let mut rows: Vec<TypeGrowth> = changed
        .map(|(number, change)| TypeGrowth {
            name: names[number as usize].clone(),
            change,
        })
        .collect();
    rows.sort_by(|a, b| (a.change.order(), &a.name).cmp(&(b.change.order(), &b.name)));
    let more = rows.len().saturating_sub(top) as u64;
    rows.truncate(top);
    (rows, more)
}

impl HeapGrowth {
    fn of(
        pairs: &FxHashMap<Key, Change>,
        holders: &[String],
        types: &[String],
        [old, new]: [Sum; 2],
        top: usize,
    ) -> HeapGrowth {
        let mut all = Change::default();
        let mut by_type: FxHashMap<u32, Change> = FxHashMap::default();
        let mut by_holder: FxHashMap<u32, (Change, FxHashMap<u32, Change>)> = FxHashMap::default();
        for (&(holder, kind), change) in pairs {
            add(&mut all, change);
            add(by_type.entry(kind).or_default(), change);
            let (sum, types) = by_holder.entry(holder).or_default();
            add(sum, change);
            add(types.entry(kind).or_default(), change);
        }
        let changed = by_holder.into_iter().filter(|(_, sums)| !sums.0.is_none());
        let mut rows: Vec<HolderGrowth> = changed
            .map(|(holder, (change, of_types))| HolderGrowth {
                name: holders[holder as usize].clone(),
                change,
                types: type_rows(of_types, types, 5).0,
            })
            .collect();
        rows.sort_by(|a, b| (a.change.order(), &a.name).cmp(&(b.change.order(), &b.name)));
        let more_holders = rows.len().saturating_sub(top) as u64;
        rows.truncate(top);
        let (type_rows, more_types) = type_rows(by_type, types, top);
        HeapGrowth {
            old,
            new,
            added: all.added,
            gone: all.gone,
            holders: rows,
            more_holders,
            types: type_rows,
            more_types,
        }
    }
}
