//! How long a thread has been in its call before it is interrupted.
//!
//! A call that has to be repeated gets the time that is left of its timeout. The kernel tells nobody
//! when a call began, so this is a lower bound: the timeout may end late by what it misses, never early.
//!
//! - A thread that sleeps in the call when it is first looked at, and has run only once since, to stop (its
//!   number of turns on a processor is one more, `schedstat`), has been in it since then. Only one that
//!   something else woke just before our interrupt, and that was about to go to sleep in another call when
//!   the interrupt came, looks the same: that is a microsecond in the time that a wait lasts, and only
//!   where the last look and the interrupt are far enough apart for it, so that time has a limit.
//! - `exec_start` in /proc/PID/task/TID/sched is the moment at which it went to sleep, by the clock of its
//!   processor. That clock does not advance while interrupts and the hypervisor have the processor
//!   (update_rq_clock_task in kernel/sched/core.c), so it is compared with the same clock, by a thread of
//!   ours that has just run there, and never with another one, which would make the sleep too long.
//!
//! What is left is that this clock and the one of timeouts may run at different rates, as when the latter is
//! slewed (adjtimex(2): by a tenth at most): an eighth is taken off.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::{ptrace, restart};
use memhook_process::{Activity, last_ran, processor};

/// If more time than this passes from the last look to the interrupt, nothing is known of a thread's sleep. On a
/// virtual machine the interrupt alone may take 30 microseconds, as it wakes another processor.
const LOOK_LIMIT: Duration = Duration::from_micros(100);
/// The processor's clock is set right at every tick where its time-stamp counter is not reliable
/// (kernel/sched/clock.c), so it may err by one; the slowest tick.
const TICK: Duration = Duration::from_millis(10);

/// What was known about a thread when it was interrupted.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sleep {
    /// It was in its call at this moment already.
    since: Option<Instant>,
    /// How often it had had its turn on a processor before.
    turns: u64,
}

impl Sleep {
    /// To be asked once the thread has stopped: nothing is known of one that ran more than once
    /// in between.
    pub(crate) fn confirmed(self, pid: i32, tid: i32) -> Sleep {
        let ran_once = || Some(turns_of(&read(&open(pid, tid)?)?)? == self.turns + 1);
        let since = self.since.filter(|_| ran_once().unwrap_or(false));
        Sleep { since, ..self }
    }

    /// How long the call of a thread that stopped at this moment has lasted by now, at least.
    pub(crate) fn lasts(&self, stopped_at: Instant) -> Duration {
        self.since.unwrap_or(stopped_at).elapsed()
    }
}

/// A thread in a call that a stop would end, while it sleeps.
pub(crate) struct Sleeper {
    schedstat: File,
    /// As it was at the first look.
    seen: [u8; 64],
    since: Instant,
}

impl Sleeper {
    /// Looks at a thread; `None` if it does not sleep in such a call, or nobody can say how long. Slow: to be
    /// done before anything is stopped.
    pub(crate) fn of(pid: i32, tid: i32, clocks: &mut Clocks) -> Option<Sleeper> {
        // First the cheap question.
        in_delicate_call(pid, tid)?;
        let schedstat = open(pid, tid)?;
        let seen = read(&schedstat)?;
        // Only now it is known that it was in a call after these turns.
        let call = in_delicate_call(pid, tid)?;
        let mut since = Instant::now();
        if let Some(asleep) = asleep_since(pid, tid, clocks) {
            since = since.min(asleep);
        }
        // The same call at the end of all this.
        let is_same = read(&schedstat)? == seen && in_delicate_call(pid, tid)? == call;
        is_same.then_some(Sleeper {
            schedstat,
            seen,
            since,
        })
    }

    /// Interrupts the thread, which is seized.
    pub(crate) fn interrupt(&self, tid: i32) -> io::Result<Sleep> {
        let begin = Instant::now();
        let is_same = read(&self.schedstat) == Some(self.seen);
        ptrace::interrupt(tid)?;
        let in_time = begin.elapsed() < LOOK_LIMIT;
        let turns = turns_of(&self.seen).filter(|_| is_same && in_time);
        Ok(Sleep {
            since: turns.map(|_| self.since),
            turns: turns.unwrap_or_default(),
        })
    }
}

fn open(pid: i32, tid: i32) -> Option<File> {
    File::open(format!("/proc/{pid}/task/{tid}/schedstat")).ok()
}

/// The third number: how often it was given a processor (sched-stats.rst in the kernel's documentation).
fn turns_of(schedstat: &[u8; 64]) -> Option<u64> {
    let text = std::str::from_utf8(schedstat).ok()?;
    let number = text.split([' ', '\n']).nth(2)?;
    number.parse().ok()
}

/// The call of a thread that sleeps in one that is not restarted.
fn in_delicate_call(pid: i32, tid: i32) -> Option<i64> {
    match Activity::of(pid, tid) {
        Activity::Blocked(nr) if restart::is_disturbed_by_a_stop(nr) => Some(nr),
        _ => None,
    }
}

fn read(schedstat: &File) -> Option<[u8; 64]> {
    let mut text = [0; 64];
    let bytes = schedstat.read_at(&mut text, 0).ok()?;
    (bytes > 0).then_some(text)
}

/// When a sleeping thread went to sleep, or later.
fn asleep_since(pid: i32, tid: i32, clocks: &mut Clocks) -> Option<Instant> {
    let began = last_ran(pid, tid)?;
    let (clock, at) = clocks.of(processor(pid, tid)?)?;
    let slept = clock.checked_sub(began)?.saturating_sub(TICK);
    at.checked_sub(slept - slept / 8)
}

/// The clocks of processors, each looked at once.
#[derive(Default)]
pub(crate) struct Clocks(BTreeMap<usize, Option<(Duration, Instant)>>);

impl Clocks {
    /// What the clock of a processor says, or less, and since when it says so.
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
            // Sleeping and waking has the kernel look at the clock.
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

/// Processors that the calling thread may use; `None` also where a set has no room for all there are.
fn affinity() -> Option<libc::cpu_set_t> {
    let mut set = no_processors();
    // SAFETY: the kernel writes at most this many bytes.
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
    use crate::common::{Program, wait_until_blocked};

    #[test]
    fn a_sleep_is_nearly_as_long_as_it_is_and_never_longer() {
        let mut program = Program::start("blocked", &["epoll_infinite"]);
        let before = Instant::now();
        program.addresses();
        let pid = program.pid();
        wait_until_blocked(pid);
        let blocked = Instant::now();
        std::thread::sleep(Duration::from_millis(300));
        // Its processor may be busy with others just now, and the machine with other machines.
        let mut best = Duration::ZERO;
        for _ in 0..10 {
            let sleeper = Sleeper::of(pid, pid, &mut Clocks::default()).expect("it sleeps");
            assert!(sleeper.since > before, "longer than it lives");
            best = best.max(blocked.saturating_duration_since(sleeper.since));
            let known = blocked.elapsed();
            assert!(sleeper.since.elapsed() + known / 4 > known / 2, "{known:?}");
        }
        println!("{best:?} before it was seen asleep");
    }

    #[test]
    fn the_processors_stay_as_they_were() {
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
