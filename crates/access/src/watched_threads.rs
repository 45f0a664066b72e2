//! Watchpoints on the same word or byte for all threads of a process, including new ones.

use crate::measure::Means;
use memhook_inject::{Access, AccessRing, Watchpoint, Width};
use memhook_process::{inner_tid, living_thread, thread_ids};
use std::collections::BTreeMap;
use std::io;

/// Number of watchpoints per thread on x86 (Intel SDM volume 3, 18.2: DR0 to DR3).
const MOST_SLOTS: usize = 4;

/// A word or byte with watchpoints in some threads.
pub struct WatchedWord {
    address: u64,
    width: Width,
    by_thread: BTreeMap<i32, Watchpoint>,
}

impl WatchedWord {
    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.by_thread.len()
    }
}

/// The threads of a process.
pub struct WatchedThreads {
    pid: i32,
    with_kernel: bool,
    /// Maximum number of watched threads. If there are more threads, the watched ones are chosen at
    /// random.
    most: usize,
    rings: BTreeMap<i32, Option<AccessRing>>,
    watched: usize,
    all: usize,
}

impl WatchedThreads {
    /// Starts watching the threads of a process, to the extent that a budget (a share of the
    /// process's time) allows. Returns the number of watchpoints available in each thread, or the
    /// reason why watching is impossible. Limitations are added to `notes`.
    pub fn within(
        pid: i32,
        means: &Means,
        budget: f64,
        notes: &mut Vec<String>,
    ) -> Result<(WatchedThreads, usize), String> {
        let none = |error: &io::Error| {
            let what_to_do = match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    "; set kernel.perf_event_paranoid to 2 or less, or run with CAP_PERFMON"
                }
                _ => "",
            };
            format!(
                "reads are not seen, and stale means not written: no hardware watchpoints ({error}{what_to_do})"
            )
        };
        let with_kernel = *means.watchpoints.as_ref().map_err(none)?;
        // If the watchpoints are armed in all threads, they must not cost more than half of their
        // share of the budget for five seconds.
        let most = 5e9 * budget / 2.0 / 2.0 / (4.0 * means.costs.trap_ns);
        let mut threads = WatchedThreads::of(pid, with_kernel, (most as usize).max(1));
        let slots = threads.slots().map_err(|error| none(&error))?;
        threads.follow(std::iter::empty());
        if !with_kernel {
            notes.push(
                "accesses by system calls on the program's behalf are not seen: that takes \
                 CAP_PERFMON, or kernel.perf_event_paranoid at 1 or less"
                    .into(),
            );
        }
        Ok((threads, slots))
    }

    /// Starts for this process, with no watched threads.
    pub(crate) fn of(pid: i32, with_kernel: bool, most: usize) -> WatchedThreads {
        WatchedThreads {
            pid,
            with_kernel,
            most,
            rings: BTreeMap::new(),
            watched: 0,
            all: 0,
        }
    }

    /// Returns the number of watchpoints that are available in a thread. It is smaller if a
    /// debugger or the program itself uses some watchpoints.
    pub(crate) fn slots(&self) -> io::Result<usize> {
        let mut taken = Vec::new();
        // The kernel no longer finds an initial thread that has ended.
        let tid = living_thread(self.pid);
        for _ in 0..MOST_SLOTS {
            // The watchpoint is not armed. It only occupies a debug register.
            match Watchpoint::reserve(tid, 0, self.with_kernel) {
                Ok(watchpoint) => taken.push(watchpoint),
                Err(error) if taken.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(taken.len())
    }

    /// Returns the number of threads that are watched while any thread is watched, and the number
    /// of all threads.
    pub fn counts(&self) -> (usize, usize) {
        (self.watched, self.all)
    }

    /// Returns the threads that are watched now.
    pub fn tids(&self) -> Vec<i32> {
        self.rings.keys().copied().collect()
    }

    /// Stops watching all threads until [`WatchedThreads::follow`], because a thread with a ring
    /// has a cost, even without a watchpoint. No word may be watched at this time.
    pub fn rest(&mut self) {
        self.rings.clear();
    }

    /// Updates the list of threads. New threads, including their `words`, are watched from now on.
    /// Returns the number of threads that got a ring.
    pub fn follow<'a>(&mut self, words: impl Iterator<Item = &'a mut WatchedWord>) -> usize {
        let Ok(tids) = thread_ids(self.pid) else {
            return 0;
        };
        self.all = tids.len();
        self.rings.retain(|tid, _| tids.contains(tid));
        let is_new = |tid: &i32| !self.rings.contains_key(tid);
        let mut new: Vec<i32> = tids.into_iter().filter(is_new).collect();
        // Threads created in sequence often do similar work. If only some threads can be watched,
        // these must not simply be the first ones. Multiplying by the golden ratio spreads the
        // numbers.
        new.sort_unstable_by_key(|&tid| (tid as u32).wrapping_mul(0x9e37_79b1));
        let before = self.rings.len();
        for &tid in new.iter().take(self.most.saturating_sub(before)) {
            let ring = AccessRing::open(tid, self.with_kernel).ok();
            self.rings.insert(tid, ring);
        }
        self.watched = self.rings.len();
        for word in words {
            word.by_thread.retain(|tid, _| self.rings.contains_key(tid));
            if new.is_empty() {
                continue;
            }
            self.extend(word);
        }
        self.watched - before
    }

    fn armed(
        &self,
        tid: i32,
        (address, width): (u64, Width),
        ring: &Option<AccessRing>,
    ) -> Option<Watchpoint> {
        // Fails for a thread that has ended, or whose watchpoints are all in use.
        let reserved = Watchpoint::reserve_width(tid, address, width, self.with_kernel);
        let watchpoint = reserved.ok()?;
        watchpoint.arm(ring.as_ref()).ok()?;
        Some(watchpoint)
    }

    /// Watches a word or byte; `None` if no thread can.
    pub fn watch(&self, address: u64, width: Width) -> Option<WatchedWord> {
        let armed = self.rings.iter().filter_map(|(&tid, ring)| {
            let watchpoint = self.armed(tid, (address, width), ring)?;
            Some((tid, watchpoint))
        });
        let by_thread: BTreeMap<i32, Watchpoint> = armed.collect();
        (!by_thread.is_empty()).then_some(WatchedWord {
            address,
            width,
            by_thread,
        })
    }

    /// Returns the thread that has this id in its own pid namespace.
    pub fn outer_tid(&self, inner: u32) -> Option<i32> {
        let tid = inner as i32;
        if self.rings.contains_key(&tid) && inner_tid(self.pid, tid) == Some(inner) {
            return Some(tid);
        }
        let tids = thread_ids(self.pid).ok()?;
        tids.into_iter()
            .find(|&tid| inner_tid(self.pid, tid) == Some(inner))
    }

    /// Watches a word or byte in one thread, or in all threads if the thread is unknown; `None` if
    /// no watchpoint could be set.
    pub fn watch_first(
        &mut self,
        tid: Option<i32>,
        address: u64,
        width: Width,
    ) -> Option<WatchedWord> {
        let Some(tid) = tid else {
            return self.watch(address, width);
        };
        // The thread has just begun.
        let with_kernel = self.with_kernel;
        let ring = self.rings.entry(tid);
        let ring = ring.or_insert_with(|| AccessRing::open(tid, with_kernel).ok());
        let reserved = Watchpoint::reserve_width(tid, address, width, with_kernel);
        let watchpoint = reserved.ok()?;
        watchpoint.arm(ring.as_ref()).ok()?;
        let by_thread = BTreeMap::from([(tid, watchpoint)]);
        Some(WatchedWord {
            address,
            width,
            by_thread,
        })
    }

    /// Watches a word in all other threads too. Returns the number of these threads.
    pub fn extend(&self, word: &mut WatchedWord) -> usize {
        let before = word.threads();
        for (&tid, ring) in &self.rings {
            if word.by_thread.contains_key(&tid) {
                continue;
            }
            if let Some(watchpoint) = self.armed(tid, (word.address, word.width), ring) {
                word.by_thread.insert(tid, watchpoint);
            }
        }
        word.threads() - before
    }

    /// Rearms the watchpoint on a word that has fired in a thread.
    pub fn arm_again(&self, word: &WatchedWord, tid: i32) {
        if let Some(watchpoint) = word.by_thread.get(&tid) {
            // Fails for a thread that has ended, which accesses nothing.
            let _ = watchpoint.arm(None);
        }
    }

    /// Returns the accesses recorded since the last call.
    pub fn take(&mut self) -> Vec<Access> {
        let mut found = Vec::new();
        for ring in self.rings.values_mut().flatten() {
            ring.take(&mut found);
        }
        found
    }

    /// Collects the watchpoints that have fired in threads without a ring. Nothing else is known
    /// about the accesses.
    pub fn take_unrecorded(&self, word: &mut WatchedWord) -> Vec<i32> {
        let without_ring = |tid: &i32| matches!(self.rings.get(tid), Some(None));
        let fired = word.by_thread.iter();
        let fired: Vec<i32> = fired
            .filter(|(tid, watchpoint)| without_ring(tid) && watchpoint.has_fired())
            .map(|(tid, _)| *tid)
            .collect();
        for tid in &fired {
            word.by_thread.remove(tid);
        }
        fired
    }

    /// Returns the number of threads that have touched a word but have no ring.
    pub fn touched_unrecorded(&self, word: &WatchedWord) -> usize {
        let without_ring = |tid: &i32| matches!(self.rings.get(tid), Some(None));
        let fired = word.by_thread.iter();
        fired
            .filter(|(tid, watchpoint)| without_ring(tid) && watchpoint.has_fired())
            .count()
    }
}
