//! Processor time of this process and of its threads. It depends less than elapsed time on other
//! work on the machine.

use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Returns the processor time that all threads of this process have used so far.
pub fn process_cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Runs `work` and returns the processor time that this thread spent on it.
pub fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = now();
    let result = work();
    (now() - start, result)
}
