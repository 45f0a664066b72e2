//! Time stamp counter, which code in the target uses to measure its time limit.

use std::time::{Duration, Instant};

/// Maximum time between two reads that count as simultaneous.
const CLOSE: Duration = Duration::from_micros(5);
/// Number of attempts: on some machines a read of the time takes longer.
const TRIES: u32 = 16;

/// Measurement of the time stamp counter's rate. If the counter is constant, which every x86-64 processor of the last
/// 15 years reports, all processors of a machine count at the same rate.
#[derive(Clone, Copy)]
pub struct Clock {
    began: Instant,
    count: u64,
}

impl Clock {
    /// Begins to measure.
    pub fn start() -> Clock {
        let (began, count) = both();
        Clock { began, count }
    }

    /// Returns the ticks per millisecond.
    pub fn rate(&self) -> u64 {
        // The error of reading both clocks is small in comparison.
        while self.began.elapsed().as_micros() < 200 {
            std::hint::spin_loop();
        }
        let (now, count) = both();
        let counted = count.saturating_sub(self.count);
        counted * 1000 / now.duration_since(self.began).as_micros().max(1) as u64
    }
}

/// Reads both clocks at the same moment. If the thread were preempted between the two reads, the measured rate would be
/// much too low or too high.
fn both() -> (Instant, u64) {
    let read = || {
        let (at, count) = (Instant::now(), count());
        (at.elapsed(), at, count)
    };
    let mut best = read();
    for _ in 1..TRIES {
        if best.0 <= CLOSE {
            break;
        }
        best = best.min(read());
    }
    (best.1, best.2)
}

/// Reads the time stamp counter.
pub(crate) fn count() -> u64 {
    // SAFETY: rdtsc reads a counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}
