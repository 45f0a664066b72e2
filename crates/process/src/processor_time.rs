//! Processor time that was used.

use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use std::time::Duration;

/// What all threads of a process have used, those that have ended too. `None` if it is gone. Anybody may ask
/// (`pid_for_clock` in the kernel's posix-cpu-timers.c).
pub fn processor_time(pid: i32) -> Option<Duration> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid)).ok()?;
    Some(clock_gettime(clock).ok()?.into())
}

/// What the calling thread has used.
pub fn own_processor_time() -> Duration {
    let clock = ClockId::CLOCK_THREAD_CPUTIME_ID;
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_time_advances() {
        let all = || processor_time(std::process::id() as i32).expect("we are there");
        let (own, before) = (own_processor_time(), all());
        let mut sum = 0u64;
        // The kernel may count what other threads use only at their next tick, so the sum is behind at times.
        while all() < before + Duration::from_millis(2) {
            sum = std::hint::black_box(sum.wrapping_add(1));
            assert!(own_processor_time() < own + Duration::from_secs(2));
        }
        // No process has it (PID_MAX_LIMIT in the kernel's threads.h).
        assert_eq!(processor_time(1 << 22), None);
    }
}
