//! The time-stamp counter, which tells code in the target when its time is up.

use std::time::{Duration, Instant};

/// Two reads that are this close together count as one.
const CLOSE: Duration = Duration::from_micros(5);
/// Number of attempts: on some machines a read of the time takes longer.
const TRIES: u32 = 16;

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
        let (began, count) = both();
        Clock { began, count }
    }

    /// Counts per millisecond.
    pub fn rate(&self) -> u64 {
        // The error of reading both clocks is small compared with this.
        while self.began.elapsed().as_micros() < 200 {
            std::hint::spin_loop();
        }
        let (now, count) = both();
        let counted = count.saturating_sub(self.count);
        counted * 1000 / now.duration_since(self.began).as_micros().max(1) as u64
    }
}

/// Reads both clocks at the same moment. A thread that loses its processor between the two reads would measure a rate that is
/// far too low, or too high.
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

/// The time-stamp counter.
pub(crate) fn count() -> u64 {
    // SAFETY: rdtsc reads a counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}
