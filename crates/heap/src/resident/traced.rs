//! The account of a traced process without a copy of its memory: mappings from the kernel's sums,
//! and live blocks from the trace. It holds no thread and reads only headers of heaps, so it can be
//! repeated often.

use crate::capture::residency::Residency;
use crate::ranges::intersection;
use crate::resident::account::{Account, Holding, Part};
use crate::resident::arena_heaps::arena_heaps;
use crate::resident::mappings::{file_name, part_of_file};
use memhook_process::{Mapping, MappingUse, RemoteAddress, blocked_at, read_memory, threads};
use std::collections::BTreeMap;

/// A trace's knowledge of the heap.
pub struct TracedHeap<'a> {
    /// Requested bytes of live blocks that were allocated since the attach.
    pub live_bytes: u64,
    /// Bytes of live blocks that were allocated before the attach, if the allocator's own sums show
    /// them.
    pub earlier_bytes: Option<u64>,
    /// Returns true if a live block is in a mapping.
    pub has_block: &'a dyn Fn(&Mapping) -> bool,
    /// Returns true if a mapping was made by traced calls.
    pub is_traced: &'a dyn Fn(&Mapping) -> bool,
}

/// Returns the account of a process, given its resident pages.
pub fn account_of_trace(pid: i32, residency: &Residency, heap: &TracedHeap) -> Account {
    let threads = threads(pid).unwrap_or_default();
    let stacks: Vec<(u64, String)> = threads
        .into_iter()
        .filter_map(|thread| Some((blocked_at(pid, thread.tid)?.1, thread.name)))
        .collect();
    // If a trace begins late in the life of a service, most of the service's blocks are in heaps
    // without a traced block.
    let heaps = arena_heaps(&residency.mappings, &residency.pages, |place| {
        words_at(pid, place)
    });
    let in_heaps = intersection(&heaps, &residency.pages);
    let mut found: BTreeMap<(Part, String), u64> = BTreeMap::new();
    let mut of_heap = 0;
    let resident = residency.mappings.iter();
    for MappingUse { mapping, memory } in resident.filter(|used| used.memory.rss > 0) {
        let stack = stacks.iter().find(|(sp, _)| mapping.contains(*sp));
        let (part, name) = if let Some(part) = part_of_file(mapping) {
            (part, file_name(mapping))
        } else if mapping.path == "[heap]" || (heap.has_block)(mapping) {
            of_heap += memory.rss;
            continue;
        } else if let Some((_, thread)) = stack {
            (Part::Stacks, format!("thread {thread}"))
        } else if mapping.path == "[stack]" {
            (Part::Stacks, "stack of the initial thread".into())
        } else if (heap.is_traced)(mapping) {
            (Part::Mappings, "mapped by traced calls".into())
        } else if mapping.path.is_empty() {
            (Part::Mappings, "anonymous".into())
        } else {
            (Part::Mappings, mapping.path.clone())
        };
        let first = in_heaps.partition_point(|run| run.end <= mapping.start);
        let here = in_heaps[first..].iter();
        let here = here.take_while(|run| run.start < mapping.end);
        let bytes = here.map(|run| run.end.min(mapping.end) - run.start.max(mapping.start));
        let bytes: u64 = bytes.sum();
        let bytes = bytes.min(memory.rss);
        of_heap += bytes;
        if bytes < memory.rss {
            *found.entry((part, name)).or_default() += memory.rss - bytes;
        }
    }
    let mut account = Account::default();
    // Blocks that were never written are not in memory.
    let live = heap.live_bytes.min(of_heap);
    account.parts.insert(Part::LiveHeap, live);
    let rest = of_heap - live;
    let earlier = heap.earlier_bytes.map(|bytes| bytes.min(rest));
    if let Some(earlier) = earlier {
        account.parts.insert(Part::EarlierHeap, earlier);
    }
    let rest = rest - earlier.unwrap_or(0);
    account.parts.insert(Part::RestOfAllocator, rest);
    for ((part, name), bytes) in found {
        *account.parts.entry(part).or_default() += bytes;
        account.holdings.push(Holding { part, name, bytes });
    }
    account.finish(residency);
    account
}

/// Returns the first words at an address.
fn words_at<const N: usize>(pid: i32, address: u64) -> Option<[u64; N]> {
    let mut words = [[0; 8]; N];
    read_memory(pid, RemoteAddress(address), words.as_flattened_mut()).ok()?;
    Some(words.map(u64::from_le_bytes))
}
