//! Amount of work that fits into one hold, estimated from previous holds.

use std::time::{Duration, Instant};

/// Maximum time of a hold of one thread.
const HOLD: Duration = Duration::from_micros(1500);
/// Average length of holds above which the process, or memhook-rs, is assumed to get too little
/// processor time.
const MOST_ON_AVERAGE: Duration = Duration::from_millis(15);
/// Total hold time below which the average proves nothing. A single long hold proves nothing
/// either.
const TELLING: Duration = Duration::from_millis(500);
const FEW_HOLDS: u32 = 3;
/// Maximum rest after a hold. The rest is as long as the hold was, up to this limit.
const MOST_REST: Duration = Duration::from_millis(100);
/// Estimates that are used before anything was measured.
const FIRST_FINISH: Duration = Duration::from_micros(400);
const FIRST_CALLS: usize = 32;

/// Time of one hold, and the work that can be done in it.
pub struct HoldTime {
    /// Time to restore a thread and release it.
    finish: Duration,
    /// Time to check and release a block; `None` if it is not yet known.
    call: Option<Duration>,
    /// Total time and number of all holds so far.
    held: Duration,
    holds: u32,
}

impl HoldTime {
    /// Returns the estimates before the first hold.
    pub fn new() -> HoldTime {
        HoldTime {
            finish: FIRST_FINISH,
            call: None,
            held: Duration::ZERO,
            holds: 0,
        }
    }

    /// Returns the time after which a hold that has lasted `held` at `now` must not make further
    /// calls.
    pub fn end(&self, now: Instant, held: Duration) -> Instant {
        let time = HOLD.saturating_sub(self.finish);
        now + time.saturating_sub(held)
    }

    /// Returns the number of blocks to check in one step with this much time left. It is limited
    /// because checking blocks that are not released afterwards wastes time.
    pub fn fitting(&self, left: Duration, most: usize) -> usize {
        let count = match self.call {
            None => FIRST_CALLS,
            Some(call) => (left.as_nanos() / call.as_nanos().max(1)) as usize,
        };
        count.clamp(1, most)
    }

    /// Records that `count` blocks took this time.
    pub fn called(&mut self, count: usize, took: Duration) {
        let call = took / count.max(1) as u32;
        self.call = Some(match self.call {
            Some(before) => (before + call) / 2,
            None => call,
        });
    }

    /// Records the length of a hold. Returns the time for which the threads must be left alone.
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

    /// Records the time from the last call to the release of the thread. A very long time means
    /// that the thread waited for a processor, and does not predict the next hold.
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
        // However slow the finish was, half of the time remains for calls.
        (0..40).for_each(|_| time.finished(90_000 * MICROSECOND));
        assert!(time.end(now, Duration::ZERO) - now >= HOLD / 2);
        assert_eq!(time.end(now, HOLD), now);
    }
}
