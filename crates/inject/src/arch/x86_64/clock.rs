//! The time-stamp counter, which tells code in the target when its time is up.

use std::time::Instant;

/// Measures how fast the time-stamp counter runs. All processors of a machine count alike if the
/// counter is constant, which every x86-64 processor of the last 15 years says of itself.
#[derive(Clone, Copy)]
pub struct Clock {
    began: Instant,
    count: u64,
}

impl Clock {
    /// Begins to measure.
    pub fn start() -> Clock {
        Clock {
            began: Instant::now(),
            count: count(),
        }
    }

    /// Counts per millisecond.
    pub fn rate(&self) -> u64 {
        // The error of reading both clocks is small compared with this.
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
