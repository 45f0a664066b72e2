//! Path of an event from its ring to the ledger, the recorder, and the sums for sampling.

use super::described_heap::allocations_of;
use super::state::State;
use crate::config::TraceConfig;
use memhook_abi::{Accesses, Event, Op, RawEvent, heap_of};
use memhook_ledger::{Observer, SampledAllocations};
use memhook_stream::{Region, Sink};

/// Passes events to the ledger and the recorder, and keeps the sums for sampling.
pub(super) struct ToLedger<'a, O> {
    state: &'a mut State<O>,
    region: &'a Region,
    config: &'a TraceConfig,
    now_ns: u64,
    /// Sampling level of the following allocations; 0 if all are recorded.
    level: u8,
    writers: &'a mut [u32],
    has_new_writer: bool,
}

impl<'a, O> ToLedger<'a, O> {
    /// Creates the receiver of one pass. `writers`: the threads that have written to each ring so far.
    pub(super) fn new(
        state: &'a mut State<O>,
        region: &'a Region,
        config: &'a TraceConfig,
        now_ns: u64,
        writers: &'a mut [u32],
    ) -> ToLedger<'a, O> {
        ToLedger {
            state,
            region,
            config,
            now_ns,
            level: 0,
            writers,
            has_new_writer: false,
        }
    }

    /// Returns true if a previously unknown thread has written.
    pub(super) fn has_new_writer(&self) -> bool {
        self.has_new_writer
    }

    /// Updates the sums that sampling and a budget need.
    #[inline(never)]
    fn count(&mut self, op: Op, words: RawEvent, size_bytes: u64) {
        let event = words.unpack_as(op);
        if let Some(keeper) = &mut self.state.budget {
            keeper.count(&event, self.level, size_bytes);
        }
        if self.level != 0 && heap_of(event.address) == 0 {
            count_sample(&mut self.state.counts, self.level, &event, size_bytes);
        }
    }

    /// Handles an event of a described allocator.
    #[inline(never)]
    fn heap_event(&mut self, op: Op, words: RawEvent, size_bytes: u64, time_ns: u64)
    where
        O: Observer,
    {
        let event = words.unpack_as(op);
        // The target can write this number, so there may be no such heap.
        if let Some(heap) = self.state.heaps.get_mut(heap_of(event.address) - 1) {
            heap.event(event, self.level, size_bytes, time_ns);
        }
    }
}

/// Counts an event that was recorded as a sample.
pub(super) fn count_sample(
    counts: &mut SampledAllocations,
    level: u8,
    event: &Event,
    size_bytes: u64,
) {
    let count = allocations_of(event);
    if count > 0 {
        counts.count_samples(level, size_bytes, count);
    }
}

impl<O: Observer> Sink for ToLedger<'_, O> {
    fn begin_ring(&mut self, ring: usize, tid: u32) {
        if let Some(known) = self.writers.get_mut(ring) {
            self.has_new_writer |= *known != tid;
            *known = tid;
        }
        self.state.ledger.begin_ring(ring, tid);
        self.level = u8::from(self.state.counts.always);
        if let Some(mappings) = &mut self.state.mappings {
            mappings.begin_ring(tid);
        }
        for heap in &mut self.state.heaps {
            heap.ledger.begin_ring(ring, tid);
            if let Some(recorder) = &mut heap.recorder {
                recorder.begin_ring(ring, tid);
            }
        }
        if let Some(recorder) = &mut self.state.recorder {
            recorder.begin_ring(ring, tid);
        }
    }
    fn set_sampling(&mut self, mean_bytes: u64) {
        // The target can write this number, so only levels that the configuration allows count.
        self.level = self.config.sampling_level(mean_bytes);
        self.state.counts.announce(self.level);
        if self.level != 0 {
            let exact_until = &mut self.state.counts.exact_until_ns;
            exact_until.get_or_insert(self.now_ns);
        }
        self.state.ledger.set_sampling(self.level);
        if let Some(recorder) = &mut self.state.recorder {
            recorder.set_sampling(self.level);
        }
        for heap in &mut self.state.heaps {
            heap.set_sampling(self.level);
        }
    }
    fn access(&mut self, accesses: Accesses) {
        if let Some(recorder) = &mut self.state.recorder {
            recorder.access(&accesses);
        }
    }
    #[cold]
    fn call_time(&mut self, stack: u32, size: u64, counts: u32) {
        let weight = self.state.counts.weight_of(self.level, size);
        let times = &mut self.state.call_times;
        times.add(stack, weight, f64::from(counts));
    }
    #[inline(always)]
    fn event(&mut self, event: Event, size_bytes: u64, time_ns: u64) {
        if self.level != 0 || self.state.budget.is_some() {
            self.count(event.op, event.words(), size_bytes);
        }
        if heap_of(event.address) != 0 {
            return self.heap_event(event.op, event.words(), size_bytes, time_ns);
        }
        self.state.ledger.event(event, size_bytes, time_ns);
        if let Some(recorder) = &mut self.state.recorder {
            recorder.event(event.op, event.words(), size_bytes, time_ns);
        }
    }
    #[cold]
    fn mapping(&mut self, event: Event, bytes: u64, time_ns: u64) {
        if let Some(mappings) = &mut self.state.mappings {
            mappings.event(event, bytes, time_ns);
        }
    }
    fn end_pass(&mut self) {
        let State {
            ledger, recorder, ..
        } = &mut *self.state;
        ledger.end_pass(self.now_ns);
        if let Some(recorder) = recorder {
            recorder.end_pass(self.now_ns, ledger, self.region);
        }
        for heap in &mut self.state.heaps {
            heap.end_pass(self.now_ns, self.region);
        }
        if let Some(mappings) = &mut self.state.mappings {
            mappings.end_pass(self.now_ns);
            self.state.record_mappings(self.region, self.now_ns);
        }
    }
}
