//! The account of a traced process without a copy of its memory: what its mappings hold by the kernel's sums, and what
//! lives by the trace. It holds nobody and reads no page, so it can be made again and again.

use crate::capture::residency::Residency;
use crate::resident::account::{Account, Holding, Part};
use crate::resident::mappings::{file_name, part_of_file};
use memhook_process::{Mapping, MappingUse, blocked_at, threads};
use std::collections::BTreeMap;

/// What a trace knows of the heap.
pub struct TracedHeap<'a> {
    /// Requested bytes of live blocks that were allocated since the attach.
    pub live_bytes: u64,
    /// Whether a live block is in a mapping.
    pub has_block: &'a dyn Fn(&Mapping) -> bool,
    /// Whether a mapping was made by calls that were traced.
    pub is_traced: &'a dyn Fn(&Mapping) -> bool,
}

/// The account of a process with these mappings ([`memhook_process::smaps`]).
pub fn account_of_trace(pid: i32, mappings: Vec<MappingUse>, heap: &TracedHeap) -> Account {
    let threads = threads(pid).unwrap_or_default();
    let stacks: Vec<(u64, String)> = threads
        .into_iter()
        .filter_map(|thread| Some((blocked_at(pid, thread.tid)?.1, thread.name)))
        .collect();
    let mut found: BTreeMap<(Part, String), u64> = BTreeMap::new();
    let mut of_heap = 0;
    for MappingUse { mapping, memory } in mappings.iter().filter(|used| used.memory.rss > 0) {
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
        *found.entry((part, name)).or_default() += memory.rss;
    }
    let mut account = Account::default();
    // Blocks that were never written are not in memory.
    let live = heap.live_bytes.min(of_heap);
    account.parts.insert(Part::LiveHeap, live);
    account.parts.insert(Part::RestOfAllocator, of_heap - live);
    for ((part, name), bytes) in found {
        *account.parts.entry(part).or_default() += bytes;
        account.holdings.push(Holding { part, name, bytes });
    }
    let residency = Residency {
        mappings,
        pages: Vec::new(),
        is_of_snapshot: false,
    };
    account.finish(&residency);
    account
}
