//! The time-stamp counter, by which code in the target knows when its time is up.

use std::time::Instant;

/// Measures how fast the time-stamp counter runs. All CPUs of one machine count alike where the
/// counter is constant, which every x86-64 CPU of the last 15 years says.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    began: Instant,
    count: u64,
}

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock {
            began: Instant::now(),
            count: count(),
        }
    }

    /// Counts per millisecond.
    pub(crate) fn rate(&self) -> u64 {
        // Any error of reading both clocks is small against this.
        while self.began.elapsed().as_micros() < 200 {
            std::hint::spin_loop();
        }
        let counted = count().saturating_sub(self.count);
        counted * 1000 / self.began.elapsed().as_micros() as u64
    }
}

/// The time-stamp counter.
pub(crate) fn count() -> u64 {
    // SAFETY: rdtsc reads a counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}
