//! Amount of work that fits into one hold, from the holds before.

use std::time::{Duration, Instant};

/// One thread is to be held no longer than this.
const HOLD: Duration = Duration::from_micros(1500);
/// Holds that last longer than this on average are those of a process, or by one, that gets next to no processor time.
const MOST_ON_AVERAGE: Duration = Duration::from_millis(15);
/// Less time in all proves nothing, and neither does one that was long.
const TELLING: Duration = Duration::from_millis(500);
const FEW_HOLDS: u32 = 3;
/// A thread is left alone after a hold for as long as that has lasted, and for no longer than this.
const MOST_REST: Duration = Duration::from_millis(100);
/// Guesses before anything was measured.
const FIRST_FINISH: Duration = Duration::from_micros(400);
const FIRST_CALLS: usize = 32;

/// The time of one hold, and what can be done in it.
pub struct HoldTime {
    /// Time to restore a thread and release it.
    finish: Duration,
    /// Time to check and release a block; `None` if it is not yet known.
    call: Option<Duration>,
    /// All holds so far, and how many.
    held: Duration,
    holds: u32,
}

impl HoldTime {
    /// Before the first hold.
    pub fn new() -> HoldTime {
        HoldTime {
            finish: FIRST_FINISH,
            call: None,
            held: Duration::ZERO,
            holds: 0,
        }
    }

    /// When no more calls are to be made in a hold that has lasted so long at `now`.
    pub fn end(&self, now: Instant, held: Duration) -> Instant {
        let time = HOLD.saturating_sub(self.finish);
        now + time.saturating_sub(held)
    }

    /// Returns how many blocks to check at once with this much time left: checking blocks that are then not released
    /// wastes time.
    pub fn fitting(&self, left: Duration, most: usize) -> usize {
        let count = match self.call {
            None => FIRST_CALLS,
            Some(call) => (left.as_nanos() / call.as_nanos().max(1)) as usize,
        };
        count.clamp(1, most)
    }

    /// So many blocks took this time.
    pub fn called(&mut self, count: usize, took: Duration) {
        let call = took / count.max(1) as u32;
        self.call = Some(match self.call {
            Some(before) => (before + call) / 2,
            None => call,
        });
    }

    /// A hold lasted so long. Returns for how long to leave the threads alone.
    pub fn held(&mut self, lasted: Duration) -> Duration {
        self.held += lasted;
        self.holds += 1;
        if lasted <= MOST_ON_AVERAGE {
            return Duration::ZERO;
        }
        lasted.min(MOST_REST)
    }

    /// Returns the average length of holds, if it shows that there is no time for more of them.
    pub fn starvation(&self) -> Option<Duration> {
        let average = self.held / self.holds.max(1);
        let is_telling = self.held >= TELLING && self.holds > FEW_HOLDS;
        (is_telling && average > MOST_ON_AVERAGE).then_some(average)
    }

    /// From the last call until the thread was let go. What takes very long was waiting for a processor,
    /// which says nothing of the next time.
    pub fn finished(&mut self, took: Duration) {
        self.finish = (self.finish + took.min(HOLD / 2)) / 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROSECOND: Duration = Duration::from_micros(1);

    #[test]
    fn what_fits_follows_what_was_measured() {
        let mut time = HoldTime::new();
        assert_eq!(time.fitting(HOLD, 500), FIRST_CALLS);
        time.called(32, 64 * MICROSECOND);
        assert_eq!(time.fitting(100 * MICROSECOND, 500), 50);
        assert_eq!(time.fitting(HOLD, 500), 500);
        assert_eq!(time.fitting(Duration::ZERO, 500), 1);
        time.called(1, 198 * MICROSECOND);
        assert_eq!(time.fitting(HOLD, 500), 15);
    }

    #[test]
    fn long_holds_show_starvation() {
        let after = |holds: u32, lasted: Duration, then: Duration| {
            let mut time = HoldTime::new();
            let rests = (0..holds).map(|_| time.held(lasted)).max();
            time.held(then);
            (rests.unwrap_or_default(), time.starvation())
        };
        let ms = Duration::from_millis;
        assert_eq!(after(1000, ms(2), ms(900)), (ms(0), None));
        assert_eq!(after(2, ms(2), ms(900)), (ms(0), None));
        assert_eq!(after(10, ms(20), ms(20)), (ms(20), None));
        assert_eq!(after(30, ms(20), ms(20)), (ms(20), Some(ms(20))));
        assert_eq!(after(4, ms(300), ms(300)), (MOST_REST, Some(ms(300))));
    }

    #[test]
    fn the_way_out_is_part_of_the_hold() {
        let mut time = HoldTime::new();
        let now = Instant::now();
        assert_eq!(time.end(now, 100 * MICROSECOND) - now, 1000 * MICROSECOND);
        time.finished(600 * MICROSECOND);
        assert_eq!(time.end(now, 100 * MICROSECOND) - now, 900 * MICROSECOND);
        // However slow it was, half of the time is for calls.
        (0..40).for_each(|_| time.finished(90_000 * MICROSECOND));
        assert!(time.end(now, Duration::ZERO) - now >= HOLD / 2);
        assert_eq!(time.end(now, HOLD), now);
    }
}
