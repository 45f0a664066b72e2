//! Orders of the attacher to a hook that keeps to a budget, and the hook's measurements.

use crate::Region;
use crate::memory::tally;
use std::sync::atomic::Ordering::Relaxed;

/// Sums of the hook's timings since the attach; counts are those of the time stamp counter. All are foreign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimedCalls {
    /// Recordings of allocations.
    pub allocations: u64,
    /// Counts for them.
    pub allocation_counts: u64,
    /// Recordings of releases.
    pub releases: u64,
    /// Counts for them.
    pub release_counts: u64,
    /// Counts for the time stamps, one for each recording.
    pub stamp_counts: u64,
    /// Calls that were not recorded.
    pub passes: u64,
    /// Counts for them.
    pub pass_counts: u64,
    /// Nanoseconds for which all threads together waited for room in rings.
    pub waited_ns: u64,
}

impl Region {
    /// Orders samples at this mean distance in bytes, a power of two; 0 orders all allocations to be recorded.
    /// Threads follow after a few hundred events, or tens of kilobytes.
    pub fn order_sampling(&self, mean_bytes: u64) {
        let offset = tally!(sampling_order);
        self.memory.u64(offset).store(mean_bytes, Relaxed);
    }

    /// Returns the timings so far.
    pub fn timed_calls(&self) -> TimedCalls {
        let of = |offset| self.counted(offset);
        TimedCalls {
            allocations: of(tally!(timed_allocations)),
            allocation_counts: of(tally!(timed_allocation_counts)),
            releases: of(tally!(timed_releases)),
            release_counts: of(tally!(timed_release_counts)),
            stamp_counts: of(tally!(timed_stamp_counts)),
            passes: of(tally!(timed_passes)),
            pass_counts: of(tally!(timed_pass_counts)),
            waited_ns: of(tally!(waited_ns)),
        }
    }
}
