//! Checks whether this thread gets processor time promptly enough to hold a thread.
//!
//! A stopped thread waits until its holder has had enough processor time for its work. If that may take a long time,
//! for example in a control group with a small quota, no thread is held. Before a hold, the holding thread waits until
//! it has been scheduled promptly for some time. If this does not happen, the hold fails. The watchdog handles what
//! cannot be foreseen.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::Error;
use crate::urgency::Urgency;
use memhook_process::SchedulingFile;
use tracing::debug;

/// Longest wait for a turn on a processor at which a thread does not yet count as starved. On a busy machine, a thread
/// waits about ten milliseconds for each turn.
const MOST_PER_TURN: Duration = Duration::from_millis(50);
/// Total wait below which no conclusion is drawn.
const TELLING: Duration = Duration::from_millis(200);
/// Period in which waits count.
const RECENT: Duration = Duration::from_secs(10);
/// Time for which the thread must be scheduled promptly before it may hold a thread, as a multiple of its wait for one
/// turn.
const CALM_PER_WAIT: u32 = 10;
/// Upper limit of that time.
const CALM_MAX: Duration = Duration::from_secs(30);
/// Length of each sleep in the check, in which the thread alternately sleeps and works. The check uses less than a
/// twentieth of a processor; with such a share, a hold makes progress.
const SLEEP: Duration = Duration::from_millis(10);
const WORK: Duration = Duration::from_micros(200);

thread_local! {
    static LAST: Cell<Option<Reading>> = const { Cell::new(None) };
}

/// Scheduling figures of the calling thread up to some moment.
#[derive(Clone, Copy)]
struct Reading {
    at: Instant,
    waited: Duration,
    turns: u64,
}

impl Reading {
    /// Returns `None` if the kernel keeps no such figures.
    fn now() -> Option<Reading> {
        // SAFETY: no pointers.
        let tid = unsafe { libc::gettid() };
        let figures = SchedulingFile::of(std::process::id() as i32, tid)?.read()?;
        Some(Reading {
            at: Instant::now(),
            waited: figures.waited()?,
            turns: figures.turns()?,
        })
    }
}

/// Forgets the calling thread's older figures. Call this before the last work that precedes a hold.
pub(crate) fn observe() {
    if LAST.get().is_some_and(|last| last.at.elapsed() > RECENT) {
        LAST.set(Reading::now());
    }
}

/// Returns the calling thread's wait per turn since the last call, or since the thread began; `None` if it is not
/// starved.
fn starved_for() -> Option<Duration> {
    let now = Reading::now();
    let last = LAST.replace(now);
    let now = now?;
    let before = last.map_or((Duration::ZERO, 0), |last| (last.waited, last.turns));
    wait_per_turn(
        now.waited.saturating_sub(before.0),
        now.turns.saturating_sub(before.1),
    )
}

fn wait_per_turn(waited: Duration, turns: u64) -> Option<Duration> {
    let turns = u32::try_from(turns).unwrap_or(u32::MAX).max(1);
    let each = waited / turns;
    (waited >= TELLING && each >= MOST_PER_TURN).then_some(each)
}

/// Waits until this thread can expect a processor whenever it needs one. On most machines, this returns immediately.
/// Fails if that is not the case by `until`. Returns true if it had to wait, which means that earlier facts about the
/// process are outdated.
pub(crate) fn wait_for_a_processor(pid: i32, until: Instant) -> Result<bool, Error> {
    let Some(mut wait) = starved_for() else {
        return Ok(false);
    };
    // If the thread already has real-time priority, its scheduling as an ordinary thread does not matter.
    if Urgency::begin().is_raised() {
        return Ok(false);
    }
    debug!(
        pid,
        ?wait,
        "no thread is held as long as this one is starved"
    );
    let mut calm_at = Instant::now() + calm_after(wait);
    while Instant::now() < calm_at {
        if calm_at > until {
            LAST.set(Reading::now());
            return Err(Error::Starved { pid, wait });
        }
        let late = sleep_and_work();
        if late >= MOST_PER_TURN {
            wait = wait.max(late);
            calm_at = Instant::now() + calm_after(wait);
        }
    }
    LAST.set(Reading::now());
    Ok(true)
}

fn calm_after(wait: Duration) -> Duration {
    wait.saturating_mul(CALM_PER_WAIT).min(CALM_MAX)
}

/// Sleeps and works with the priority of a hold. Returns the excess of the elapsed time over the expected time.
fn sleep_and_work() -> Duration {
    let _urgency = Urgency::begin();
    let begin = Instant::now();
    std::thread::sleep(SLEEP);
    let awake = Instant::now();
    while awake.elapsed() < WORK {
        std::hint::spin_loop();
    }
    begin.elapsed().saturating_sub(SLEEP + WORK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_waits_for_single_turns_are_starvation() {
        let ms = Duration::from_millis;
        // A busy machine.
        assert_eq!(wait_per_turn(ms(3000), 200), None);
        // A short look.
        assert_eq!(wait_per_turn(ms(150), 1), None);
        // A hundredth of a processor, and no turn at all.
        assert_eq!(wait_per_turn(ms(3000), 30), Some(ms(100)));
        assert_eq!(wait_per_turn(ms(28_000), 0), Some(ms(28_000)));
        assert_eq!(calm_after(ms(100)), ms(1000));
        assert_eq!(calm_after(ms(28_000)), CALM_MAX);
    }

    #[test]
    fn whoever_gets_its_turns_does_not_wait() {
        let until = Instant::now() + Duration::from_secs(60);
        // The deadline has already passed. On a busy machine, the thread may not be scheduled promptly at first.
        while !matches!(wait_for_a_processor(1, Instant::now()), Ok(false)) {
            assert!(Instant::now() < until, "it waits");
            std::thread::sleep(SLEEP);
        }
    }
}
