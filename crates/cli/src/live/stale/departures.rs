//! Addresses that no longer hold a block from before the attach.

use memhook_attach::ReleaseBy;
use memhook_ledger::{BlockOf, Observer};
use rustc_hash::FxHashSet;

/// Collector of releases.
#[derive(Default)]
pub struct Departures {
    /// Addresses released since the last call.
    gone: FxHashSet<u64>,
    /// True once the blocks from before the attach are known. Later allocations do not belong to
    /// them.
    are_earlier_known: bool,
}

impl Departures {
    /// Returns the addresses released since the last call.
    pub fn take(&mut self) -> FxHashSet<u64> {
        self.are_earlier_known = true;
        std::mem::take(&mut self.gone)
    }
}

impl Observer for Departures {
    fn allocated(&mut self, block: &BlockOf, _stack: u32) {
        if !self.are_earlier_known {
            self.gone.insert(block.address);
        }
    }

    fn more_pairs(&mut self, block: &BlockOf, stack: u32, _by: ReleaseBy, _count: u64) {
        self.allocated(block, stack);
    }

    fn unknown_released(&mut self, address: u64, _by: ReleaseBy) {
        self.gone.insert(address);
    }
}
