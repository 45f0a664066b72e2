//! Sampling orders that the attacher sends to a hook with a budget, and the hook's measurements.

use crate::Region;
use crate::memory::tally;
use std::sync::atomic::Ordering::Relaxed;

/// Sums of the hook's timings since the attach, in ticks of the time stamp counter. All come from the target and are
/// not trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimedCalls {
    /// Timed recordings of allocations.
    pub allocations: u64,
    /// Ticks for the recordings of allocations.
    pub allocation_counts: u64,
    /// Timed recordings of releases.
    pub releases: u64,
    /// Ticks for the recordings of releases.
    pub release_counts: u64,
    /// Ticks for the time stamps, one per recording.
    pub stamp_counts: u64,
    /// Timed calls that were not recorded.
    pub passes: u64,
    /// Ticks for the calls that were not recorded.
    pub pass_counts: u64,
    /// Total time, in nanoseconds, for which all threads waited for space in rings.
    pub waited_ns: u64,
}

impl Region {
    /// Orders the hook to sample at this mean distance in bytes, a power of two; 0 means to record all allocations.
    /// Threads follow the order after a few hundred events, or after a few tens of kilobytes.
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
