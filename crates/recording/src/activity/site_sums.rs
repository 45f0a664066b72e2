//! Counters of one site on one thread.

use crate::activity::SiteActivity;
use memhook_ledger::Estimate;

/// Number that no site has.
pub(crate) const NEVER: u32 = u32::MAX;

/// Counters of one site on one thread. Counters that every block changes are in the first cache
/// line.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct Sums {
    /// The collector's number when the site was last saved.
    pub stamp: u32,
    pub stack: u32,
    pub live: Estimate,
    pub released: Estimate,
    pub thread: u16,
    pub sizes: Histogram,
    pub lifetimes: Histogram,
    pub temporary: Estimate,
    pub before: Estimate,
    pub peak: Estimate,
    pub candidate: Estimate,
    pub peak_number: u32,
    pub candidate_number: u32,
    pub point: u32,
}

impl Sums {
    /// Returns the allocations in the window, computed from live blocks, releases and earlier
    /// blocks.
    pub fn allocated(&self) -> Estimate {
        let mut allocated = self.live;
        allocated += self.released;
        allocated -= self.before;
        allocated
    }

    /// Returns the results. If the site has not changed since the peak with this number, its
    /// current state is also its state at the peak.
    pub fn finish(self, peak_number: u32, tid_of: impl Fn(u16) -> u32) -> SiteActivity {
        SiteActivity {
            stack: self.stack,
            tid: tid_of(self.thread),
            before: self.before,
            live: self.live,
            unseen: Estimate::default(),
            peak: if self.peak_number == peak_number {
                self.peak
            } else {
                self.live
            },
            allocated: self.allocated(),
            released: self.released,
            temporary: self.temporary,
            oldest_ns: u64::MAX,
            sizes: self.sizes.counted(),
            lifetimes: self.lifetimes.counted(),
        }
    }
}

/// Blocks by bucket, from the first to the last non-empty one.
#[derive(Default)]
pub(crate) struct Histogram {
    first: u8,
    blocks: Vec<f64>,
}

impl Histogram {
    pub fn clear(&mut self) {
        self.blocks.clear();
    }

    /// Counts blocks of a bucket.
    #[inline]
    pub fn count(&mut self, bucket: u8, blocks: f64) {
        match self
            .blocks
            .get_mut(usize::from(bucket.wrapping_sub(self.first)))
        {
            Some(sum) => *sum += blocks,
            None => self.widen(bucket, blocks),
        }
    }

    #[cold]
    fn widen(&mut self, bucket: u8, blocks: f64) {
        if self.blocks.is_empty() {
            self.first = bucket;
        }
        let missing = usize::from(self.first.saturating_sub(bucket));
        self.blocks.splice(..0, std::iter::repeat_n(0.0, missing));
        self.first = self.first.min(bucket);
        let at = usize::from(bucket - self.first);
        self.blocks.resize(self.blocks.len().max(at + 1), 0.0);
        self.blocks[at] += blocks;
    }

    /// Returns the non-empty buckets, in order.
    fn counted(&self) -> Vec<(u8, f64)> {
        let buckets = (self.first..).zip(self.blocks.iter().copied());
        buckets.filter(|(_, blocks)| *blocks > 0.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_grows_at_both_ends() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.counted(), []);
        for bucket in [7, 64, 0, 7, 30] {
            histogram.count(bucket, 1.5);
        }
        let all = [(0, 1.5), (7, 3.0), (30, 1.5), (64, 1.5)];
        assert_eq!(histogram.counted(), all);
        histogram.clear();
        histogram.count(9, 1.0);
        assert_eq!(histogram.counted(), [(9, 1.0)]);
    }
}
