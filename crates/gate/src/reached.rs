//! Determines which blocks of a process are still reachable, by joining a snapshot with the blocks
//! of a trace.

use crate::Reached;
use crate::mapped::doubtful_mappings;
use crate::unfinished::{Unfinished, is_unfinished};
use memhook_heap::{
    Block, Error, Heap, MUSL, MarkOptions, Snapshot, Undissected, dissect, inside_malloc_note,
    leaks, mark_also, possibly_lost,
};
use memhook_ledger::LiveBlock;
use memhook_report::{count, counted};

/// The traced blocks in address order.
pub(crate) struct Traced(Vec<LiveBlock>);

impl Traced {
    pub fn iter(&self) -> impl Iterator<Item = &LiveBlock> {
        self.0.iter()
    }

    /// Returns the traced block inside a block of the heap.
    pub fn of(&self, block: Block) -> Option<&LiveBlock> {
        block.holding(&self.0, |known| known.address)
    }
}

/// Scope of a search, and facts known beforehand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Search {
    /// Time before the snapshot was taken, on the ledger's clock; `None` if the process has not run
    /// since.
    pub before_ns: Option<u64>,
    /// True if every block of the program was traced.
    pub is_complete: bool,
    /// True if [`Reached::possible`] is also computed.
    pub finds_possible: bool,
}

impl Search {
    /// Returns true if a block existed before the snapshot was taken. The ledger keeps whole
    /// milliseconds.
    pub(crate) fn is_older(&self, block: &LiveBlock) -> bool {
        let moment = self.before_ns;
        moment.is_none_or(|t| block.time_ns / 1_000_000 < t / 1_000_000)
    }
}

/// Finds the unreachable blocks in glibc's heap, and unreachable traced blocks of other allocators.
/// `live` contains the ledger's live blocks at the time of the snapshot or at a later time.
pub fn reached(
    snapshot: &Snapshot,
    live: impl Iterator<Item = LiveBlock>,
    search: Search,
) -> Reached {
    let mut found = Reached::default();
    let Some((mut heap, traced)) = dissected(snapshot, live, search, &mut found) else {
        return found;
    };
    let options = MarkOptions {
        ignore_round: true,
        ..MarkOptions::default()
    };
    let unfinished = Unfinished::of(snapshot, &traced, search);
    let (marked, leaks) = match unfinished {
        Some(unfinished) => unfinished.search(&mut heap, options, &mut found.gaps),
        None => {
            let also = doubtful_mappings(&mut heap, &traced, search, &mut found.gaps);
            let marked = mark_also(snapshot, &heap, options, &also);
            let leaks = leaks(snapshot, &heap.blocks, &marked, options);
            (marked, leaks)
        }
    };
    // The size is the requested one, if known, or else the capacity of the block.
    let look = |number: u32| {
        let block = heap.blocks.get(number);
        let known = traced.of(block);
        let requested = known.filter(|known| known.address == block.address);
        let bytes = requested.map_or(block.bytes, |known| known.size);
        (known.map(|known| known.stack), bytes)
    };
    for (number, _) in heap.blocks.iter() {
        if marked.reached.contains(number) {
            found.reachable.add_block(look(number).1);
        }
    }
    if search.finds_possible {
        let possible = possibly_lost(snapshot, &heap, &marked, options);
        for (number, _) in heap
            .blocks
            .iter()
            .filter(|&(number, _)| possible.contains(number))
        {
            let (stack, bytes) = look(number);
            found.possible.entry(stack).or_default().add_block(bytes);
        }
    }
    for leak in leaks {
        let (stack, bytes) = look(leak.block);
        let known = traced.of(heap.blocks.get(leak.block));
        found.unreachable.extend(known.map(|known| known.address));
        let owner = found.lost.entry(look(leak.owner).0).or_default();
        if leak.is_direct() {
            owner.direct.add_block(bytes);
        } else {
            owner.indirect.entry(stack).or_default().add_block(bytes);
        }
    }
    found
}

/// Returns the heap that is searched, with the traced blocks that are known to the search, in
/// address order. Adds gaps and notes about the heap to `found`. Returns `None` if there is no
/// block to search for.
pub(crate) fn dissected(
    snapshot: &Snapshot,
    live: impl Iterator<Item = LiveBlock>,
    search: Search,
    found: &mut Reached,
) -> Option<(Heap, Traced)> {
    let mut traced = Traced(live.collect());
    traced.0.sort_unstable_by_key(|b| b.address);
    for block in &traced.0 {
        found
            .live
            .entry(block.stack)
            .or_default()
            .add_block(block.size);
    }
    // The note about threads that are inside malloc when the process ends is handled later.
    let is_unfinished = is_unfinished(snapshot, search);
    let of_malloc = is_unfinished.then(|| inside_malloc_note(snapshot.meta.in_malloc));
    let notes = snapshot.meta.notes.iter();
    let notes = notes.filter(|&note| Some(note) != of_malloc.as_ref());
    found.gaps.extend(notes.cloned());
    let (mut heap, undissected) = match dissect(snapshot) {
        // The heap of another allocator was dissected.
        Ok(heap) => {
            let pid = snapshot.meta.pid;
            let mut minors = heap.undissected.iter().filter_map(Undissected::newer_glibc);
            let newer = minors
                .next()
                .map(|minor| Error::UnknownLayout { pid, minor });
            (heap, newer)
        }
        Err(_) if traced.0.is_empty() => return None,
        Err(error) => {
            // The error is not a gap if all blocks belong to another allocator.
            let mut modules = snapshot.meta.modules.iter();
            let has_other = modules.any(|m| m.allocator.is_some());
            (Heap::empty(), (!has_other).then_some(error))
        }
    };
    if !is_unfinished {
        judge_heap(&heap, &mut found.gaps);
    }
    let foreign = Foreign {
        search,
        is_glibcs: undissected.is_some(),
    };
    let is_known = foreign.add(&mut heap, snapshot, &traced, &mut found.gaps);
    let mut modules = snapshot.meta.modules.iter();
    if is_known && modules.any(|m| m.allocator.as_deref() == Some(MUSL)) {
        found.notes.push(
            "musl's allocator also keeps blocks among the data of modules, which is searched: blocks that a free one \
             points to look reachable"
                .into(),
        );
    }
    if let Some(error) = undissected {
        if is_known {
            found.notes.push(format!(
                "{error}: the verdict covers only the traced blocks"
            ));
        } else {
            found.gaps.push(error.to_string());
        }
    }
    Some((heap, traced))
}

pub(crate) fn judge_heap(heap: &Heap, gaps: &mut Vec<String>) {
    gaps.extend(
        heap.undissected
            .iter()
            .map(|undissected| format!("{undissected}")),
    );
    if let Some(finding) = heap.findings.first() {
        let more = heap.findings.len() - 1;
        let others = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        gaps.push(format!(
            "the heap does not parse at {:#x} ({}): {}{others}",
            finding.address,
            heap.cause_of(finding),
            finding.what
        ));
    }
}

/// Blocks in heaps that were not dissected: heaps of other allocators, or of an unknown glibc.
struct Foreign {
    search: Search,
    is_glibcs: bool,
}

impl Foreign {
    /// Adds the blocks that were live when the snapshot was taken: blocks that are older than the
    /// snapshot and still live. Returns true if these blocks could be distinguished from all free
    /// memory.
    fn add(
        &self,
        heap: &mut Heap,
        snapshot: &Snapshot,
        traced: &Traced,
        gaps: &mut Vec<String>,
    ) -> bool {
        let is_older = |b: &&LiveBlock| self.search.is_older(b);
        let mut ranges = heap.ranges.clone();
        ranges.sort_unstable_by_key(|r| (r.start, r.end));
        let is_foreign = |b: &&LiveBlock| {
            let behind = ranges.partition_point(|r| r.end <= b.address);
            ranges.get(behind).is_none_or(|r| b.address < r.start)
        };
        let foreign = traced.0.iter().filter(is_foreign).filter(is_older);
        let mut foreign: Vec<_> = foreign.map(|b| (b.address, b.size)).collect();
        if foreign.is_empty() {
            return true;
        }
        let bytes: u64 = foreign.iter().map(|f| f.1).sum();
        let added = heap.add_foreign(snapshot, &mut foreign);
        let addresses: Vec<u64> = foreign.iter().map(|f| f.0).collect();
        let is_told = added == foreign.len() as u64
            && if self.is_glibcs {
                heap.take_undissected(snapshot, &addresses)
            } else {
                self.search.is_complete && heap.take_areas(snapshot, &addresses)
            };
        if is_told {
            return true;
        }
        gaps.push(format!(
            "{} of {} are known only from the trace: {} of them were searched for pointers, and stale pointers that \
             their allocator keeps may make a few look reachable",
            memhook_report::bytes(bytes),
            counted(foreign.len() as u64, "block"),
            count(added)
        ));
        false
    }
}
