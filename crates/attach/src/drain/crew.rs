//! Threads that share the passes over one process's rings.
//!
//! One thread reads all heads, so a pass has the same meaning as with a single thread, which is all that the ledger's
//! rule needs. The threads then share the rings of the pass, and each thread distributes the events of its rings to the
//! ledger's shards. After all threads have read a round of events, each shard receives its events from one thread. All
//! threads wait for each other between these steps and at the end of a pass.

use memhook_ledger::{Ledger, Observer, Router};
use memhook_stream::{Drain, Part, PassStats, Region, Sink};
use rayon_core::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

/// Below this number of events, one thread takes them all, because waking others takes longer.
const FEW_EVENTS: u64 = 4096;

/// Events that a thread reads per round before they are applied. It bounds the memory of the buckets.
const ROUND_EVENTS: u64 = 1 << 17;

/// Receives the events of one thread's rings, and passes them to its router.
pub trait Distributes: Sink + Send + Sync {
    /// The router.
    fn router(&self) -> &Router;
    /// Returns the router, so that the caller can empty it.
    fn router_mut(&mut self) -> &mut Router;
}

/// Threads that share the passes.
pub struct Crew<S> {
    /// All threads except the caller.
    others: ThreadPool,
    /// One receiver per thread.
    sinks: Vec<S>,
}

impl<S: Distributes> Crew<S> {
    /// Divides a ledger among `threads` threads, including the caller. `None`: the ledger cannot be divided
    /// ([`Ledger::divide`]).
    ///
    /// # Errors
    ///
    /// The system cannot create the threads.
    pub fn new<O: Observer>(
        threads: usize,
        ledger: &mut Ledger<O>,
        sink: impl FnMut(Router) -> S,
    ) -> Result<Option<Crew<S>>, ThreadPoolBuildError> {
        let others = ThreadPoolBuilder::new()
            .num_threads(threads.saturating_sub(1).max(1))
            .thread_name(|number| format!("drain-{}", number + 2))
            // Same priority as the first drain thread, because a target may be waiting for room in a ring.
            .start_handler(|_| memhook_inject::take_precedence())
            .build()?;
        let routers = ledger.divide(threads);
        Ok(routers.map(|routers| Crew {
            others,
            sinks: routers.into_iter().map(sink).collect(),
        }))
    }

    /// Returns the receivers of the last pass's events.
    pub fn sinks_mut(&mut self) -> &mut [S] {
        &mut self.sinks
    }

    /// Makes one pass over the rings. `is_last`: no thread of the target records any more.
    pub fn pass<O: Observer>(
        &mut self,
        drain: &mut Drain,
        region: &Region,
        ledger: &mut Ledger<O>,
        now_ns: u64,
        is_last: bool,
    ) -> PassStats {
        let left = match is_last {
            true => drain.look_at_rest(region),
            false => drain.look(region),
        };
        let is_small = drain.to_take() < FEW_EVENTS;
        let threads = if is_small { 1 } else { self.sinks.len() };
        let mut stats = vec![PassStats::default(); threads];
        let mut others = ledger.take_others();
        let mut parts: Vec<_> = drain.parts(threads).collect();
        while parts.iter().any(Part::has_more) {
            let mut readers = parts.iter_mut().zip(&mut self.sinks).zip(&mut stats);
            let read = |((part, sink), stats): ((&mut Part<'_>, &mut S), &mut PassStats)| {
                part.take(region, sink, stats, ROUND_EVENTS);
                sink.router_mut().end_reading();
            };
            self.others.in_place_scope(|scope| {
                let here = readers.next();
                readers.for_each(|there| scope.spawn(move |_| read(there)));
                here.into_iter().for_each(read);
            });
            let sinks = &self.sinks;
            let routers = || sinks.iter().map(S::router);
            let shards = (1..).zip(&mut others);
            if is_small {
                shards.for_each(|(number, shard)| shard.apply_routed(routers(), number));
                ledger.apply_routed(routers(), 0);
            } else {
                self.others.in_place_scope(|scope| {
                    shards.for_each(|(number, shard)| {
                        scope.spawn(move |_| shard.apply_routed(routers(), number));
                    });
                    ledger.apply_routed(routers(), 0);
                });
            }
            for sink in &mut self.sinks {
                sink.router_mut().clear();
            }
        }
        drop(parts);
        drain.end_parts();
        ledger.rejoin(others);
        ledger.end_pass(now_ns);
        let left = PassStats {
            left,
            ..PassStats::default()
        };
        stats.into_iter().fold(left, PassStats::and)
    }
}
