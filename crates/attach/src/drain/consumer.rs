//! The drain thread, which empties the rings independently of the attacher's other work, because a thread of the target
//! waits while its ring is full.

use super::budget::BudgetKept;
use super::gap_log::GapLog;
use super::lookout::Watched;
use super::pacing::Pacing;
use super::several::Drains;
use super::state::State;
use super::to_ledger::ToLedger;
use crate::config::{Clock, TraceConfig};
use crossbeam_channel::{Receiver, Sender, bounded};
use crossbeam_utils::{Backoff, CachePadded};
use memhook_abi::MAX_RINGS;
use memhook_ledger::{CallTimes, Observer};
use memhook_stream::{Drain, Gap, Region, TickTime, monotonic_ns, time_stamp_counter};
use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::Thread,
    time::{Duration, Instant},
};

/// Minimum time between two wake-ups of the main thread, which looks up the stacks of new threads.
const WELCOME_PAUSE: Duration = Duration::from_millis(5);
/// Longest wait for calls that were in progress at the detach.
const LAST_EVENTS: Duration = Duration::from_millis(200);

/// State shared by the drain thread, the watchdog and the reporting thread.
pub struct Consumer<O = ()> {
    region: Arc<Region>,
    state: Mutex<State<O>>,
    config: TraceConfig,
    start: Instant,
    ticks: ClockPair,
    /// Part that the watchers of the drain thread see.
    pub(crate) watched: Arc<Watched>,
    /// True while the drain thread waits for the lock on the state.
    drain_waits: CachePadded<AtomicBool>,
    /// Number of completed passes.
    passes: CachePadded<AtomicU64>,
    gaps: Mutex<GapLog>,
    finishing: AtomicBool,
    /// True if no thread of the target is running any more, so no further event can arrive.
    stands_still: AtomicBool,
}

/// Guard that runs a closure when it is dropped.
struct AtEnd<F: Fn()>(F);

impl<F: Fn()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Time stamp counter and CLOCK_MONOTONIC, read together to relate the two clocks.
struct ClockPair {
    tsc: u64,
    monotonic_ns: u64,
}

impl ClockPair {
    fn now() -> ClockPair {
        ClockPair {
            tsc: time_stamp_counter(),
            monotonic_ns: monotonic_ns(),
        }
    }

    /// Returns the nanoseconds per tick of the time stamp counter. The result is more accurate the longer ago the pair
    /// was read.
    fn ns_per_count(&self) -> f64 {
        let now = ClockPair::now();
        let counts = now.tsc.saturating_sub(self.tsc).max(1);
        let elapsed = now.monotonic_ns.saturating_sub(self.monotonic_ns);
        elapsed as f64 / counts as f64
    }
}

impl<O: Observer + Send> Consumer<O> {
    /// Creates the consumer of an attach that was completed at `start`.
    pub(crate) fn since(
        start: Instant,
        pid: i32,
        region: Arc<Region>,
        config: &TraceConfig,
        observer: O,
    ) -> Consumer<O> {
        Consumer {
            state: Mutex::new(State::new(pid, config, observer)),
            config: TraceConfig {
                // The session may have chosen a different clock from the one in the configuration.
                clock: Clock::of_mode(region.clock_mode()).unwrap_or(config.clock),
                ..config.clone()
            },
            watched: Arc::new(Watched::new(pid, Arc::clone(&region), start)),
            region,
            start,
            ticks: ClockPair::now(),
            drain_waits: CachePadded::new(AtomicBool::new(false)),
            passes: CachePadded::new(AtomicU64::new(0)),
            gaps: Mutex::default(),
            finishing: AtomicBool::new(false),
            stands_still: AtomicBool::new(false),
        }
    }

    /// Returns the observer after the end of the trace.
    pub fn into_observer(self) -> O {
        let state = self.state.into_inner().unwrap_or_else(|e| e.into_inner());
        state.ledger.into_observer()
    }

    /// Time since the attach.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// The region of the trace.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the CLOCK_MONOTONIC time that is time zero of the events.
    pub fn monotonic_origin_ns(&self) -> u64 {
        self.ticks.monotonic_ns
    }

    /// Returns the current time on the ledger's clock. Every later allocation has this time or a later one.
    pub fn moment_ns(&self) -> u64 {
        self.region.clock_ns().min(self.elapsed().as_nanos() as u64)
    }

    /// Returns the periods in which the target was not traced, up to `now` (time since the attach).
    pub fn gaps(&self, now: Duration) -> Vec<Gap> {
        self.gap_log().until(now.as_nanos() as u64)
    }

    pub(crate) fn gap_log(&self) -> MutexGuard<'_, GapLog> {
        self.gaps.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Ends the current gap, and returns it. Every event from now on has the time of the gap's end or a later time.
    pub(crate) fn end_gap(&self) -> Option<Gap> {
        let now_ns = self.elapsed().as_nanos() as u64;
        self.region.set_clock_ns(now_ns + 1);
        self.gap_log().end(now_ns)
    }

    /// Returns the cost and extent of tracing if there is a budget.
    pub fn budget_kept(&self) -> Option<BudgetKept> {
        let state = self.lock();
        Some(state.budget.as_ref()?.kept())
    }

    /// Returns the time spent in the allocator if it is measured.
    pub fn call_times(&self) -> Option<CallTimes> {
        if !self.config.call_times {
            return None;
        }
        // The rings wait only while this copy is made, not during the arithmetic below.
        let times = self.lock().call_times.clone();
        Some(times.scaled(self.ticks.ns_per_count()))
    }

    /// Current mean number of bytes between samples; `None`: every allocation is recorded.
    pub fn sample_bytes_now(&self) -> Option<u64> {
        match &self.lock().budget {
            Some(budget) => budget.sample_bytes_now(),
            None => self.config.sample_bytes,
        }
    }

    /// Returns the number of completed passes over the rings.
    pub fn passes(&self) -> u64 {
        self.passes.load(Relaxed)
    }

    /// Locks the state. No ring is emptied while the lock is held.
    pub fn lock(&self) -> MutexGuard<'_, State<O>> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Calls `slice` with the state until it returns false. Between two slices, the drain thread gets the lock first,
    /// so the rings never wait for longer than one slice.
    pub fn in_slices(&self, mut slice: impl FnMut(&mut State<O>) -> bool) {
        while slice(&mut self.lock()) {
            // An ordinary mutex would go to the thread that asks first, which would be this thread again.
            let backoff = Backoff::new();
            while self.drain_waits.load(Relaxed) {
                backoff.snooze();
            }
        }
    }

    /// Returns the id of the thread that empties the rings, once it runs. Its processor time is spent on this target.
    pub fn drain_thread(&self) -> Option<i32> {
        self.watched.drainer_id()
    }

    /// Returns true if the target is quiet and the drain thread sleeps until a lookout wakes it.
    pub(crate) fn is_asleep(&self) -> bool {
        self.watched.is_asleep()
    }

    /// Empties the rings on another thread while `work` runs on this one, and then until no more events arrive. `work`
    /// must close the gate at its end. It gets a message when the target waits in dlopen for its new modules, and when
    /// the target has a new thread.
    pub(crate) fn while_draining<T>(&self, work: impl FnOnce(&Receiver<()>) -> T) -> T {
        // One pending message is enough, because its receiver checks everything.
        let (tell, news) = bounded(1);
        self.watched.tells(tell.clone());
        std::thread::scope(|scope| {
            // A lookout does, for all targets, the work that a watchdog does for one.
            let is_alone = !self.watched.has_lookout();
            let watchdog = is_alone.then(|| scope.spawn(|| self.watched.watch()).thread().clone());
            let told = watchdog.clone();
            let draining = std::thread::Builder::new();
            let drain = move || self.drain(&tell, told.as_ref());
            let drainer = match draining.spawn_scoped(scope, drain) {
                Ok(drainer) => drainer,
                Err(error) => {
                    // Without this call, the watchdog would never end, and neither would the scope. A caller that
                    // catches the panic detaches.
                    self.watched.finish();
                    if let Some(watchdog) = watchdog {
                        watchdog.unpark();
                    }
                    panic!("cannot start a thread to empty the rings: {error}");
                }
            };
            // This must happen even if `work` panics, or the scope would wait forever.
            let _end = AtEnd(|| {
                self.finishing.store(true, Relaxed);
                drainer.thread().unpark();
            });
            work(&news)
        })
    }

    /// Declares that all threads of the target have ended or are stopped. Call it before the end of the trace.
    pub(crate) fn target_stands_still(&self) {
        self.stands_still.store(true, Relaxed);
    }

    /// Returns the conversion from event times to nanoseconds.
    pub(crate) fn tick_time(&self) -> TickTime {
        match self.config.clock {
            Clock::Coarse => TickTime::Nanoseconds,
            Clock::Attacher => TickTime::Fixed(self.elapsed().as_nanos() as u64),
            Clock::Monotonic => TickTime::Counter {
                origin: self.ticks.monotonic_ns,
                scale: 1.0,
            },
            Clock::Tsc => TickTime::Counter {
                origin: self.ticks.tsc,
                scale: self.ticks.ns_per_count(),
            },
        }
    }

    fn drain(&self, tell: &Sender<()>, watchdog: Option<&Thread>) {
        // This must happen even after a panic: the watchdog must not advance the clock if no thread empties the rings.
        // The target then considers the attacher dead and continues untraced.
        let _end = AtEnd(|| {
            self.watched.finish();
            if let Some(watchdog) = watchdog {
                watchdog.unpark();
            }
        });
        self.watched.drains_here();
        // On a busy machine, a thread with normal priority would run too late for a target that waits for space in a
        // ring.
        memhook_inject::take_precedence();
        let mut drain = Drain::new();
        let mut drains = Drains::new(self.watched.pid(), &self.config);
        let is_selective = self.config.is_selective() || self.config.overhead.is_some();
        let mut pacing = Pacing::new(is_selective, self.watched.has_lookout());
        let mut writers = vec![0; MAX_RINGS];
        let mut next_welcome = Duration::ZERO;
        let mut finishing_since = None;
        let mut quiet_passes = 0;
        loop {
            let now = self.elapsed();
            let now_ns = now.as_nanos() as u64;
            self.watched.begin_pass(now_ns);
            drain.set_tick_time(self.tick_time());
            self.drain_waits.store(true, Relaxed);
            let mut state = self.lock();
            self.drain_waits.store(false, Relaxed);
            let (stats, has_new_writer) = if drains.are_several() {
                let now = (now_ns, false);
                drains.pass(&mut drain, &self.region, &mut state, &mut writers, now)
            } else {
                let mut sink = self.sink(&mut state, now_ns, &mut writers);
                let stats = drain.pass(&self.region, &mut sink);
                let has_new_writer = sink.has_new_writer();
                drains.divide_if_pressed(&stats, &mut state, &self.config, now_ns);
                (stats, has_new_writer)
            };
            if let Some(keeper) = &mut state.budget {
                keeper.turn(&self.region, now, self.ticks.ns_per_count());
                pacing.set_sampling(keeper.is_sampling());
            }
            state.renew_recorded_blocks(&self.region, &self.config, || self.elapsed());
            drop(state);
            self.watched.end_pass();
            self.passes.fetch_add(1, Relaxed);
            self.region.grant(drain.waiting());
            // Until the hook knows the bounds of a new thread's stack, it reads that stack with system calls.
            let is_due = has_new_writer && now >= next_welcome;
            if is_due {
                next_welcome = now + WELCOME_PAUSE;
            }
            let asks = self.region.module_requests() != self.watched.answered.load(Relaxed);
            if is_due || asks {
                // If the channel is full, the previous message is still pending.
                let _ = tell.try_send(());
            }
            if self.finishing.load(Relaxed) {
                // Calls in progress publish within moments, at most one event per thread. To finish, a thread that
                // waits for space in its ring needs a live clock and an emptied ring.
                let since = *finishing_since.get_or_insert(now);
                quiet_passes = if stats.events == 0 && stats.left == 0 {
                    quiet_passes + 1
                } else {
                    0
                };
                let stands_still = self.stands_still.load(Relaxed);
                let enough = if stands_still { 2 } else { 3 };
                if quiet_passes >= enough || now - since > LAST_EVENTS {
                    break;
                }
                if !stands_still {
                    std::thread::sleep(Duration::from_millis(1));
                }
                continue;
            }
            // The wait ends early if no more events are expected.
            let pause = pacing.pause_after(&stats);
            if asks {
                pacing.expect_more();
            }
            // While the budget requires sampling, the drain thread must keep checking whether everything can be
            // recorded again.
            let may_sleep = self.watched.has_lookout() && !pacing.is_sampling();
            let is_over = || self.finishing.load(Relaxed);
            if may_sleep && pacing.is_quiet() && self.watched.sleep(is_over) {
                continue;
            }
            std::thread::park_timeout(pause);
        }
        let mut state = self.lock();
        let now_ns = self.elapsed().as_nanos() as u64;
        if drains.are_several() {
            let now = (now_ns, true);
            drains.pass(&mut drain, &self.region, &mut state, &mut writers, now);
        } else {
            drain.last_pass(
                &self.region,
                &mut self.sink(&mut state, now_ns, &mut writers),
            );
        }
        state.finish(&self.region, self.elapsed().as_nanos() as u64);
    }

    fn sink<'a>(
        &'a self,
        state: &'a mut State<O>,
        now_ns: u64,
        writers: &'a mut [u32],
    ) -> ToLedger<'a, O> {
        ToLedger::new(state, &self.region, &self.config, now_ns, writers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::lookout::{LONGEST_WAIT, Lookout};
    use std::os::unix::fs::FileExt;

    fn with_consumer(work: impl FnOnce(&Region, &Consumer)) {
        with_consumer_of_file(&TraceConfig::default(), |region, consumer, _| {
            work(region, consumer);
        });
    }

    /// Runs a test with a consumer; the file is the target's view of the region.
    fn with_consumer_of_file(
        config: &TraceConfig,
        work: impl FnOnce(&Region, &Consumer, &std::fs::File),
    ) {
        let file = memhook_stream::sealed_file(config.region_bytes()).expect("sparse");
        let region = Region::map(&file).expect("mapped");
        region
            .initialize(&config.hook_config())
            .expect("initialized");
        let region = Arc::new(region);
        work(
            &region,
            &Consumer::since(
                Instant::now(),
                std::process::id() as i32,
                Arc::clone(&region),
                config,
                (),
            ),
            &file.into(),
        );
    }

    /// A panic ends the drain thread, so the process can end and the target does not wait for it.
    #[test]
    fn a_panic_ends_the_draining() {
        with_consumer(|_, consumer| {
            let work = std::panic::AssertUnwindSafe(|| consumer.while_draining(|_| panic!("work")));
            assert!(std::panic::catch_unwind(work).is_err());
            assert!(consumer.watched.is_finished());
        });
    }

    /// A thread that keeps the state locked must not keep the target waiting for space in its rings.
    #[test]
    fn the_clock_stops_when_nothing_is_drained() {
        with_consumer(|region, consumer| {
            let until = Instant::now() + 100 * LONGEST_WAIT;
            consumer.while_draining(|_| {
                // The test is repeated if the thread that advances the clock, or this thread, did not get to run for
                // some time.
                while !advances_for_a_while(region, consumer, until) {
                    assert!(Instant::now() < until, "it stops at once");
                }
            });
        });
    }

    /// Locks the state until the clock stops, then unlocks it. Returns true if the clock advanced for long enough
    /// before that.
    fn advances_for_a_while(region: &Region, consumer: &Consumer, until: Instant) -> bool {
        let state = consumer.lock();
        let (start, mut clock) = (Instant::now(), region.clock_ns());
        let mut moved = start;
        // At first the clock advances; the hook considers the attacher dead if the clock has not advanced for 300 ms.
        while moved.elapsed() < Duration::from_millis(300) {
            assert!(Instant::now() < until, "it never stops");
            std::thread::sleep(Duration::from_millis(5));
            let now = region.clock_ns();
            if now != clock {
                (clock, moved) = (now, Instant::now());
            }
        }
        drop(state);
        // The clock advances again once events are taken again.
        while region.clock_ns() == clock {
            assert!(Instant::now() < until, "it stays stopped");
            std::thread::sleep(Duration::from_millis(5));
        }
        moved - start > LONGEST_WAIT / 4
    }

    #[test]
    fn a_quiet_target_costs_no_passes() {
        expect_no_passes(&TraceConfig::default());
    }

    #[test]
    fn a_quiet_target_within_a_budget_costs_no_passes() {
        expect_no_passes(&TraceConfig {
            overhead: Some(0.01),
            ..TraceConfig::default()
        });
    }

    /// Expects the clock to advance although no events arrive and no pass is made.
    fn expect_no_passes(config: &TraceConfig) {
        let lookout = Lookout::start().expect("a thread");
        with_consumer_of_file(config, |region, consumer, file| {
            lookout.add(&consumer.watched);
            let until = Instant::now() + Duration::from_secs(120);
            let wait = |what: &str, is: &dyn Fn() -> bool| {
                while !is() {
                    assert!(Instant::now() < until, "{what}");
                    std::thread::sleep(Duration::from_millis(1));
                }
            };
            consumer.while_draining(|news| {
                let passes = loop {
                    wait("it does not sleep", &|| consumer.is_asleep());
                    let (passes, clock) = (consumer.passes(), region.clock_ns());
                    wait("the clock stands still", &|| {
                        region.clock_ns() > clock + 100_000_000
                    });
                    if consumer.passes() == passes {
                        break passes;
                    }
                    // The drain thread ignores a lookout that has not run for a long time.
                    assert!(consumer.watched.trusts_again(), "passes are made");
                };
                // A dlopen in the target ends the sleep and sends a message.
                let requests = memhook_abi::TALLY_OFFSET
                    + std::mem::offset_of!(memhook_abi::Tally, module_requests);
                file.write_all_at(&1u32.to_le_bytes(), requests as u64)
                    .expect("a memory file");
                assert_eq!(news.recv_timeout(Duration::from_secs(60)), Ok(()));
                wait("it is not woken", &|| consumer.passes() > passes);
                consumer.watched.answered.store(1, Relaxed);
                wait("it does not sleep again", &|| consumer.is_asleep());
            });
            assert!(consumer.watched.is_finished());
        });
    }
}
