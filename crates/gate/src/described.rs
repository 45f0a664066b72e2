//! Unreachable blocks in heaps of allocators that the user has described.

use crate::reached::dissected;
use crate::{Evidence, Reached, Search, Sum};
use memhook_heap::{MarkOptions, Snapshot, leaks, mark, possibly_lost};
use memhook_ledger::LiveBlock;
use std::collections::HashMap;

/// Live blocks of one described heap.
#[derive(Default)]
pub struct DescribedBlocks {
    /// Name given by the user.
    pub name: String,
    /// Live blocks of the heap, as of the snapshot or later.
    pub live: Vec<LiveBlock>,
    /// Released blocks (address, bytes) whose place has not been taken by another block.
    pub released: Vec<(u64, u64)>,
    /// True if one of the heap's functions releases single blocks. Otherwise, blocks are not
    /// expected to be released.
    pub releases: bool,
}

/// Sums of one heap among several, for a verdict on it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeapEvidence {
    /// Name given by the user.
    pub name: String,
    /// Blocks that are reachable, or that do not grow.
    pub reachable: Sum,
    /// Maximum bytes that were live at one time.
    pub peak_bytes: u64,
    /// Number of allocations.
    pub allocations: u64,
}

/// Determines the unreachable blocks of described heaps. `malloc` contains the live blocks of
/// malloc's ledger, from which blocks of these heaps may be cut.
///
/// The result for one heap is independent of the other heaps: a block that only a leaked block of
/// another heap reaches is a separate leak.
pub fn reached_in_heaps(
    snapshot: &Snapshot,
    malloc: impl Iterator<Item = LiveBlock>,
    heaps: &[DescribedBlocks],
    search: Search,
) -> Vec<Reached> {
    let mut of_malloc = Reached::default();
    let Some((heap, _)) = dissected(snapshot, malloc, search, &mut of_malloc) else {
        let gap = "the memory that its blocks are cut out of could not be read";
        return heaps.iter().map(|heap| unsearched(heap, gap)).collect();
    };
    let is_known = |block: &&LiveBlock| search.is_older(block);
    let judged = heaps.iter().filter(|heap| heap.releases);
    let all = heaps.iter().flat_map(|heap| heap.live.iter());
    let mut pieces: Vec<(u64, u64)> = all
        .filter(is_known)
        .map(|block| (block.address, block.size))
        .collect();
    let released: Vec<(u64, u64)> = judged.flat_map(|heap| heap.released.clone()).collect();
    let heap = heap.cut(snapshot, &mut pieces, &released);
    let mut found: Vec<Reached> = heaps.iter().map(of_live).collect();
    let options = MarkOptions {
        ignore_round: true,
        ..MarkOptions::default()
    };
    let marked = mark(snapshot, &heap, options);
    let possible = search
        .finds_possible
        .then(|| possibly_lost(snapshot, &heap, &marked, options));
    // A block of one heap may fill a block of another heap.
    let mut known: HashMap<u32, Vec<(usize, &LiveBlock)>> = HashMap::new();
    for (of, described) in heaps.iter().enumerate().filter(|(_, heap)| heap.releases) {
        for block in described.live.iter().filter(is_known) {
            let place = heap.blocks.find(block.address);
            let place = place.filter(|&(number, offset)| {
                let whole = block.size.max(1).next_multiple_of(8);
                offset == 0 && heap.blocks.get(number).bytes == whole
            });
            if let Some((number, _)) = place {
                known.entry(number).or_default().push((of, block));
            }
        }
    }
    let look = |number: u32| known.get(&number).into_iter().flatten().copied();
    let mut searched: Vec<Sum> = vec![Sum::default(); heaps.len()];
    for (number, _) in heap.blocks.iter() {
        let is_possible = possible.as_ref().is_some_and(|set| set.contains(number));
        for (of, block) in look(number) {
            searched[of].add_block(block.size);
            if marked.reached.contains(number) {
                found[of].reachable.add_block(block.size);
            }
            if is_possible {
                let sum = found[of].possible.entry(Some(block.stack)).or_default();
                sum.add_block(block.size);
            }
        }
    }
    for leak in leaks(snapshot, &heap.blocks, &marked, options) {
        for (of, block) in look(leak.block) {
            let mut owner = look(leak.owner).filter(|(number, _)| *number == of);
            let (owner, sum) = match owner.next().filter(|_| !leak.is_direct()) {
                Some((_, owner)) => (owner.stack, Some(block.stack)),
                None => (block.stack, None),
            };
            let lost = found[of].lost.entry(Some(owner)).or_default();
            match sum {
                Some(stack) => lost.indirect.entry(Some(stack)).or_default(),
                None => &mut lost.direct,
            }
            .add_block(block.size);
        }
    }
    for ((heap, found), searched) in heaps.iter().zip(&mut found).zip(searched) {
        note_rest(heap, searched, found);
    }
    found
}

/// Returns the result without a search, from the live blocks alone.
fn of_live(heap: &DescribedBlocks) -> Reached {
    let mut found = Reached::default();
    for block in &heap.live {
        found
            .live
            .entry(block.stack)
            .or_default()
            .add_block(block.size);
    }
    found
}

fn unsearched(heap: &DescribedBlocks, gap: &str) -> Reached {
    let mut found = of_live(heap);
    heap.live
        .iter()
        .for_each(|block| found.reachable.add_block(block.size));
    if heap.releases && !heap.live.is_empty() {
        found.gaps.push(gap.to_owned());
    }
    found
}

/// Adds a note about unjudged blocks, which count as reachable.
fn note_rest(heap: &DescribedBlocks, searched: Sum, found: &mut Reached) {
    let mut rest = Sum::default();
    heap.live
        .iter()
        .for_each(|block| rest.add_block(block.size));
    rest.blocks = rest.blocks.saturating_sub(searched.blocks);
    rest.bytes = rest.bytes.saturating_sub(searched.bytes);
    found.reachable.add(rest);
    if rest.blocks == 0 {
        return;
    }
    let why = if heap.releases {
        "they are not aligned to 8 bytes, hold blocks of another heap, are newer than the copy of the memory, or have \
         gone with the memory that they were cut out of"
    } else {
        "none of its functions is known to release single blocks"
    };
    found.notes.push(format!(
        "it is not judged whether something reaches {} of {}: {why}",
        memhook_report::counted(rest.blocks, "block"),
        heap.name
    ));
}

impl Evidence {
    /// Adds the result for a described heap. Its sites and findings are added to the existing ones,
    /// but its sums stay separate.
    pub fn add_heap(&mut self, name: &str, mut of_heap: Evidence) {
        let first = self.sites.len();
        for site in &mut of_heap.sites {
            site.heap = Some(name.to_owned());
        }
        for leak in &mut of_heap.leaks {
            leak.site += first;
            leak.indirect
                .iter_mut()
                .for_each(|(site, _)| *site += first);
        }
        of_heap
            .possible
            .iter_mut()
            .for_each(|leak| leak.site += first);
        self.sites.append(&mut of_heap.sites);
        self.leaks.append(&mut of_heap.leaks);
        self.possible.append(&mut of_heap.possible);
        let of_name = |text: String| format!("heap {name}: {text}");
        self.gaps.extend(of_heap.gaps.into_iter().map(of_name));
        self.notes.append(&mut of_heap.notes);
        self.heaps.push(HeapEvidence {
            name: name.to_owned(),
            reachable: of_heap.reachable,
            peak_bytes: of_heap.peak_bytes,
            allocations: of_heap.allocations,
        });
    }
}
