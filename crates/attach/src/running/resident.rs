//! Resident memory of a traced process, computed from the kernel's sums and the live blocks.

use crate::drain::consumer::Consumer;
use crate::session::Session;
use memhook_heap::{Account, Residency, TracedHeap, account_of_trace};
use memhook_ledger::{LiveWalk, Observer};
use memhook_process::{Mapping, living_thread};
use std::ops::Range;

/// Maximum number of slices of the blocks that are examined to find mappings with live blocks. Only a sample is
/// examined, because the account must be cheap.
const MOST_SLICES: u32 = 4;

/// Returns the account at this moment, from the kernel's sums and the trace. `earlier_bytes`: live bytes from before
/// the attach, according to the allocator's own sums ([`crate::HeapBalance`]). `None` if the process has ended.
pub fn account_of_session<O: Observer + Send>(
    session: &Session,
    consumer: &Consumer<O>,
    earlier_bytes: Option<u64>,
) -> Option<Account> {
    let pid = session.pid();
    let residency = Residency::read(living_thread(pid)).ok();
    let residency = residency.filter(|found| !found.mappings.is_empty())?;
    let mappings = residency.mappings.iter();
    let ranges: Vec<Range<u64>> = mappings
        .map(|used| used.mapping.start..used.mapping.end)
        .collect();
    let index_of = |address: u64| {
        let behind = ranges.partition_point(|range| range.start <= address);
        let index = behind.checked_sub(1)?;
        ranges[index].contains(&address).then_some(index)
    };
    let (mut walk, mut slices) = (LiveWalk::default(), 0);
    let (mut has_block, mut live_bytes) = (vec![false; ranges.len()], 0);
    // The next block is nearly always in the same mapping.
    let mut last = 0;
    let mut traced: Vec<Range<u64>> = Vec::new();
    consumer.in_slices(|state| {
        if slices == 0 {
            live_bytes = state.ledger.totals().live_bytes;
            if let Some(mappings) = &state.mappings {
                traced = mappings.ranges().map(|(range, _)| range).collect();
            }
        }
        slices += 1;
        let has_more = state.ledger.walk_blocks(&mut walk, |block| {
            if !ranges[last].contains(&block.address) {
                let Some(index) = index_of(block.address) else {
                    return;
                };
                last = index;
            }
            has_block[last] = true;
        });
        has_more && slices < MOST_SLICES
    });
    let is_traced = |mapping: &Mapping| {
        let behind = traced.partition_point(|range| range.end <= mapping.start);
        traced
            .get(behind)
            .is_some_and(|range| range.start < mapping.end)
    };
    let heap = TracedHeap {
        live_bytes,
        earlier_bytes,
        has_block: &|mapping| index_of(mapping.start).is_some_and(|index| has_block[index]),
        is_traced: &is_traced,
    };
    Some(account_of_trace(pid, &residency, &heap))
}
