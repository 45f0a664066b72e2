//! Results that the drain thread has made of the events.

use super::budget::BudgetKeeper;
use super::described_heap::DescribedHeap;
use super::recorded_blocks::RecordedBlocks;
use super::recorder::Recorder;
use crate::config::{Stacks, TraceConfig};
use crate::survey::memory_allowance::for_a_ledger;
use memhook_ledger::{
    CallTimes, LEAST_BYTES, Ledger, LedgerOptions, MappingLedger, Observer, SampledAllocations,
};
use memhook_stream::Region;
use std::time::Duration;

/// Results of the events so far.
pub struct State<O = ()> {
    /// Live blocks and sites.
    pub ledger: Ledger<O>,
    /// Meaning of the samples.
    pub counts: SampledAllocations,
    /// Time in the allocator, in counts of the time stamp counter ([`TraceConfig::call_times`]).
    pub(crate) call_times: CallTimes,
    /// Writes down what is drained, if that is asked for.
    pub recorder: Option<Recorder>,
    /// Keeps tracing within a budget, if there is one.
    pub(crate) budget: Option<BudgetKeeper>,
    /// Where recorded blocks are, as the hook sees it.
    recorded_blocks: RecordedBlocks,
    /// The heaps of the allocators that the user has described, in their order.
    pub heaps: Vec<DescribedHeap>,
    /// The mappings, if they are traced.
    pub mappings: Option<MappingLedger>,
    /// Writes down what becomes of them.
    pub mapping_recorder: Option<Recorder>,
}

impl<O: Observer> State<O> {
    /// Empty.
    pub(super) fn new(pid: i32, config: &TraceConfig, observer: O) -> State<O> {
        let max_memory = config.max_memory.unwrap_or_else(for_a_ledger);
        let max_bytes = usize::try_from(max_memory).unwrap_or(usize::MAX);
        // Each heap gets its share.
        let max_bytes = (max_bytes / (1 + config.allocators.len())).max(LEAST_BYTES);
        let options = LedgerOptions {
            track_release_stacks: config.stacks == Stacks::All,
            ignore_unknown_releases: config.is_selective(),
            all_are_samples: config.sample_bytes.is_some(),
            max_bytes: Some(max_bytes),
        };
        State {
            ledger: Ledger::observed(options, observer),
            counts: config.sampled_allocations(),
            call_times: CallTimes::default(),
            recorder: None,
            budget: config.overhead.map(|share| BudgetKeeper::new(pid, share)),
            recorded_blocks: RecordedBlocks::default(),
            heaps: config
                .allocators
                .iter()
                .map(|_| DescribedHeap::new(options, config))
                .collect(),
            mappings: config.mappings.then(MappingLedger::default),
            mapping_recorder: None,
        }
    }

    /// Returns true if somebody needs all events in one sequence, so that one thread must take them.
    pub(super) fn needs_one_sequence(&self) -> bool {
        self.recorder.is_some()
            || self.budget.is_some()
            || self.mappings.is_some()
            || !self.heaps.is_empty()
    }

    /// The recorder of one kind of memory.
    pub(crate) fn recorder_of(&mut self, memory: Memory) -> &mut Option<Recorder> {
        match memory {
            Memory::Heap => &mut self.recorder,
            Memory::Mappings => &mut self.mapping_recorder,
            Memory::Described(heap) => &mut self.heaps[heap].recorder,
        }
    }

    /// Tells the hook which blocks are recorded ones, while not all allocations are recorded.
    pub(super) fn renew_recorded_blocks(
        &mut self,
        region: &Region,
        config: &TraceConfig,
        clock: impl Fn() -> Duration,
    ) {
        let is_wanted = match &self.budget {
            Some(budget) => budget.is_sampling(),
            None => config.is_selective(),
        };
        // Blocks of described allocators have ledgers of their own.
        if is_wanted && self.heaps.is_empty() {
            let has_budget = self.budget.is_some();
            self.recorded_blocks
                .turn(&self.ledger, region, has_budget, clock);
        } else {
            self.recorded_blocks.rest();
        }
    }

    /// After the last pass.
    pub(super) fn finish(&mut self, region: &Region, now_ns: u64) {
        self.ledger.finish();
        for heap in &mut self.heaps {
            heap.ledger.finish();
        }
        if let Some(mappings) = &mut self.mappings {
            mappings.finish(now_ns);
            self.record_mappings(region, now_ns);
        }
    }

    /// Hands what became of the mappings in this pass to their recorder.
    pub(super) fn record_mappings(&mut self, region: &Region, now_ns: u64) {
        let (Some(mappings), Some(recorder)) = (&mut self.mappings, &mut self.mapping_recorder)
        else {
            return;
        };
        let mut tid = None;
        for change in mappings.take_changes() {
            if tid != Some(change.tid) {
                tid = Some(change.tid);
                recorder.begin_ring(0, change.tid);
            }
            recorder.mapping(change.event, change.bytes, change.time_ns);
        }
        recorder.end_pass(now_ns, mappings.ledger(), region);
    }
}

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Blocks of allocators.
    Heap,
    /// Mappings, which have a ledger of their own.
    Mappings,
    /// Blocks of a described allocator, by its number.
    Described(usize),
}
