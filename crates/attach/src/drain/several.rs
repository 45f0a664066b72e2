//! Several drain threads, for a process that produces events faster than one thread can take them.
//!
//! A ledger is undivided at first, and stays undivided as long as one drain keeps up. A divided ledger costs time to
//! pass events between threads, and takes a processor that the target could use. A divided ledger stays divided.

use super::crew::{Crew, Distributes};
use super::state::State;
use super::to_ledger::count_sample;
use crate::config::TraceConfig;
use memhook_abi::{Event, MAX_RINGS, heap_of};
use memhook_ledger::{CallTimes, MOST_SHARDS, Observer, Router, SampledAllocations};
use memhook_stream::{Drain, PassStats, Region, Sink};
use std::sync::Arc;
use std::time::Duration;

/// Level of a ring at which one drain counts as too slow, in thousandths. The ring may be full after the next pause.
const PRESSED: u32 = 500;
/// Number of passes in which one drain was too slow, each within [`PRESSED_WITHIN`] of the previous one, after which
/// the ledger is divided. A single slow pass may be a burst. The number is small because threads whose rings fill up
/// begin to sample, and then no further slow passes may occur.
const PRESSED_PASSES: u32 = 4;
const PRESSED_WITHIN: Duration = Duration::from_secs(1);

/// Default limit of the number of drains.
const USUAL_MOST: usize = 8;

/// Returns the number of drains that leave the target its processors: a quarter of the available ones, or all that the
/// target may not use.
fn usual_drains(pid: i32) -> usize {
    // The result respects our affinity and the quota of our control group.
    let own = std::thread::available_parallelism().map_or(1, usize::from);
    let of_target = memhook_process::allowed_processors(pid).unwrap_or(usize::MAX);
    let spare = own.saturating_sub(of_target);
    (own / 4).max(spare).clamp(1, USUAL_MOST)
}

/// Drains of a process.
pub(super) struct Drains {
    most: usize,
    /// Number of passes with a nearly full ring, and the time of the last one.
    pressed: u32,
    pressed_at_ns: u64,
    crew: Option<Crew<ToShards>>,
}

impl Drains {
    pub fn new(pid: i32, config: &TraceConfig) -> Drains {
        let most = config.drains.unwrap_or_else(|| usual_drains(pid));
        Drains {
            most: most.clamp(1, MOST_SHARDS),
            pressed: 0,
            pressed_at_ns: 0,
            crew: None,
        }
    }

    /// Returns true if several threads share the passes.
    pub fn are_several(&self) -> bool {
        self.crew.is_some()
    }

    /// Divides the ledger after a pass if one drain is too slow. A recorder or a budget needs all events in one
    /// sequence, so either prevents a division.
    pub fn divide_if_pressed<O: Observer>(
        &mut self,
        stats: &PassStats,
        state: &mut State<O>,
        config: &TraceConfig,
        now_ns: u64,
    ) {
        if self.most < 2 || stats.rings < 2 || stats.fullest < PRESSED {
            return;
        }
        let since = Duration::from_nanos(now_ns.saturating_sub(self.pressed_at_ns));
        if since > PRESSED_WITHIN {
            self.pressed = 0;
        }
        self.pressed += 1;
        self.pressed_at_ns = now_ns;
        if self.pressed < PRESSED_PASSES || state.needs_one_sequence() {
            return;
        }
        let config = Arc::new(config.clone());
        let counts = config.sampled_allocations();
        let sink = |router| ToShards {
            router,
            config: Arc::clone(&config),
            level: 0,
            counts,
            has_samples: false,
            call_times: CallTimes::default(),
            rings: Vec::new(),
        };
        match Crew::new(self.most, &mut state.ledger, sink) {
            Ok(crew) => self.crew = crew,
            Err(error) => tracing::warn!(%error, "one thread alone empties the rings"),
        }
        if self.crew.is_some() {
            tracing::info!(threads = self.most, "several threads empty the rings");
        } else {
            self.most = 1;
        }
    }

    /// Makes a pass with all drains, if there are several. `is_last`: no thread records any more. Returns true if a
    /// previously unknown thread has written events.
    pub fn pass<O: Observer>(
        &mut self,
        drain: &mut Drain,
        region: &Region,
        state: &mut State<O>,
        writers: &mut [u32],
        (now_ns, is_last): (u64, bool),
    ) -> (PassStats, bool) {
        let Some(crew) = &mut self.crew else {
            return (PassStats::default(), false);
        };
        let stats = crew.pass(drain, region, &mut state.ledger, now_ns, is_last);
        let mut has_new_writer = false;
        for sink in crew.sinks_mut() {
            for (ring, tid) in sink.rings.drain(..) {
                if let Some(known) = writers.get_mut(ring) {
                    has_new_writer |= *known != tid;
                    *known = tid;
                }
            }
            if sink.has_samples {
                sink.has_samples = false;
                state.counts.exact_until_ns.get_or_insert(now_ns);
                let none = sink.config.sampled_allocations();
                state.counts.add(&std::mem::replace(&mut sink.counts, none));
            }
            if !sink.call_times.is_empty() {
                state.call_times.merge(std::mem::take(&mut sink.call_times));
            }
        }
        (stats, has_new_writer)
    }
}

/// Distributes the events of some rings, and keeps the sums for sampling.
struct ToShards {
    router: Router,
    config: Arc<TraceConfig>,
    level: u8,
    counts: SampledAllocations,
    /// True if this pass contains samples.
    has_samples: bool,
    /// Time in the allocator during this pass.
    call_times: CallTimes,
    /// Rings of this pass and the threads that have written to them.
    rings: Vec<(usize, u32)>,
}

impl Distributes for ToShards {
    fn router(&self) -> &Router {
        &self.router
    }
    fn router_mut(&mut self) -> &mut Router {
        &mut self.router
    }
}

impl Sink for ToShards {
    fn begin_ring(&mut self, ring: usize, tid: u32) {
        if ring < MAX_RINGS {
            self.rings.push((ring, tid));
        }
        self.level = u8::from(self.counts.always);
        self.has_samples |= self.counts.always;
        self.router.begin_ring(ring, tid);
    }
    fn set_sampling(&mut self, mean_bytes: u64) {
        // The target can write this number, so only levels from the configuration count.
        self.level = self.config.sampling_level(mean_bytes);
        self.counts.announce(self.level);
        self.has_samples |= self.level != 0;
        self.router.set_sampling(self.level);
    }
    #[cold]
    fn call_time(&mut self, stack: u32, size: u64, counts: u32) {
        let weight = self.counts.weight_of(self.level, size);
        self.call_times.add(stack, weight, f64::from(counts));
    }
    #[inline(always)]
    fn event(&mut self, event: Event, size_bytes: u64, time_ns: u64) {
        // The target may report a described allocator although none is described.
        if heap_of(event.address) != 0 {
            return;
        }
        if self.level != 0 {
            count_sample(&mut self.counts, self.level, &event, size_bytes);
        }
        self.router.event(event, size_bytes, time_ns);
    }
    fn end_pass(&mut self) {}
}
