//! Time that a thread has spent in its call before it is interrupted.
//!
//! A repeated call gets the remaining part of its timeout. The kernel does not report when a call began, so the result
//! here is a lower bound on the call's duration: the timeout may expire late, by the error of the bound, but never
//! early.
//!
//! - A thread has been in the call since the first look if it slept in the call then and has run only once since, in
//!   order to stop (its number of turns on a processor is one higher). Only one other case looks the same: another
//!   event woke the thread directly before our interrupt, and the interrupt came when the thread was about to sleep in
//!   another call. That is rare, and takes some time between the last look and the interrupt, so this time has a limit.
//! - `exec_start` in /proc/PID/task/TID/sched is the moment at which the thread went to sleep, by the clock of its
//!   processor. That clock does not advance while interrupts and the hypervisor use the processor (update_rq_clock_task
//!   in kernel/sched/core.c). So a thread of ours that has just run on the same processor compares the value with the
//!   same clock. With any other clock, the sleep would seem too long.
//!
//! This clock and the clock of timeouts may still run at different rates, for example while the latter is slewed
//! (adjtimex(2): by a tenth at most). So an eighth is subtracted.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use crate::{ptrace, restart};
use memhook_process::{Activity, Scheduling, SchedulingFile, last_ran, processor};

/// Maximum time from the last look to the interrupt. After a longer time, it is unknown how long the thread has slept.
/// The limit leaves room for the interrupt itself, which takes a long time on a virtual machine if it wakes another
/// processor.
const LOOK_LIMIT: Duration = Duration::from_micros(100);
/// Length of the slowest tick. If the time stamp counter is not reliable, the processor's clock is corrected at every
/// tick (kernel/sched/clock.c), so it may be wrong by one tick.
const TICK: Duration = Duration::from_millis(10);

/// Facts about a thread when it was interrupted.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sleep {
    /// A moment at which the thread was already in its call.
    since: Option<Instant>,
    /// Number of the thread's turns on a processor before.
    turns: u64,
}

impl Sleep {
    /// Returns the facts that are still valid once the thread has stopped. If the thread ran more than once since then,
    /// none is valid.
    pub(crate) fn confirmed(self, pid: i32, tid: i32) -> Sleep {
        let turns = || SchedulingFile::of(pid, tid)?.read()?.turns();
        let ran_once = || Some(turns()? == self.turns + 1);
        let since = self.since.filter(|_| ran_once().unwrap_or(false));
        Sleep { since, ..self }
    }

    /// Returns a lower bound on the time that a thread has spent in its call if it stopped at this moment.
    pub(crate) fn lasts(&self, stopped_at: Instant) -> Duration {
        self.since.unwrap_or(stopped_at).elapsed()
    }
}

/// Sleeping thread in a call that a stop would end.
pub(crate) struct Sleeper {
    scheduling: SchedulingFile,
    /// Figures at the first look.
    seen: Scheduling,
    since: Instant,
}

impl Sleeper {
    /// Examines a thread. Returns `None` if the thread does not sleep in a call that is not restarted, or if the start
    /// of its sleep is unknown. This function is slow, so it must be called before anything is stopped.
    pub(crate) fn of(pid: i32, tid: i32, clocks: &mut Clocks) -> Option<Sleeper> {
        // The cheap question comes first.
        in_delicate_call(pid, tid)?;
        let scheduling = SchedulingFile::of(pid, tid)?;
        let seen = scheduling.read()?;
        // The first answer may be older than the scheduling figures. Only this second answer is certain to be newer.
        let call = in_delicate_call(pid, tid)?;
        let mut since = Instant::now();
        if let Some(asleep) = asleep_since(pid, tid, clocks) {
            since = since.min(asleep);
        }
        // The thread must be in the same call at the end.
        let is_same = scheduling.read()? == seen && in_delicate_call(pid, tid)? == call;
        is_same.then_some(Sleeper {
            scheduling,
            seen,
            since,
        })
    }

    /// Interrupts the seized thread.
    pub(crate) fn interrupt(&self, tid: i32) -> io::Result<Sleep> {
        let begin = Instant::now();
        let is_same = self.scheduling.read() == Some(self.seen);
        ptrace::interrupt(tid)?;
        let in_time = begin.elapsed() < LOOK_LIMIT;
        let turns = self.seen.turns().filter(|_| is_same && in_time);
        Ok(Sleep {
            since: turns.map(|_| self.since),
            turns: turns.unwrap_or_default(),
        })
    }
}

/// Returns the system call in which a thread sleeps, if it is a call that the kernel does not restart.
fn in_delicate_call(pid: i32, tid: i32) -> Option<i64> {
    match Activity::of(pid, tid) {
        Activity::Blocked(nr) if restart::is_disturbed_by_a_stop(nr) => Some(nr),
        _ => None,
    }
}

/// Returns the time at which a sleeping thread went to sleep, or a later time.
fn asleep_since(pid: i32, tid: i32, clocks: &mut Clocks) -> Option<Instant> {
    let began = last_ran(pid, tid)?;
    let (clock, at) = clocks.of(processor(pid, tid)?)?;
    let slept = clock.checked_sub(began)?.saturating_sub(TICK);
    at.checked_sub(slept - slept / 8)
}

/// Clocks of processors, each read once.
#[derive(Default)]
pub(crate) struct Clocks(BTreeMap<usize, Option<(Duration, Instant)>>);

impl Clocks {
    /// Returns a lower bound on the value of a processor's clock, and the time of the reading.
    fn of(&mut self, processor: usize) -> Option<(Duration, Instant)> {
        let look = || {
            let before = affinity()?;
            let mut there = no_processors();
            if processor >= libc::CPU_SETSIZE as usize {
                return None;
            }
            // SAFETY: the processor is in the set's range.
            unsafe { libc::CPU_SET(processor, &mut there) };
            set_affinity(&there)?;
            // Sleeping and waking makes the kernel update the clock.
            std::thread::sleep(Duration::from_micros(1));
            let (pid, tid) = ids();
            let clock = last_ran(pid, tid);
            let at = Instant::now();
            set_affinity(&before);
            Some((clock?, at))
        };
        *self.0.entry(processor).or_insert_with(look)
    }
}

fn ids() -> (i32, i32) {
    // SAFETY: no pointers.
    unsafe { (libc::getpid(), libc::gettid()) }
}

fn no_processors() -> libc::cpu_set_t {
    // SAFETY: a set of bits; all zero is the empty one.
    unsafe { std::mem::zeroed() }
}

/// Returns the processors that the calling thread may use; `None` if they are unknown, or if there are more of them
/// than a `cpu_set_t` can hold.
fn affinity() -> Option<libc::cpu_set_t> {
    let mut set = no_processors();
    // SAFETY: the kernel writes at most the given number of bytes.
    let got = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    (got == 0).then_some(set)
}

fn set_affinity(set: &libc::cpu_set_t) -> Option<()> {
    // SAFETY: the kernel reads this many bytes.
    let done = unsafe { libc::sched_setaffinity(0, size_of_val(set), set) };
    (done == 0).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::{LONG, Program, wait_until_blocked};

    #[test]
    fn a_sleep_is_nearly_as_long_as_it_is_and_never_longer() {
        let mut program = Program::start("blocked", &["epoll_infinite"]);
        let before = Instant::now();
        program.addresses();
        let pid = program.pid();
        wait_until_blocked(pid);
        let blocked = Instant::now();
        // The test compares two measurements of this time.
        std::thread::sleep(Duration::from_millis(300));
        // The thread's processor may be busy with other threads, and the host may be busy with other virtual machines.
        let (mut best, mut good) = (Duration::ZERO, 0);
        let until = Instant::now() + LONG;
        while good < 10 {
            let sleeper = Sleeper::of(pid, pid, &mut Clocks::default()).expect("it sleeps");
            assert!(sleeper.since > before, "longer than it lives");
            best = best.max(blocked.saturating_duration_since(sleeper.since));
            let known = blocked.elapsed();
            good += u32::from(sleeper.since.elapsed() + known / 4 > known / 2);
            // This thread may be interrupted between reading the two clocks.
            assert!(Instant::now() < until, "{known:?}");
        }
        println!("{best:?} before it was seen asleep");
    }

    #[test]
    fn the_affinity_comes_back() {
        let before = affinity().unwrap();
        let mut clocks = Clocks::default();
        let own = processor(ids().0, ids().1).unwrap();
        assert!(clocks.of(own).is_some());
        assert_eq!(clocks.of(own), clocks.of(own));
        assert_eq!(clocks.of(5000), None);
        // SAFETY: two sets of bits.
        assert!(unsafe { libc::CPU_EQUAL(&before, &affinity().unwrap()) });
    }
}
