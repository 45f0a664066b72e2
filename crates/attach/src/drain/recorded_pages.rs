//! Keeps the marks of pages with recorded blocks new, while samples are taken: what is passed by is looked up in them.

use memhook_ledger::{Ledger, LiveWalk, Observer};
use memhook_stream::{PageRenewal, Region};
use std::time::Duration;

/// At least so long between two renewals, and so many times as long as the last one took of the drain thread.
const APART: Duration = Duration::from_millis(500);
const TIMES_APART: u32 = 200;

/// Renews them.
#[derive(Default)]
pub(crate) struct RecordedPages {
    renewal: PageRenewal,
    walk: LiveWalk,
    next: Duration,
    taken: Duration,
}

impl RecordedPages {
    /// After a pass, while samples are taken. `clock`: the time since the attach.
    pub fn turn<O: Observer>(
        &mut self,
        ledger: &Ledger<O>,
        region: &Region,
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
            renewal.mark(region, block.address);
        });
        if !has_more && is_whole {
            self.renewal.finish(region);
        }
        self.taken += clock().saturating_sub(now);
        self.next = clock() + APART.max(self.taken * TIMES_APART);
    }
}
