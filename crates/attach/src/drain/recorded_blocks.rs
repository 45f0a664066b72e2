//! Renews the live filter of a hook that skips allocations. Pages without recorded blocks lose their marks, so that
//! releasing a block on them costs only one load.

use memhook_ledger::{Ledger, LiveWalk, Observer};
use memhook_stream::{MarkRenewal, Region};
use std::time::Duration;

/// Minimum time between two renewals. The time also grows with the duration of the last renewal.
const APART: Duration = Duration::from_millis(500);
/// Like `APART`, but for a hook that marks every recorded block, so that stale marks accumulate slowly.
const APART_IF_ENTERED: Duration = Duration::from_secs(5);
const TIMES_APART: u32 = 200;

/// Schedule of the renewals.
#[derive(Default)]
pub(crate) struct RecordedBlocks {
    renewal: MarkRenewal,
    walk: LiveWalk,
    next: Duration,
    taken: Duration,
}

impl RecordedBlocks {
    /// Skips the renewals while nothing is sampled. The first renewal after sampling begins is immediate, because until
    /// then the hook records the releases of most skipped blocks.
    pub fn rest(&mut self) {
        self.next = Duration::ZERO;
    }

    /// Renews the filter after a pass if it is due, while allocations are skipped. `has_budget`: all allocations were
    /// recorded before sampling began. `clock`: the time since the attach.
    pub fn turn<O: Observer>(
        &mut self,
        ledger: &Ledger<O>,
        region: &Region,
        has_budget: bool,
        clock: impl Fn() -> Duration,
    ) {
        let now = clock();
        // A ledger that keeps only some of the blocks does not know every recorded block.
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
