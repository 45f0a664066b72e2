//! Results that the drain thread has computed from the events.

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

/// Results of all events until now.
pub struct State<O = ()> {
    /// Live blocks and sites.
    pub ledger: Ledger<O>,
    /// Weights of the samples.
    pub counts: SampledAllocations,
    /// Time in the allocator, in ticks of the time stamp counter ([`TraceConfig::call_times`]).
    pub(crate) call_times: CallTimes,
    /// Recorder of the events, if there is a recording.
    pub recorder: Option<Recorder>,
    /// Controller of the budget, if there is one.
    pub(crate) budget: Option<BudgetKeeper>,
    /// Renewal of the hook's live filter.
    recorded_blocks: RecordedBlocks,
    /// Heaps of the allocators that the user has described, in the order of their descriptions.
    pub heaps: Vec<DescribedHeap>,
    /// Mappings, if they are traced.
    pub mappings: Option<MappingLedger>,
    /// Recorder of mappings, if there is a recording.
    pub mapping_recorder: Option<Recorder>,
}

impl<O: Observer> State<O> {
    /// Creates an empty state.
    pub(super) fn new(pid: i32, config: &TraceConfig, observer: O) -> State<O> {
        let max_memory = config.max_memory.unwrap_or_else(for_a_ledger);
        let max_bytes = usize::try_from(max_memory).unwrap_or(usize::MAX);
        // All heaps get equal shares.
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
            budget: config
                .overhead
                .map(|share| BudgetKeeper::new(pid, share, config.first_level())),
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

    /// Returns true if a consumer needs all events in one sequence, so that one thread must take them.
    pub(super) fn needs_one_sequence(&self) -> bool {
        self.recorder.is_some()
            || self.budget.is_some()
            || self.mappings.is_some()
            || !self.heaps.is_empty()
    }

    /// Returns the recorder of one kind of memory.
    pub(crate) fn recorder_of(&mut self, memory: Memory) -> &mut Option<Recorder> {
        match memory {
            Memory::Heap => &mut self.recorder,
            Memory::Mappings => &mut self.mapping_recorder,
            Memory::Described(heap) => &mut self.heaps[heap].recorder,
        }
    }

    /// Renews the hook's live filter, while allocations are skipped.
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
        // The heaps of described allocators have separate ledgers, so the filter would miss their blocks.
        if is_wanted && self.heaps.is_empty() {
            let has_budget = self.budget.is_some();
            self.recorded_blocks
                .turn(&self.ledger, region, has_budget, clock);
        } else {
            self.recorded_blocks.rest();
        }
    }

    /// Ends the state after the last pass.
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

    /// Hands the mapping events of this pass to their recorder.
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

/// Kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Blocks of the hooked allocators.
    Heap,
    /// Mappings, which have a separate ledger.
    Mappings,
    /// Blocks of a described allocator, by its number.
    Described(usize),
}
