//! What of the traced blocks is still reachable: a snapshot joined with the ledger.

use memhook_gate::Sum;
use memhook_heap::{Heap, MarkOptions, Snapshot, dissect, leaks, mark};
use memhook_ledger::LiveBlock;
use std::collections::HashMap;

/// Blocks that hang on leaked ones of one backtrace; `None`: blocks whose allocation was not traced.
#[derive(Default)]
pub struct Lost {
    /// Blocks of this backtrace to which no other leaked block points.
    pub direct: Sum,
    /// What only they reach, by backtrace.
    pub indirect: HashMap<Option<u32>, Sum>,
}

/// The blocks of a process at one moment.
#[derive(Default)]
pub struct Reached {
    /// Leaks by the backtrace of their direct blocks.
    pub lost: HashMap<Option<u32>, Lost>,
    /// What is reachable.
    pub reachable: Sum,
    /// Live blocks by backtrace, leaked or not.
    pub live: HashMap<u32, Sum>,
    /// What was not seen.
    pub gaps: Vec<String>,
}

/// The traced blocks in address order.
struct Traced(Vec<LiveBlock>);

impl Traced {
    fn find(&self, address: u64) -> Option<&LiveBlock> {
        let found = self.0.binary_search_by_key(&address, |b| b.address);
        found.ok().and_then(|at| self.0.get(at))
    }
}

/// Finds out which blocks nothing reaches.
pub fn reached(snapshot: &Snapshot, live: impl Iterator<Item = LiveBlock>) -> Reached {
    let mut traced = Traced(live.collect());
    traced.0.sort_unstable_by_key(|b| b.address);
    let mut found = Reached::default();
    for block in &traced.0 {
        found
            .live
            .entry(block.stack)
            .or_default()
            .add_block(block.size);
    }
    for note in &snapshot.meta.notes {
        found.gaps.push(note.clone());
    }
    let heap = match dissect(snapshot) {
        Ok(heap) => heap,
        Err(error) => {
            if !traced.0.is_empty() {
                found.gaps.push(error.to_string());
            }
            return found;
        }
    };
    judge_heap(&heap, &traced, &mut found.gaps);
    let options = MarkOptions::default();
    let marked = mark(snapshot, &heap, options);
    let leaks = leaks(snapshot, &heap.blocks, &marked, options);
    // What was asked for, where that is known; else what the block can hold.
    let look = |number: u32| {
        let block = heap.blocks.get(number);
        match traced.find(block.address) {
            Some(known) => (Some(known.stack), known.size),
            None => (None, block.bytes),
        }
    };
    for (number, _) in heap.blocks.iter() {
        if marked.reached.contains(number) {
            found.reachable.add_block(look(number).1);
        }
    }
    for leak in leaks {
        let (stack, bytes) = look(leak.block);
        let owner = found.lost.entry(look(leak.owner).0).or_default();
        match leak.is_direct() {
            true => owner.direct.add_block(bytes),
            false => owner.indirect.entry(stack).or_default().add_block(bytes),
        }
    }
    found
}

fn judge_heap(heap: &Heap, traced: &Traced, gaps: &mut Vec<String>) {
    if let Some(finding) = heap.findings.first() {
        let more = heap.findings.len() - 1;
        let others = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        gaps.push(format!(
            "the heap looks damaged at {:#x}: {}{others}",
            finding.address, finding.what
        ));
    }
    let mut strange = Sum::default();
    for block in &traced.0 {
        let inside = |r: &&(u64, u64)| (r.0..r.1).contains(&block.address);
        if heap.ranges.iter().find(inside).is_none() {
            strange.add_block(block.size);
        }
    }
    if strange.blocks > 0 {
        gaps.push(format!(
            "{} blocks ({} bytes) are not of glibc's malloc, and only its heap is known",
            strange.blocks, strange.bytes
        ));
    }
}
