//! Heap of an allocator that the user has described: its ledger and its block addresses.

use super::recorder::Recorder;
use crate::config::TraceConfig;
use memhook_abi::{Event, Op};
use memhook_ledger::{
    BlockOf, Ledger, LedgerOptions, LiveBlock, Observer, ReleaseBy, SampledAllocations,
};
use memhook_stream::Region;
use std::collections::HashMap;

/// Heap of an allocator that the user has described. Its blocks are in memory that other allocators may count as
/// theirs, so this heap keeps its own sums.
pub struct DescribedHeap {
    /// Live blocks and sites. Its keys are not addresses (`memhook_abi::heap_of`).
    pub ledger: Ledger<ReleasedBlocks>,
    /// Weights of the samples.
    pub counts: SampledAllocations,
    /// Recorder of the events, if there is a recording.
    pub recorder: Option<Recorder>,
}

/// Maximum number of remembered released blocks. If more blocks are released, some stale memory is not recognized.
const MOST_RELEASED: usize = 1 << 20;

/// Addresses of released blocks that no newer block covers. The contents of such memory are stale and keep no other
/// block reachable.
pub struct ReleasedBlocks {
    /// Sizes by key, if the configuration asks for them.
    sizes: Option<HashMap<u64, u64>>,
}

impl Observer for ReleasedBlocks {
    #[inline]
    fn allocated(&mut self, block: &BlockOf, _stack: u32) {
        if let Some(sizes) = &mut self.sizes {
            sizes.remove(&block.address);
        }
    }

    #[inline]
    fn released(&mut self, block: &BlockOf, _by: Option<ReleaseBy>) {
        if let Some(sizes) = &mut self.sizes {
            if sizes.len() >= MOST_RELEASED {
                sizes.clear();
            }
            sizes.insert(block.address, block.size);
        }
    }

    #[inline]
    fn more_pairs(&mut self, block: &BlockOf, _stack: u32, by: ReleaseBy, _count: u64) {
        self.released(block, Some(by));
    }

    #[inline]
    fn reinstated(&mut self, block: &BlockOf, _by: ReleaseBy) {
        self.allocated(block, 0);
    }
}

/// Returns the number of allocations that an event represents.
pub(crate) fn allocations_of(event: &Event) -> u64 {
    match event.op {
        Op::Allocation => 1,
        Op::Pair => u64::from(event.sequence),
        _ => 0,
    }
}

impl DescribedHeap {
    pub(crate) fn new(options: LedgerOptions, config: &TraceConfig) -> DescribedHeap {
        let released = ReleasedBlocks {
            sizes: config.keeps_released.then(HashMap::new),
        };
        DescribedHeap {
            ledger: Ledger::observed(options, released),
            counts: config.sampled_allocations(),
            recorder: None,
        }
    }

    /// Sets the sampling level of the following allocations of this ring.
    pub(crate) fn set_sampling(&mut self, level: u8) {
        self.counts.announce(level);
        self.ledger.set_sampling(level);
        if let Some(recorder) = &mut self.recorder {
            recorder.set_sampling(level);
        }
    }

    pub(crate) fn event(&mut self, event: Event, level: u8, size_bytes: u64, time_ns: u64) {
        let count = allocations_of(&event);
        if level != 0 && count > 0 {
            self.counts.count_samples(level, size_bytes, count);
        }
        self.ledger.event(event, size_bytes, time_ns);
        if let Some(recorder) = &mut self.recorder {
            recorder.event(event.op, event.words(), size_bytes, time_ns);
        }
    }

    pub(crate) fn end_pass(&mut self, now_ns: u64, region: &Region) {
        self.ledger.end_pass(now_ns);
        if let Some(recorder) = &mut self.recorder {
            recorder.end_pass(now_ns, &self.ledger, region);
        }
    }

    /// Returns the live blocks with their addresses.
    pub fn live_blocks<'a>(&'a self, region: &'a Region) -> impl Iterator<Item = LiveBlock> + 'a {
        self.ledger.live_blocks().filter_map(|block| {
            let address = region.address_of_described(block.address)?;
            Some(LiveBlock { address, ..block })
        })
    }

    /// Returns the address and the size of each released block, if the configuration asks for them.
    pub fn released<'a>(&'a self, region: &'a Region) -> impl Iterator<Item = (u64, u64)> + 'a {
        let sizes = self.ledger.observer().sizes.iter().flatten();
        sizes.filter_map(|(&key, &bytes)| Some((region.address_of_described(key)?, bytes)))
    }
}
