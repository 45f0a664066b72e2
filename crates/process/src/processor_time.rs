//! Processors, and the time used on them.

use nix::sched::{CpuSet, sched_getaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use std::time::Duration;

/// Returns the processor time of all threads of a process, including those that have ended. `None` if the process is
/// gone. No privileges are needed (`pid_for_clock` in the kernel's posix-cpu-timers.c).
pub fn processor_time(pid: i32) -> Option<Duration> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid)).ok()?;
    Some(clock_gettime(clock).ok()?.into())
}

/// Returns the number of processors that the first thread of a process may run on. `None` if the process is gone.
pub fn allowed_processors(pid: i32) -> Option<usize> {
    let set = sched_getaffinity(Pid::from_raw(pid)).ok()?;
    let is_allowed = |processor: &usize| set.is_set(*processor).unwrap_or(false);
    Some((0..CpuSet::count()).filter(is_allowed).count())
}

/// Returns the processor time of the calling thread.
pub fn own_processor_time() -> Duration {
    let clock = ClockId::CLOCK_THREAD_CPUTIME_ID;
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}

/// Returns the processor time of a thread of this process; `None` if it has ended.
pub fn thread_processor_time(tid: i32) -> Option<Duration> {
    /// CPUCLOCK_PERTHREAD_MASK and CPUCLOCK_SCHED (posix-timers.h of the kernel).
    const OF_THREAD: i32 = 4 | 2;
    let clock = ClockId::from_raw((!tid << 3) | OF_THREAD);
    Some(clock_gettime(clock).ok()?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_time_advances() {
        let all = || processor_time(std::process::id() as i32).expect("we are there");
        let (own, before) = (own_processor_time(), all());
        let mut sum = 0u64;
        // The kernel may count the time of other threads only at their next tick, so the sum may lag.
        while all() < before + Duration::from_millis(2) {
            sum = std::hint::black_box(sum.wrapping_add(1));
            // Time taken by a hypervisor may count as this thread's.
            assert!(own_processor_time() < own + Duration::from_secs(60));
        }
        // No process has this id (PID_MAX_LIMIT in the kernel's threads.h).
        assert_eq!(processor_time(1 << 22), None);
    }

    #[test]
    fn another_thread_is_measured_by_itself() {
        let (to, from) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            let mut sum = 0u64;
            while own_processor_time() < Duration::from_millis(3) {
                sum = std::hint::black_box(sum.wrapping_add(1));
            }
            let tell = || to.send((nix::unistd::gettid().as_raw(), own_processor_time()));
            tell().expect("heard");
            let _ = ends.recv();
            tell().expect("heard");
        });
        let (tid, used) = from.recv().expect("told");
        let seen = thread_processor_time(tid).expect("it waits");
        drop(end);
        let (_, after) = from.recv().expect("told");
        assert!((used..=after).contains(&seen));
        other.join().expect("ended");
        // The kernel forgets a thread shortly after it was joined.
        while thread_processor_time(tid).is_some() {
            std::thread::yield_now();
        }
        assert_eq!(thread_processor_time(1 << 22), None);
    }
}
