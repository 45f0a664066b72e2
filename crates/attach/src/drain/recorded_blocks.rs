//! Keeps the live filter of a hook that does not record all allocations new: pages without recorded blocks lose their
//! marks, and their releases are passed by at the price of one load.

use memhook_ledger::{Ledger, LiveWalk, Observer};
use memhook_stream::{MarkRenewal, Region};
use std::time::Duration;

/// At least so long between two renewals, and so many times as long as the last one took of the drain thread.
const APART: Duration = Duration::from_millis(500);
/// Like the constant above, where every block that was recorded was entered, so that marks only slowly become too many.
const APART_IF_ENTERED: Duration = Duration::from_secs(5);
const TIMES_APART: u32 = 200;

/// Renews them.
#[derive(Default)]
pub(crate) struct RecordedBlocks {
    renewal: MarkRenewal,
    walk: LiveWalk,
    next: Duration,
    taken: Duration,
}

impl RecordedBlocks {
    /// While no samples are taken. The first renewal after it does not wait: until then, releases of most blocks
    /// that are passed by are recorded.
    pub fn rest(&mut self) {
        self.next = Duration::ZERO;
    }

    /// After a pass, while not all allocations are recorded. `has_budget`: before that, all were. `clock`: the time since
    /// the attach.
    pub fn turn<O: Observer>(
        &mut self,
        ledger: &Ledger<O>,
        region: &Region,
        has_budget: bool,
        clock: impl Fn() -> Duration,
    ) {
        let now = clock();
        // A ledger that keeps a part of the blocks does not know all that are recorded.
        let is_whole = ledger.weight(1) == 1.0;
        if self.renewal.is_at_rest() && now >= self.next && is_whole {
            (self.walk, self.taken) = (LiveWalk::default(), Duration::ZERO);
            self.renewal.begin(region);
        }
        if !self.renewal.step(region) {
            return;
        }
        let renewal = &self.renewal;
        let has_more = ledger.walk_blocks(&mut self.walk, |block| {
            renewal.enter(region, block.address);
        });
        if !has_more && is_whole {
            self.renewal.finish(region);
        }
        self.taken += clock().saturating_sub(now);
        let apart = match has_budget {
            true => APART,
            false => APART_IF_ENTERED,
        };
        self.next = clock() + apart.max(self.taken * TIMES_APART);
    }
}
