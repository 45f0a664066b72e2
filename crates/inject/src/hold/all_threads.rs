//! All threads of a process, held for a moment to read their state. We run no code in them.

use std::collections::BTreeMap;
use std::io;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crate::guard::Guard;
use crate::others::NOBODY;
use crate::saved::set_to_repeat;
use crate::slept::{Clocks, Sleep, Sleeper};
use crate::stop::{self, STOP_LIMIT};
use crate::wait::{self, Pace, Stop};
use crate::{Error, Registers, late, ptrace, regs, restart, starvation, synchronous, watchdog};
use memhook_process::{Activity, sleeps, thread_ids, thread_state, tracer};
use tracing::debug;

/// Time limit for waiting, before any thread is stopped, until no thread sleeps uninterruptibly.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time for which stopped threads wait for a thread that sleeps uninterruptibly. Most such sleeps wait for a page, and
/// are far shorter.
const SLEEP_LIMIT: Duration = Duration::from_millis(20);
/// Time limit for the attempts to stop all threads while some sleep: a few times the length of a sleep.
const SLEEPER_PATIENCE: Duration = Duration::from_secs(3);

/// Stopped thread.
pub(crate) struct Stopped {
    registers: Registers,
    extended: Vec<u8>,
    /// Time when the stop was seen.
    at: Instant,
    pub sleep: Sleep,
}

/// Facts about the threads before they were disturbed.
#[derive(Default)]
pub(crate) struct Known {
    /// Threads in calls that a stop would end with EINTR, and how long they have been in the call, if known.
    delicate: BTreeMap<i32, Option<Sleeper>>,
}

/// Holds that were abandoned because not all threads had stopped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InVain {
    /// Number of holds.
    pub holds: u32,
    /// Longest of these holds.
    pub longest: Duration,
    /// Last thread that did not stop in time.
    pub tid: i32,
}

/// All threads of a process, seized and stopped. Dropping this value releases them and restarts their interrupted
/// system calls.
pub struct AllHeld {
    pub(crate) pid: i32,
    stopped_at: Instant,
    pub(crate) threads: BTreeMap<i32, Stopped>,
    /// Threads that are seized but not stopped yet.
    pub(crate) seized: BTreeMap<i32, Sleep>,
    /// Thread that another part of this process holds.
    pub(crate) left_out: i32,
    /// Time limit of a hold; `None`: no limit.
    limit: Option<Duration>,
    in_vain: InVain,
    _guard: Guard,
    /// ptrace requests must come from the thread that seized.
    _not_send: PhantomData<*const ()>,
}

/// Seizes and stops every thread of `pid`. If job control has stopped the process, it is still stopped after the
/// release.
///
/// Lists the threads again until no new thread appears: once all known threads are stopped, none is left to start
/// another.
pub fn hold_all(pid: i32) -> Result<AllHeld, Error> {
    hold_all_within(pid, None)
}

/// Like [`hold_all`], but holds no thread for longer than `limit` before all threads have stopped. If one thread takes
/// longer, the other threads are released, and stopped again once that thread has stopped. From then on, the caller
/// must observe the limit.
pub fn hold_all_within(pid: i32, limit: Option<Duration>) -> Result<AllHeld, Error> {
    late::let_late_threads_go();
    starvation::observe();
    watchdog::start();
    // If one thread slept uninterruptibly, all others would be held until it stops.
    let until = Instant::now() + PATIENCE;
    let mut slept = BTreeMap::new();
    while let Some(tid) = sleeper(pid) {
        // A thread that wakes up between sleeps will stop. A thread that does not wake up is left alone.
        if *slept.entry(tid).or_insert_with(|| sleeps(pid, tid)) != sleeps(pid, tid) {
            break;
        }
        if Instant::now() >= until {
            return Err(Error::DoesNotStop { pid, tid });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // The place where each thread sleeps must be known before the thread is disturbed. Finding the place takes a long
    // time, so it happens before the first thread is stopped.
    let mut known = Known::of(pid);
    if starvation::wait_for_a_processor(pid, Instant::now() + PATIENCE)? {
        known = Known::of(pid);
    }
    let until = Instant::now() + PATIENCE;
    loop {
        match stop_all(pid, &known, limit) {
            Err(Error::DoesNotStop { tid, .. }) if wait_until_it_is_not_ours(pid, tid, until) => {
                // Other threads may have been stopped and released meanwhile.
                known = Known::of(pid);
            }
            other => return other,
        }
    }
}

/// Waits for a thread that this process will release late. Returns true once the thread is released.
fn wait_until_it_is_not_ours(pid: i32, tid: i32, until: Instant) -> bool {
    while Instant::now() < until {
        late::let_late_threads_go();
        if !late::is_ours(tracer(pid, tid)) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

impl Known {
    pub(crate) fn of(pid: i32) -> Known {
        let mut known = Known::default();
        let mut clocks = Clocks::default();
        for tid in thread_ids(pid).unwrap_or_default() {
            if let Activity::Blocked(nr) = Activity::of(pid, tid)
                && restart::is_disturbed_by_a_stop(nr)
            {
                let sleeper = Sleeper::of(pid, tid, &mut clocks);
                known.delicate.insert(tid, sleeper);
            }
        }
        known
    }
}

pub(crate) fn stop_all(pid: i32, known: &Known, limit: Option<Duration>) -> Result<AllHeld, Error> {
    let mut held = AllHeld::none(pid, limit, false);
    held.stop_within_limit(known)?;
    if held.threads.is_empty() {
        return Err(Error::TargetGone { pid });
    }
    debug!(pid, threads = held.count(), stopped_in = ?held.held_for(), "all threads are held");
    Ok(held)
}

/// Returns a thread in uninterruptible sleep.
fn sleeper(pid: i32) -> Option<i32> {
    thread_ids(pid)
        .unwrap_or_default()
        .into_iter()
        .find(|&tid| thread_state(pid, tid) == Some('D'))
}

impl AllHeld {
    /// Creates an empty set. `may_let_go` has the same meaning as in [`Guard::begin`].
    pub(crate) fn none(pid: i32, limit: Option<Duration>, may_let_go: bool) -> AllHeld {
        let guard = Guard::begin(pid, may_let_go);
        AllHeld {
            pid,
            stopped_at: Instant::now(),
            threads: BTreeMap::new(),
            seized: BTreeMap::new(),
            left_out: NOBODY,
            limit,
            in_vain: InVain::default(),
            _guard: guard,
            _not_send: PhantomData,
        }
    }

    /// Returns the threads: id, general registers, and the whole extended state (vector registers).
    pub fn threads(&self) -> impl Iterator<Item = (i32, &Registers, &[u8])> {
        self.threads
            .iter()
            .map(|(&tid, t)| (tid, &t.registers, t.extended.as_slice()))
    }

    /// Returns the values of queued signals (sigqueue(3), timers, message queues). They may be the only pointers to an
    /// object.
    pub fn queued_values(&self) -> Vec<u64> {
        let mut found = Vec::new();
        let mut take = |tid: i32, shared: bool| {
            let mut count = 0;
            while let Ok(signals) = ptrace::pending_signals(tid, shared, count) {
                count += signals.len() as u64;
                for signal in &signals {
                    // SAFETY: every kind of siginfo_t consists of integers. A kind without a value has other integers
                    // in the same place.
                    let value = unsafe { signal.si_value() };
                    found.push(value.sival_ptr as u64);
                }
                if signals.is_empty() {
                    break;
                }
            }
        };
        for &tid in self.threads.keys() {
            take(tid, false);
        }
        if let Some(&tid) = self.threads.keys().next() {
            take(tid, true);
        }
        found.retain(|&value| value >= 4096);
        found
    }

    /// Returns the addresses to which the kernel writes whenever a thread resumes (rseq(2)). Often there is no other
    /// pointer to these addresses.
    pub fn rseq_places(&self) -> Vec<u64> {
        self.threads
            .keys()
            .map(|&tid| ptrace::rseq_address(tid))
            .filter(|&place| place != 0)
            .collect()
    }

    /// Returns the time since the first thread was told to stop.
    pub fn held_for(&self) -> Duration {
        self.stopped_at.elapsed()
    }

    /// Returns the number of threads.
    pub(crate) fn count(&self) -> usize {
        self.threads.len()
    }

    /// Returns the attempts that were abandoned before this hold.
    pub fn in_vain(&self) -> InVain {
        self.in_vain
    }

    /// Lets some threads run for about this long and stops them again, while the other threads stay stopped.
    pub fn let_run(&mut self, tids: &[i32], time: Duration) -> Result<(), Error> {
        for tid in tids {
            if self.threads.remove(tid).is_some() {
                match ptrace::resume(*tid, 0) {
                    Ok(()) => drop(self.seized.insert(*tid, Sleep::default())),
                    Err(_) => wait::reap(self.pid, *tid),
                }
            }
        }
        // A busy wait is wrong: this thread has priority, and the target's threads may need its processor.
        std::thread::sleep(time);
        for tid in self.seized.keys().copied().collect::<Vec<_>>() {
            if ptrace::interrupt(tid).is_err() {
                self.seized.remove(&tid);
                wait::reap(self.pid, tid);
            }
        }
        self.stop_within_limit(&Known::default())
    }

    /// Stops every thread that is not stopped yet. If a thread takes too long, the stopped threads are released until
    /// it has stopped too. Then the attempt is repeated.
    fn stop_within_limit(&mut self, known: &Known) -> Result<(), Error> {
        let until = Instant::now() + SLEEPER_PATIENCE;
        loop {
            match self.stop_the_rest(known) {
                Err(Error::DoesNotStop { tid, .. }) if self.seized.contains_key(&tid) => {
                    self.give_up_for(tid, until)?;
                }
                other => return other,
            }
        }
    }

    /// Releases all stopped threads, and waits for the next one to stop.
    fn give_up_for(&mut self, tid: i32, until: Instant) -> Result<(), Error> {
        self.in_vain.holds += 1;
        self.in_vain.tid = tid;
        self.let_stopped_go();
        self.in_vain.longest = self.in_vain.longest.max(self.stopped_at.elapsed());
        let mut pace = Pace::start();
        while self.threads.is_empty() && !self.seized.is_empty() {
            if Instant::now() >= until {
                let pid = self.pid;
                return Err(match self.limit {
                    Some(limit) => Error::StopsTooLate {
                        pid,
                        tid,
                        limit,
                        attempts: self.in_vain.holds,
                    },
                    None => Error::DoesNotStop { pid, tid },
                });
            }
            self.take_stops();
            if self.threads.is_empty() && pace.pause() {
                self.forget_ended();
            }
        }
        self.stopped_at = Instant::now();
        Ok(())
    }

    /// Stops every thread that is not stopped yet.
    pub(crate) fn stop_the_rest(&mut self, known: &Known) -> Result<(), Error> {
        loop {
            let new: Vec<i32> = thread_ids(self.pid)
                .unwrap_or_default()
                .into_iter()
                .filter(|tid| {
                    let is_ours = self.threads.contains_key(tid) || self.seized.contains_key(tid);
                    !is_ours && *tid != self.left_out
                })
                .collect();
            let before = self.threads.len();
            let (delicate, sturdy): (Vec<i32>, Vec<i32>) =
                new.iter().partition(|tid| known.delicate.contains_key(tid));
            // All threads are told to stop before the first wait, so that they stop concurrently.
            for tid in sturdy {
                self.seize(tid, None)?;
            }
            self.wait_for_all()?;
            // If we are killed after such a thread stops and before its call is set to be repeated, the call ends with
            // EINTR. Handling the threads one by one keeps this window as short as possible.
            for tid in delicate {
                let sleeper = known.delicate.get(&tid).and_then(Option::as_ref);
                self.seize(tid, sleeper)?;
                self.wait_for_all()?;
            }
            if self.threads.len() == before {
                return Ok(());
            }
        }
    }

    /// Releases all threads. Returns the duration of the hold.
    pub fn release(mut self) -> Duration {
        self.let_go();
        let held = self.stopped_at.elapsed();
        debug!(pid = self.pid, ?held, "all threads are let go");
        held
    }

    fn seize(&mut self, tid: i32, sleeper: Option<&Sleeper>) -> Result<(), Error> {
        if let Some(sleep) = stop::seize(self.pid, tid, sleeper)? {
            self.seized.insert(tid, sleep);
        }
        Ok(())
    }

    /// Waits until all threads that were told to stop have stopped. Adopts them in the order in which they stop,
    /// because only an adopted thread survives our death.
    fn wait_for_all(&mut self) -> Result<(), Error> {
        let begin = Instant::now();
        let mut pace = Pace::start();
        while let Some((&first, _)) = self.seized.first_key_value() {
            self.take_stops();
            let too_long = begin.elapsed() >= STOP_LIMIT
                || self.limit.is_some_and(|limit| self.held_for() >= limit);
            // A thread that waits for a processor stops as soon as it gets one.
            let asleep = (begin.elapsed() >= SLEEP_LIMIT)
                .then(|| self.sleeper())
                .flatten();
            if too_long || asleep.is_some() {
                return match self.seized.is_empty() {
                    true => Ok(()),
                    false => Err(Error::DoesNotStop {
                        pid: self.pid,
                        tid: asleep.unwrap_or(first),
                    }),
                };
            }
            if pace.pause() {
                self.forget_ended();
            }
        }
        Ok(())
    }

    /// Returns a thread that has not stopped and sleeps uninterruptibly.
    fn sleeper(&self) -> Option<i32> {
        let mut waited_for = self.seized.keys().copied();
        waited_for.find(|&tid| thread_state(self.pid, tid) == Some('D'))
    }

    /// Takes over the threads that have stopped since the last call.
    fn take_stops(&mut self) {
        for (tid, sleep) in self.seized.clone() {
            match wait::poll_stop(self.pid, tid) {
                Some(Stop::Event(libc::SIGTRAP))
                    if synchronous::comes_first(self.pid, tid).unwrap_or(false) =>
                {
                    self.resumed(tid, ptrace::resume(tid, 0));
                }
                Some(Stop::Event(_)) => self.adopt(tid, sleep),
                // After the delivery, the signal's handler starts, and the thread stops at the first instruction.
                Some(Stop::Signal(signal)) => self.resumed(tid, synchronous::take(tid, signal)),
                Some(Stop::Syscall | Stop::Clone) => self.resumed(tid, ptrace::resume(tid, 0)),
                Some(Stop::Gone) => drop(self.seized.remove(&tid)),
                None => {}
            }
        }
    }

    fn forget_ended(&mut self) {
        let pid = self.pid;
        self.seized.retain(|&tid, _| !wait::has_ended(pid, tid));
    }

    /// Records a thread that runs until its next stop.
    fn resumed(&mut self, tid: i32, resumed: io::Result<()>) {
        if resumed.is_err() {
            self.seized.remove(&tid);
            wait::reap(self.pid, tid);
        }
    }

    /// Reads the registers of a stopped thread; a thread that was killed meanwhile is omitted.
    fn adopt(&mut self, tid: i32, sleep: Sleep) {
        let at = Instant::now();
        self.seized.remove(&tid);
        let state = regs::read(tid).and_then(|registers| {
            let sleep = set_to_repeat(self.pid, tid, &registers, sleep, at)?;
            Ok((registers, sleep, regs::read_extended(tid)?))
        });
        match state {
            Ok((registers, sleep, extended)) => {
                let stopped = Stopped {
                    registers,
                    extended,
                    at,
                    sleep,
                };
                self.threads.insert(tid, stopped);
            }
            Err(_) if ptrace::detach(tid).is_err() => wait::reap(self.pid, tid),
            Err(_) => {}
        }
    }

    pub(crate) fn let_stopped_go(&mut self) {
        for (&tid, thread) in &self.threads {
            if restart::must_be_repeated(&thread.registers) {
                let again = restart::repeat(&thread.registers, thread.sleep.lasts(thread.at));
                let _ = regs::write(tid, &again);
            }
        }
        for (tid, _) in std::mem::take(&mut self.threads) {
            if ptrace::detach(tid).is_err() {
                wait::reap(self.pid, tid);
            }
        }
    }

    fn let_go(&mut self) {
        self.let_stopped_go();
        let seized = std::mem::take(&mut self.seized);
        if !seized.is_empty() {
            for tid in seized.into_keys() {
                late::let_go_later(self.pid, tid);
            }
            late::wait_for_late_threads(STOP_LIMIT);
        }
    }
}

impl Drop for AllHeld {
    fn drop(&mut self) {
        self.let_go();
    }
}
