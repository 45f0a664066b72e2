//! What is resident of a traced process, for its reports.

use super::model::Reporter;
use memhook_attach::{Consumer, Session};
use memhook_heap::{
    Account, Limits, Looked, MemoryCopy, TracedBlock, TracedHeap, account_of_mappings,
    account_of_trace,
};
use memhook_ledger::LiveWalk;
use memhook_process::{Mapping, smaps};
use memhook_report::{RssReport, RssView};
use std::collections::HashSet;
use std::ops::Range;

/// Which mappings have live blocks is found out by at most so many slices of the blocks, a sample of them: an account is
/// to cost little.
const MOST_SLICES: u32 = 4;

/// The account at this moment, by the kernel's sums and the trace. `None` if the process has gone.
pub fn of_trace(session: &Session, consumer: &Consumer, view: RssView) -> Option<RssReport> {
    let pid = session.pid();
    let mappings = smaps(pid).ok().filter(|found| !found.is_empty())?;
    let starts: Vec<Range<u64>> = mappings
        .iter()
        .map(|used| used.mapping.start..used.mapping.end)
        .collect();
    let of_address = |address: u64| {
        let behind = starts.partition_point(|range| range.start <= address);
        let range = starts.get(behind.checked_sub(1)?)?;
        (address < range.end).then_some(range.start)
    };
    let (mut walk, mut slices) = (LiveWalk::default(), 0);
    let (mut of_heap, mut live_bytes) = (HashSet::new(), 0);
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
            of_heap.extend(of_address(block.address));
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
        has_block: &|mapping| of_heap.contains(&mapping.start),
        is_traced: &is_traced,
    };
    let account = account_of_trace(pid, mappings, &heap);
    Some(RssReport::new(pid, &account, None, view))
}

/// A copy of the memory for the last report, which says what pins it.
pub struct PinnedMemory {
    copy: Result<MemoryCopy, String>,
    /// When it was taken, on the ledger's clock.
    moment_ns: u64,
    /// For where nothing can be copied.
    by_mappings: Account,
}

impl PinnedMemory {
    /// Copies the memory. Call this while the process is traced.
    pub fn take(pid: i32, consumer: &Consumer) -> PinnedMemory {
        let copy = MemoryCopy::take(pid, Limits::default());
        PinnedMemory {
            copy: copy.map_err(|why| why.to_string()),
            moment_ns: consumer.moment_ns(),
            by_mappings: account_of_mappings(pid).unwrap_or_default(),
        }
    }

    /// The account with pins by call stack, where the ledger has all events up to the detach.
    pub fn report(
        self,
        session: &Session,
        consumer: &Consumer,
        reporter: &mut Reporter,
        view: RssView,
    ) -> RssReport {
        let (mut walk, mut blocks) = (LiveWalk::default(), Vec::new());
        consumer.in_slices(|state| {
            state.ledger.walk_blocks(&mut walk, |block| {
                if block.time_ns <= self.moment_ns {
                    blocks.push(TracedBlock {
                        address: block.address,
                        stack: block.stack,
                        time_ns: block.time_ns,
                    });
                }
            })
        });
        let looked = self
            .copy
            .and_then(|copy| copy.account(true, blocks).map_err(|why| why.to_string()));
        let Looked { account, meta } = looked.unwrap_or_else(|why| {
            let mut account = self.by_mappings;
            account.notes.push(format!("the heap is not split: {why}"));
            Looked {
                account,
                meta: None,
            }
        });
        let mut report = RssReport::new(session.pid(), &account, meta.as_ref(), view);
        let stacks: Vec<u32> = report.stacks().collect();
        reporter.look_up(session, stacks.into_iter());
        let now_ns = consumer.elapsed().as_nanos() as u64;
        report.name_stacks(now_ns, |stack| reporter.stack(session, stack).2);
        report
    }
}
