//! Resident memory of a traced process, for its reports.

use super::StackNames;
use memhook_attach::{Consumer, Session, account_of_session};
use memhook_heap::{
    Account, Limits, LiveSizes, Looked, MemoryCopy, TracedBlock, account_of_mappings,
};
use memhook_ledger::{LiveWalk, Observer};
use memhook_report::{RssReport, RssView};

/// Returns the current account, based on the kernel's sums and the trace; `None` if the process is
/// gone.
pub fn account_of_trace<O: Observer + Send>(
    session: &Session,
    consumer: &Consumer<O>,
    earlier_bytes: Option<u64>,
    view: RssView,
) -> Option<RssReport> {
    let account = account_of_session(session, consumer, earlier_bytes)?;
    Some(RssReport::new(session.pid(), &account, None, view))
}

/// Account of a copy of the memory, and its live blocks.
pub struct LookedAt {
    /// The account with pins by call stack.
    pub report: RssReport,
    /// Live blocks by size; `None` if no heap was dissected.
    pub live_sizes: Option<LiveSizes>,
    /// Time of the copy on the ledger's clock.
    pub moment_ns: u64,
}

/// A copy of the memory for the last report, which shows the blocks that pin memory.
pub struct PinnedMemory {
    copy: Result<MemoryCopy, String>,
    /// Time of the copy on the ledger's clock.
    moment_ns: u64,
    /// Account to use if the memory cannot be copied.
    by_mappings: Account,
}

impl PinnedMemory {
    /// Copies the memory. Call this while the process is traced.
    pub fn take<O: Observer + Send>(
        pid: i32,
        consumer: &Consumer<O>,
        limits: Limits,
    ) -> PinnedMemory {
        let copy = MemoryCopy::take(pid, limits);
        PinnedMemory {
            copy: copy.map_err(|why| why.to_string()),
            moment_ns: consumer.moment_ns(),
            by_mappings: account_of_mappings(pid).unwrap_or_default(),
        }
    }

    /// Returns the account with pins by call stack. The ledger must contain all events up to the
    /// detach.
    pub fn report<O: Observer + Send>(
        self,
        session: &Session,
        consumer: &Consumer<O>,
        reporter: &mut impl StackNames,
        view: RssView,
    ) -> LookedAt {
        let (mut walk, mut blocks) = (LiveWalk::default(), Vec::new());
        consumer.in_slices(|state| {
            state.ledger.walk_blocks(&mut walk, |block| {
                if block.time_ns <= self.moment_ns {
                    blocks.push(TracedBlock {
                        address: block.address,
                        stack: block.stack,
                        time_ns: block.time_ns,
                        stands_for: state.counts.weight(&block),
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
        reporter.look_up(session, &mut stacks.into_iter());
        let now_ns = consumer.elapsed().as_nanos() as u64;
        report.name_stacks(now_ns, |stack| reporter.stack(session, stack).2);
        LookedAt {
            report,
            live_sizes: account.live_sizes,
            moment_ns: self.moment_ns,
        }
    }
}
