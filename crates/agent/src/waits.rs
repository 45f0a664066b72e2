//! Time that a target's threads wait for a processor. A target that hardly runs, for example
//! because its control group's quota is used up, has no time to spare for tracing.

use memhook_process::{SchedulingFile, sleeps, thread_ids, thread_state};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Ratio of waiting time to running time at which a process counts as starved.
const WAITS_PER_RUN: u32 = 9;
/// Minimum length of a significant wait. Many short waits are normal on a busy machine.
const LONG_WAIT: Duration = Duration::from_millis(10);
/// Minimum sum of waits that is significant.
const TELLING: Duration = Duration::from_millis(200);
/// Maximum number of threads that are examined.
const MOST_THREADS: usize = 256;

/// Scheduling figures of a thread since its start.
#[derive(Clone, Copy, Default)]
struct Life {
    ran: Duration,
    waited: Duration,
    turns: u64,
    /// Number of the thread's sleeps; `None` if it sleeps now.
    awake_after: Option<u64>,
}

/// Scheduling figures of each thread.
pub struct Waits {
    at: Instant,
    threads: BTreeMap<i32, Life>,
}

impl Waits {
    /// Returns the scheduling figures of a process's threads so far; empty if the kernel does not
    /// keep them.
    pub fn of(pid: i32) -> Waits {
        let threads = thread_ids(pid).unwrap_or_default().into_iter();
        let figures = threads.take(MOST_THREADS).filter_map(|tid| {
            let figures = SchedulingFile::of(pid, tid)?.read()?;
            let life = Life {
                ran: figures.ran()?,
                waited: figures.waited()?,
                turns: figures.turns()?,
                awake_after: (thread_state(pid, tid) == Some('R'))
                    .then(|| sleeps(pid, tid))
                    .flatten(),
            };
            Some((tid, life))
        });
        Waits {
            at: Instant::now(),
            threads: figures.collect(),
        }
    }

    /// Returns true if the threads that are in both readings have waited for too long between them.
    pub fn show_starvation_since(&self, before: &Waits) -> bool {
        let mut all = Life::default();
        for (tid, now) in &self.threads {
            let Some(then) = before.threads.get(tid) else {
                continue;
            };
            let ran = now.ran.saturating_sub(then.ran);
            let mut waited = now.waited.saturating_sub(then.waited);
            // The kernel counts a wait only at its end, and a wait may last for seconds. (A control
            // group is charged for time that a hypervisor stole from its processor, and may
            // therefore have to wait.) So for a thread that has not slept, all time in which it did
            // not run counts as a wait.
            if now.awake_after.is_some() && now.awake_after == then.awake_after {
                let elapsed = self.at.saturating_duration_since(before.at);
                waited = waited.max(elapsed.saturating_sub(ran));
            }
            all.ran += ran;
            all.waited += waited;
            all.turns += now.turns.saturating_sub(then.turns);
        }
        let in_turns = LONG_WAIT.as_nanos() * u128::from(all.turns);
        all.waited >= TELLING
            && all.waited > all.ran * WAITS_PER_RUN
            && all.waited.as_nanos() > in_turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns sleeping threads with their running and waiting times in milliseconds, and their
    /// numbers of turns.
    fn waits(threads: &[(i32, u64, u64, u64)]) -> Waits {
        let threads = threads.iter().map(|&(tid, ran, waited, turns)| {
            let life = Life {
                ran: Duration::from_millis(ran),
                waited: Duration::from_millis(waited),
                turns,
                awake_after: None,
            };
            (tid, life)
        });
        Waits {
            at: Instant::now(),
            threads: threads.collect(),
        }
    }

    #[test]
    fn a_wait_that_has_not_ended_counts() {
        let of = |awake_after, at, ran| {
            let mut waits = waits(&[(1, ran, 1000, 10)]);
            waits.at += Duration::from_millis(at);
            waits.threads.get_mut(&1).expect("there").awake_after = awake_after;
            waits
        };
        for (then, now, ran, is_starved) in [
            (Some(7), Some(7), 0, true),
            // The thread's last turn was short.
            (Some(7), Some(7), 50, true),
            (Some(7), Some(7), 500, false),
            // The thread is asleep, or has slept since the previous reading.
            (Some(7), None, 0, false),
            (None, Some(7), 0, false),
            (None, None, 0, false),
            (Some(7), Some(8), 0, false),
        ] {
            let (before, after) = (of(then, 0, 100), of(now, 1000, 100 + ran));
            assert_eq!(after.show_starvation_since(&before), is_starved);
        }
        // The time is too short to prove anything.
        assert!(!of(Some(7), 150, 100).show_starvation_since(&of(Some(7), 0, 100)));
    }

    #[test]
    fn long_waits_for_few_turns_are_starvation() {
        let before = waits(&[(1, 100, 1000, 10), (2, 100, 5000, 10)]);
        for (after, is_starved) in [
            // Nothing has changed.
            (waits(&[(1, 100, 1000, 10), (2, 100, 5000, 10)]), false),
            // The quota is a twentieth of each 100 ms, on a machine where other threads also
            // interrupt the thread.
            (waits(&[(1, 150, 1950, 40), (2, 100, 5000, 10)]), true),
            // The thread waits all the time, without a single turn.
            (waits(&[(1, 100, 2000, 10), (2, 100, 5000, 10)]), true),
            // There are six threads for each processor.
            (waits(&[(1, 266, 1833, 60), (2, 266, 5833, 60)]), false),
            // There are many short waits.
            (waits(&[(1, 120, 1500, 200), (2, 120, 5500, 200)]), false),
            // There is one short wait.
            (waits(&[(1, 100, 1150, 11), (2, 100, 5000, 10)]), false),
            // There is a new thread.
            (waits(&[(1, 100, 1000, 10), (3, 0, 9000, 1)]), false),
        ] {
            assert_eq!(after.show_starvation_since(&before), is_starved);
        }
    }

    #[test]
    fn this_process_is_seen() {
        let own = Waits::of(std::process::id() as i32);
        assert!(own.threads.len() <= MOST_THREADS);
        assert!(!own.show_starvation_since(&own));
    }
}
