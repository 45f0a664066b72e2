//! The attacher's half of the live filter: counting down what has been released.
//!
//! The hook counts a block's counter up when it records the allocation. A counter may be counted down
//! once for each recorded block that is gone: as many as were recorded, minus those that live.

use memhook_abi::{FILTER_ENTRIES, filter_index};
use memhook_ledger::Ledger;
use memhook_stream::Region;

/// Counts by filter index.
pub struct LiveFilter {
    recorded: Vec<u32>,
    counted_down: Vec<u32>,
    /// What could have been counted down the last time.
    gone_before: Vec<u32>,
}

impl LiveFilter {
    /// Nothing recorded yet.
    pub fn new() -> LiveFilter {
        LiveFilter {
            recorded: vec![0; FILTER_ENTRIES],
            counted_down: vec![0; FILTER_ENTRIES],
            gone_before: vec![0; FILTER_ENTRIES],
        }
    }

    /// An allocation event was taken.
    #[inline]
    pub fn recorded(&mut self, address: u64) {
        self.recorded[filter_index(address)] += 1;
    }

    /// Counts down. Only what was gone at the last call already: a block whose realloc is under way
    /// looks gone, and comes back if that fails.
    pub fn settle(&mut self, ledger: &Ledger, region: &Region) {
        let mut live = vec![0u32; FILTER_ENTRIES];
        for block in ledger.live_blocks() {
            live[filter_index(block.address)] += 1;
        }
        for (index, live) in live.into_iter().enumerate() {
            let kept = self.counted_down[index].saturating_add(live);
            let gone = self.recorded[index].saturating_sub(kept);
            let down = gone.min(self.gone_before[index]).min(u32::from(u16::MAX));
            if down > 0 {
                region.leave_filter(index, down as u16);
                self.counted_down[index] += down;
            }
            self.gone_before[index] = gone - down;
        }
    }
}
