//! One thread that looks after all quiet targets of a process that traces many.
//!
//! A drain thread wakes up some hundred times a second to find out that nothing has come, and a watchdog beside it some
//! twenty times. That is nothing for one target, and too much for hundreds of idle ones. So where there is a
//! [`Lookout`], a drain thread that has found nothing for a while sleeps without end, and the lookout does in one round
//! over all targets what has to go on: it advances their clock words, so that the hook takes nobody for dead, and looks
//! whether there is anything for the threads of a target to do. It takes no lock that an event could wait for, so
//! that no target has to wait for what is done about another one.

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

/// The time between two rounds. A target that was quiet waits so long at most until its threads here wake up: in
/// dlopen for its new modules, or for room where a burst has filled a ring. The first events after a pause may carry a
/// time that is that much too early.
const ROUND: Duration = Duration::from_millis(10);
/// Somebody else than the drain thread looks at the clock word this often. The hook takes an attacher for dead after 100 ms
/// of a clock that stands still, and on a busy machine the looks come late.
pub(crate) const WATCHDOG_PAUSE: Duration = Duration::from_millis(20);
/// Age from which a clock word counts as standing still. By its age, and not by another look before, one look is
/// enough.
const STILL: Duration = Duration::from_millis(10);
/// Rounds until then.
const WATCHDOG_ROUNDS: u32 = (WATCHDOG_PAUSE.as_millis() / ROUND.as_millis()) as u32;
/// Rounds between two looks at what is not in the shared memory.
const FILTER_ROUNDS: u32 = 10;
/// Longest time for which the clock word is advanced for a drain thread that does not come to its next pass. After that
/// the word stops, and a target that waits for room in a ring goes on untraced: it must not wait for us without end.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// A drain thread that sleeps looks after so long whether the lookout has done anything meanwhile.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// If it has not, the drain thread does without it for so long. Not for good: on a machine where everything waits for a
/// processor the lookout was only late, and hundreds of drain threads that never sleep again make the machine no better.
const DISTRUST: Duration = Duration::from_secs(30);

/// View of a target without its live blocks.
pub(crate) struct Watched {
    region: Arc<Region>,
    start: Instant,
    admission: Admission,
    /// When the last pass ended, in nanoseconds since the attach.
    drained_ns: CachePadded<AtomicU64>,
    /// The last dlopen or dlclose of the target that was answered.
    pub(crate) answered: AtomicU32,
    /// Nothing is drained any more.
    finished: AtomicBool,
    /// A lookout looks after it.
    has_lookout: AtomicBool,
    /// The drain thread sleeps until it is woken.
    is_asleep: AtomicBool,
    /// Until then the drain thread does not sleep, in nanoseconds since the attach: the lookout did nothing for it.
    distrusted_until_ns: AtomicU64,
    /// The owners of the rings as last seen.
    owners: AtomicU64,
    drainer: OnceLock<Thread>,
    drainer_id: OnceLock<i32>,
    /// Ends the wait of the thread that follows the process.
    news: OnceLock<Sender<()>>,
    pid: i32,
    /// The seccomp filters of the process, and how many there were when a lookout began to look after it.
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

    /// The calling thread is the one that empties the rings.
    pub(crate) fn drains_here(&self) {
        let _ = self.drainer.set(std::thread::current());
        let _ = self.drainer_id.set(nix::unistd::gettid().as_raw());
    }

    /// Id of that thread, once it runs.
    pub(crate) fn drainer_id(&self) -> Option<i32> {
        self.drainer_id.get().copied()
    }

    /// Where to tell that there is something to do besides.
    pub(crate) fn tells(&self, news: Sender<()>) {
        let _ = self.news.set(news);
    }

    /// A pass begins.
    pub(crate) fn begin_pass(&self, now_ns: u64) {
        self.region.set_clock_ns(now_ns + 1);
        self.admission.answer(&self.region);
    }

    /// A pass has ended.
    pub(crate) fn end_pass(&self) {
        self.drained_ns.store(self.now_ns(), Relaxed);
    }

    /// Nothing is drained any more.
    pub(crate) fn finish(&self) {
        self.finished.store(true, Relaxed);
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished.load(Relaxed)
    }

    /// The process.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns true if a lookout watches it.
    pub(crate) fn has_lookout(&self) -> bool {
        self.has_lookout.load(Relaxed)
    }

    /// Returns true if the drain thread sleeps until it is woken.
    pub(crate) fn is_asleep(&self) -> bool {
        self.is_asleep.load(Acquire)
    }

    /// Sleeps until there is something for the drain thread to do, or `is_over`, of which it has to be told by unparking
    /// it. Returns false at once if there is something now, or a lookout cannot be relied on. To be called behind a pass that
    /// found nothing.
    pub(crate) fn sleep(&self, is_over: impl Fn() -> bool) -> bool {
        if self.now_ns() < self.distrusted_until_ns.load(Relaxed) {
            return false;
        }
        // A thread that finds no free ring waits until those of ended threads have been looked for.
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

    /// Has the drain thread rely on the lookout again; whether it did not.
    #[cfg(test)]
    pub(crate) fn trusts_again(&self) -> bool {
        self.distrusted_until_ns.swap(0, Relaxed) != 0
    }

    /// Runs one round of a lookout. Returns whether there is anything left to look after.
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
        // There was nothing to drain until now.
        self.drained_ns.store(now_ns, Relaxed);
        self.admission.answer(&self.region);
        let owners = self.region.owners_at_rest();
        let are_others = owners.is_some_and(|owners| self.owners.swap(owners, Relaxed) != owners);
        let asks = self.region.module_requests() != self.answered.load(Relaxed)
            || self.region.abandoned_at_ns().is_some();
        if let Some(news) = self.news.get().filter(|_| are_others || asks) {
            // Full: the last message is still there.
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

    /// Tells the hook to make no more system calls if a seccomp filter was installed in the meantime, because nobody
    /// knows what it forbids. While a target is quiet, nobody else looks.
    fn look_at_filters(&self) {
        let Some((filters, before)) = self.filters.get() else {
            return;
        };
        if filters.now() > *before && !self.region.syscalls_filtered() {
            self.region.set_syscalls_filtered(true);
        }
    }

    /// Keeps the clock word going while the drain thread has to wait for a report; not for ever.
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

    /// Does that until nothing is drained any more, on a thread of its own.
    pub(crate) fn watch(&self) {
        memhook_inject::take_precedence();
        while !self.is_finished() {
            self.keep_clock();
            std::thread::park_timeout(WATCHDOG_PAUSE);
        }
    }
}

/// The thread, and those whom it looks after.
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
        // Threads of targets may wait for it.
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
    /// Starts it. It looks after nobody yet.
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

    /// Looks after a target, from before its first pass until its last one.
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

    /// A look that comes late on a busy machine is the only one before a thread that waits gives up.
    #[test]
    fn one_look_finds_a_clock_that_stands_still() {
        let watched = watched(Instant::now() - 2 * LONGEST_WAIT);
        watched.begin_pass(watched.now_ns() - STILL.as_nanos() as u64);
        watched.end_pass();
        let before = watched.region.clock_ns();
        watched.keep_clock();
        assert!(watched.region.clock_ns() > before);
        // Where nothing is drained for too long, it stays so.
        watched.drained_ns.store(0, Relaxed);
        let before = watched.region.clock_ns();
        std::thread::sleep(STILL);
        watched.keep_clock();
        assert_eq!(watched.region.clock_ns(), before);
    }

    /// On a machine where everything waits for a processor, a lookout does its next round late.
    #[test]
    fn a_drain_thread_sleeps_again_after_the_lookout_was_late() {
        let watched = watched(Instant::now());
        watched.has_lookout.store(true, Relaxed);
        watched.begin_pass(1);
        assert!(watched.sleep(|| false), "nothing was done for it");
        assert!(!watched.sleep(|| false), "so it stays awake");
        assert!(watched.look(1), "it is looked after as before");
        // The time that it stays awake is over.
        watched.distrusted_until_ns.store(watched.now_ns(), Relaxed);
        assert!(watched.sleep(|| true));
    }
}
