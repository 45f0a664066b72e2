//! A thread that watches all quiet targets of an attacher that traces many.
//!
//! A drain thread wakes up about a hundred times a second to find nothing, and its watchdog about twenty times. That is
//! negligible for one target, but too much for hundreds of idle ones. So if there is a [`Lookout`], a drain thread that
//! has found nothing for some time sleeps until it is woken. In each round over all targets, the lookout advances their
//! clock words, so that no hook considers the attacher dead, and checks whether a target needs one of its threads here.
//! It takes no lock that an event could wait for, so no target waits because of another one.

use crossbeam_channel::Sender;
use crossbeam_utils::CachePadded;
use memhook_abi::MAX_RINGS;
use memhook_process::SeccompFilters;
use memhook_stream::{Admission, Region};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{
            AtomicBool, AtomicU32, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread::{JoinHandle, Thread},
    time::{Duration, Instant},
};

/// Time between two rounds. When a quiet target becomes active, its threads in this process wake up within this time.
/// Meanwhile the target may wait in dlopen for its new modules, or for space in a ring that a burst has filled. The
/// first events after a pause may carry a time that is too early by this much.
const ROUND: Duration = Duration::from_millis(10);
/// Interval at which the watchdog, or the lookout, checks the clock word. The hook considers an attacher dead if its
/// clock has not advanced for 100 ms, and on a busy machine the checks may be late.
pub(crate) const WATCHDOG_PAUSE: Duration = Duration::from_millis(20);
/// Age at which a clock word counts as stopped. Because the age is known, a single check is enough.
const STILL: Duration = Duration::from_millis(10);
/// Number of rounds in [`WATCHDOG_PAUSE`].
const WATCHDOG_ROUNDS: u32 = (WATCHDOG_PAUSE.as_millis() / ROUND.as_millis()) as u32;
/// Number of rounds between two checks of facts outside the shared memory.
const FILTER_ROUNDS: u32 = 10;
/// Longest time for which the watchdog or the lookout advances the clock word while a drain thread begins no pass.
/// After that the clock stops, and a target that waits for space in a ring continues untraced, because it must not wait
/// for us forever.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// Interval at which a sleeping drain thread checks whether the lookout still works.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// Time for which the drain thread does not rely on a lookout that has failed this check. The time is limited because
/// on a busy machine the lookout may only have been late, and hundreds of drain threads that never sleep would increase
/// the load.
const DISTRUST: Duration = Duration::from_secs(30);

/// View of a target without its live blocks.
pub(crate) struct Watched {
    region: Arc<Region>,
    start: Instant,
    admission: Admission,
    /// End of the last pass, in nanoseconds since the attach.
    drained_ns: CachePadded<AtomicU64>,
    /// Number of the target's last dlopen or dlclose that was answered.
    pub(crate) answered: AtomicU32,
    /// True if the draining has ended.
    finished: AtomicBool,
    /// True if a lookout watches the target.
    has_lookout: AtomicBool,
    /// True while the drain thread sleeps until it is woken.
    is_asleep: AtomicBool,
    /// End of the period in which the drain thread does not sleep because the lookout has failed, in nanoseconds since
    /// the attach.
    distrusted_until_ns: AtomicU64,
    /// Fingerprint of the ring owners at the last check.
    owners: AtomicU64,
    drainer: OnceLock<Thread>,
    drainer_id: OnceLock<i32>,
    /// Channel that wakes the thread that follows the process.
    news: OnceLock<Sender<()>>,
    pid: i32,
    /// Seccomp filters of the process, and their number when a lookout began to watch it.
    filters: OnceLock<(SeccompFilters, Option<u32>)>,
}

impl Watched {
    pub(crate) fn new(pid: i32, region: Arc<Region>, start: Instant) -> Watched {
        Watched {
            pid,
            region,
            start,
            admission: Admission::default(),
            drained_ns: CachePadded::new(AtomicU64::new(0)),
            answered: AtomicU32::new(0),
            finished: AtomicBool::new(false),
            has_lookout: AtomicBool::new(false),
            is_asleep: AtomicBool::new(false),
            distrusted_until_ns: AtomicU64::new(0),
            owners: AtomicU64::new(0),
            drainer: OnceLock::new(),
            drainer_id: OnceLock::new(),
            news: OnceLock::new(),
            filters: OnceLock::new(),
        }
    }

    /// Nanoseconds since the attach.
    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Declares that the calling thread empties the rings.
    pub(crate) fn drains_here(&self) {
        let _ = self.drainer.set(std::thread::current());
        let _ = self.drainer_id.set(nix::unistd::gettid().as_raw());
    }

    /// Returns the id of the thread that empties the rings, once it runs.
    pub(crate) fn drainer_id(&self) -> Option<i32> {
        self.drainer_id.get().copied()
    }

    /// Sets the channel for messages about other work.
    pub(crate) fn tells(&self, news: Sender<()>) {
        let _ = self.news.set(news);
    }

    /// Begins a pass.
    pub(crate) fn begin_pass(&self, now_ns: u64) {
        self.region.set_clock_ns(now_ns + 1);
        self.admission.answer(&self.region);
    }

    /// Ends a pass.
    pub(crate) fn end_pass(&self) {
        self.drained_ns.store(self.now_ns(), Relaxed);
    }

    /// Declares that the draining has ended.
    pub(crate) fn finish(&self) {
        self.finished.store(true, Relaxed);
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished.load(Relaxed)
    }

    /// Returns the process id.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns true if a lookout watches the target.
    pub(crate) fn has_lookout(&self) -> bool {
        self.has_lookout.load(Relaxed)
    }

    /// Returns true if the drain thread sleeps until it is woken.
    pub(crate) fn is_asleep(&self) -> bool {
        self.is_asleep.load(Acquire)
    }

    /// Sleeps until the drain thread has work, or until `is_over` returns true and the thread is unparked. Returns
    /// false immediately if there is work already, or if the lookout is not reliable. Call this after a pass that found
    /// nothing.
    pub(crate) fn sleep(&self, is_over: impl Fn() -> bool) -> bool {
        if self.now_ns() < self.distrusted_until_ns.load(Relaxed) {
            return false;
        }
        // A thread that finds no free ring waits until the rings of ended threads have been reclaimed.
        if self.region.rings_used() * 2 > MAX_RINGS {
            return false;
        }
        let Some(owners) = self.region.owners_at_rest() else {
            return false;
        };
        self.owners.store(owners, Relaxed);
        self.is_asleep.store(true, Release);
        let mut clock = self.region.clock_ns();
        while self.is_asleep.load(Acquire) && !is_over() {
            let since = Instant::now();
            std::thread::park_timeout(LONGEST_SLEEP);
            let now = self.region.clock_ns();
            if now == clock && since.elapsed() >= LONGEST_SLEEP {
                let until = self.now_ns() + DISTRUST.as_nanos() as u64;
                self.distrusted_until_ns.store(until, Relaxed);
                break;
            }
            clock = now;
        }
        self.is_asleep.store(false, Release);
        true
    }

    /// Makes the drain thread rely on the lookout again. Returns true if it did not before.
    #[cfg(test)]
    pub(crate) fn trusts_again(&self) -> bool {
        self.distrusted_until_ns.swap(0, Relaxed) != 0
    }

    /// Runs one round of a lookout. Returns false if the target needs no more rounds.
    fn look(&self, round: u32) -> bool {
        if self.is_finished() || !self.has_lookout() {
            return false;
        }
        if !self.is_asleep() {
            if round.is_multiple_of(WATCHDOG_ROUNDS) {
                self.keep_clock();
            }
            return true;
        }
        let clock = self.region.clock_ns();
        let now_ns = self.now_ns();
        self.region.advance_clock_ns(clock, now_ns + 1);
        // Until now there was nothing to drain.
        self.drained_ns.store(now_ns, Relaxed);
        self.admission.answer(&self.region);
        let owners = self.region.owners_at_rest();
        let are_others = owners.is_some_and(|owners| self.owners.swap(owners, Relaxed) != owners);
        let asks = self.region.module_requests() != self.answered.load(Relaxed)
            || self.region.abandoned_at_ns().is_some();
        if let Some(news) = self.news.get().filter(|_| are_others || asks) {
            // If the channel is full, the previous message is still there.
            let _ = news.try_send(());
        }
        if owners.is_none() || are_others || asks {
            self.wake();
        }
        if round.is_multiple_of(FILTER_ROUNDS) {
            self.look_at_filters();
        }
        true
    }

    fn wake(&self) {
        self.is_asleep.store(false, Release);
        if let Some(drainer) = self.drainer.get() {
            drainer.unpark();
        }
    }

    /// Tells the hook to make no more system calls if a seccomp filter has been installed, because its rules are
    /// unknown. While a target is quiet, no other thread checks this.
    fn look_at_filters(&self) {
        let Some((filters, before)) = self.filters.get() else {
            return;
        };
        if filters.now() > *before && !self.region.syscalls_filtered() {
            self.region.set_syscalls_filtered(true);
            tracing::debug!(pid = self.pid, "a new seccomp filter");
        }
    }

    /// Advances the clock word for a limited time while the drain thread waits for a report.
    fn keep_clock(&self) {
        let clock = self.region.clock_ns();
        let drained_ns = self.drained_ns.load(Relaxed);
        let now_ns = self.now_ns();
        let undrained = Duration::from_nanos(now_ns.saturating_sub(drained_ns));
        let age = Duration::from_nanos(now_ns.saturating_sub(clock));
        if age >= STILL && undrained < LONGEST_WAIT {
            self.region.advance_clock_ns(clock, now_ns + 1);
        }
        self.admission.answer(&self.region);
    }

    /// Runs the watchdog on the calling thread until the draining ends.
    pub(crate) fn watch(&self) {
        memhook_inject::take_precedence();
        while !self.is_finished() {
            self.keep_clock();
            std::thread::park_timeout(WATCHDOG_PAUSE);
        }
    }
}

/// The lookout's thread and its targets.
pub struct Lookout {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    all: Mutex<Vec<Arc<Watched>>>,
    ends: AtomicBool,
}

impl Shared {
    fn all(&self) -> MutexGuard<'_, Vec<Arc<Watched>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        // Threads of targets may wait for the lookout.
        memhook_inject::take_precedence();
        let mut round = 0u32;
        while !self.ends.load(Relaxed) {
            round = round.wrapping_add(1);
            let mut all = self.all();
            all.retain(|watched| watched.look(round));
            let is_idle = all.is_empty();
            drop(all);
            if is_idle {
                std::thread::park();
            } else {
                std::thread::park_timeout(ROUND);
            }
        }
    }
}

impl Lookout {
    /// Starts the thread, which watches no target yet.
    pub fn start() -> std::io::Result<Lookout> {
        let shared = Arc::new(Shared::default());
        let thread = std::thread::Builder::new().name("lookout".into());
        let of_thread = Arc::clone(&shared);
        let thread = thread.spawn(move || of_thread.run())?;
        Ok(Lookout {
            shared,
            thread: Some(thread),
        })
    }

    /// Watches a target, from before its first pass until its last one.
    pub(crate) fn add(&self, watched: &Arc<Watched>) {
        if let Some(filters) = SeccompFilters::of(watched.pid) {
            let before = filters.now();
            let _ = watched.filters.set((filters, before));
        }
        watched.has_lookout.store(true, Relaxed);
        self.shared.all().push(Arc::clone(watched));
        self.unpark();
    }

    fn unpark(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        self.shared.ends.store(true, Relaxed);
        self.unpark();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memhook_stream::sealed_file;

    fn watched(start: Instant) -> Watched {
        let config = crate::TraceConfig::default();
        let file = sealed_file(config.region_bytes()).expect("sparse");
        let region = Arc::new(Region::map(&file).expect("mapped"));
        region
            .initialize(&config.hook_config())
            .expect("initialized");
        Watched::new(std::process::id() as i32, region, start)
    }

    /// A waiting thread may stop waiting before a second check, if the checks come late on a busy machine.
    #[test]
    fn one_look_finds_a_clock_that_stands_still() {
        let watched = watched(Instant::now() - 2 * LONGEST_WAIT);
        watched.begin_pass(watched.now_ns() - STILL.as_nanos() as u64);
        watched.end_pass();
        let before = watched.region.clock_ns();
        watched.keep_clock();
        assert!(watched.region.clock_ns() > before);
        // If nothing is drained for too long, the clock stays stopped.
        watched.drained_ns.store(0, Relaxed);
        let before = watched.region.clock_ns();
        std::thread::sleep(STILL);
        watched.keep_clock();
        assert_eq!(watched.region.clock_ns(), before);
    }

    /// On a busy machine a lookout may be late for its next round.
    #[test]
    fn a_drain_thread_sleeps_again_after_the_lookout_was_late() {
        let watched = watched(Instant::now());
        watched.has_lookout.store(true, Relaxed);
        watched.begin_pass(1);
        assert!(watched.sleep(|| false), "nothing was done for it");
        assert!(!watched.sleep(|| false), "so it stays awake");
        assert!(watched.look(1), "it is looked after as before");
        // The time in which the drain thread stays awake is over.
        watched.distrusted_until_ns.store(watched.now_ns(), Relaxed);
        assert!(watched.sleep(|| true));
    }
}
