//! Idle threads.

use crate::restart;
use memhook_process::{self as process, Activity};

/// Maximum number of threads that are examined. In a process with more threads, none is examined, because that would
/// take too long.
const MAX_THREADS: usize = 256;

/// Threads of a process that were asleep at one moment, in system calls that the kernel restarts after a stop.
pub struct IdleThreads {
    pid: i32,
    /// Each thread, and the number of times that it had gone to sleep.
    asleep: Vec<(i32, u64)>,
}

impl IdleThreads {
    /// Examines all threads without stopping them.
    pub fn of(pid: i32) -> IdleThreads {
        let mut tids = process::thread_ids(pid).unwrap_or_default();
        if tids.len() > MAX_THREADS {
            tids.clear();
        }
        let asleep = |tid| Some((tid, sleeps(pid, tid)?));
        IdleThreads {
            pid,
            asleep: tids.into_iter().filter_map(asleep).collect(),
        }
    }

    /// Returns a thread that has not woken up since [`IdleThreads::of`].
    pub fn still_asleep(&self) -> Option<i32> {
        let same = |&&(tid, before): &&(i32, u64)| sleeps(self.pid, tid) == Some(before);
        self.asleep.iter().find(same).map(|&(tid, _)| tid)
    }
}

fn sleeps(pid: i32, tid: i32) -> Option<u64> {
    match Activity::of(pid, tid) {
        Activity::Blocked(nr) if nr >= 0 && !restart::is_disturbed_by_a_stop(nr) => {
            process::sleeps(pid, tid)
        }
        _ => None,
    }
}
