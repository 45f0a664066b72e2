//! What one site did on one thread, as it is counted.

use crate::activity::SiteActivity;
use memhook_ledger::Estimate;

/// A number that no site carries.
pub(crate) const NEVER: u32 = u32::MAX;

/// What one site did on one thread.
#[derive(Default)]
pub(crate) struct Sums {
    /// The collector's when the site was last saved.
    pub stamp: u32,
    pub stack: u32,
    pub live: Estimate,
    pub released: Estimate,
    pub temporary: Estimate,
    pub before: Estimate,
    pub sizes: Vec<(u8, f64)>,
    pub lifetimes: Vec<(u8, f64)>,
    pub peak: Estimate,
    pub candidate: Estimate,
    pub peak_number: u32,
    pub candidate_number: u32,
    pub point: u32,
    pub thread: u16,
}

impl Sums {
    /// Live blocks come from before or were allocated.
    pub fn allocated(&self) -> Estimate {
        let mut allocated = self.live;
        allocated += self.released;
        allocated -= self.before;
        allocated
    }

    /// The numbers. A site that has not changed since the peak with this number still is what it was then.
    pub fn finish(self, peak_number: u32, tid_of: impl Fn(u16) -> u32) -> SiteActivity {
        let order = |mut histogram: Vec<(u8, f64)>| {
            histogram.sort_unstable_by_key(|(bucket, _)| *bucket);
            histogram
        };
        SiteActivity {
            stack: self.stack,
            tid: tid_of(self.thread),
            before: self.before,
            live: self.live,
            peak: if self.peak_number == peak_number {
                self.peak
            } else {
                self.live
            },
            allocated: self.allocated(),
            released: self.released,
            temporary: self.temporary,
            oldest_ns: u64::MAX,
            sizes: order(self.sizes),
            lifetimes: order(self.lifetimes),
        }
    }
}

/// Counts blocks of a bucket.
#[inline]
pub(crate) fn count(histogram: &mut Vec<(u8, f64)>, bucket: u8, blocks: f64) {
    match histogram.iter_mut().find(|(known, _)| *known == bucket) {
        Some((_, sum)) => *sum += blocks,
        None => histogram.push((bucket, blocks)),
    }
}
