//! When a limit is reached if the use of memory goes on growing as it does.

use std::collections::VecDeque;
use std::time::Duration;

/// Window of the forecast: two halves, in both of which the use must grow.
const WINDOW: Duration = Duration::from_secs(10);
/// Between two samples.
const PAUSE: Duration = Duration::from_millis(500);
/// A limit that is farther away is no reason for an alarm.
const HORIZON: Duration = Duration::from_secs(60);

/// Follows the use of memory below one limit.
#[derive(Debug, Default)]
pub struct GrowthForecast {
    /// Time and bytes in use, the oldest first.
    samples: VecDeque<(Duration, u64)>,
    limit: u64,
    /// The next alarm is due when so little time is left.
    next: Option<Duration>,
}

impl GrowthForecast {
    /// Takes a sample; the time that is left until the limit is reached, if that is an alarm: the first one when it
    /// is a minute, and each further one when it is half of that of the one before.
    pub fn look(&mut self, now: Duration, used: u64, limit: u64) -> Option<Duration> {
        if limit != self.limit {
            *self = GrowthForecast {
                limit,
                ..GrowthForecast::default()
            };
        }
        if let Some((last, _)) = self.samples.back()
            && now.saturating_sub(*last) < PAUSE
        {
            return None;
        }
        self.samples.push_back((now, used));
        while self
            .samples
            .get(1)
            .is_some_and(|(time, _)| now.saturating_sub(*time) >= WINDOW)
        {
            self.samples.pop_front();
        }
        let left = self.time_left();
        let Some(left) = left.filter(|left| *left <= HORIZON) else {
            // It has stopped growing, or a lot was released.
            if left.is_none_or(|left| left > 2 * HORIZON) {
                self.next = None;
            }
            return None;
        };
        if self.next.is_some_and(|next| left > next) {
            return None;
        }
        self.next = Some(left / 2);
        Some(left)
    }

    /// By the slower half of the window; `None` if that does not grow, or is not full.
    fn time_left(&self) -> Option<Duration> {
        let (first, last) = (*self.samples.front()?, *self.samples.back()?);
        if last.0.saturating_sub(first.0) < WINDOW {
            return None;
        }
        let middle = *self.samples.get(self.samples.len() / 2)?;
        let rate = |(from, before): (Duration, u64), (to, after): (Duration, u64)| {
            let seconds = to.saturating_sub(from).as_secs_f64();
            let more = after.checked_sub(before)? as f64;
            (seconds > 0.0 && more > 0.0).then(|| more / seconds)
        };
        let slower = rate(first, middle)?.min(rate(middle, last)?);
        let seconds = self.limit.saturating_sub(last.1) as f64 / slower;
        Duration::try_from_secs_f64(seconds).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The alarms of a program that uses so much at each half second: when, and what was left.
    fn alarms(used: impl Iterator<Item = u64>, limit: u64) -> Vec<(f64, f64)> {
        let mut forecast = GrowthForecast::default();
        let mut found = Vec::new();
        for (half_second, used) in (0u32..).zip(used) {
            let now = PAUSE * half_second;
            if let Some(left) = forecast.look(now, used, limit) {
                found.push((now.as_secs_f64(), left.as_secs_f64().round()));
            }
        }
        found
    }

    #[test]
    fn a_minute_before_the_limit_and_then_each_time_half_of_it_is_gone() {
        // 10 MiB a second, and 1,000 MiB are the limit.
        let leak = (0..200).map(|at| at * 5 * MIB);
        let found = alarms(leak, 1000 * MIB);
        assert_eq!(found[..3], [(40.0, 60.0), (70.0, 30.0), (85.0, 15.0)]);
    }

    #[test]
    fn what_stands_still_or_comes_at_once_is_no_growth() {
        assert_eq!(alarms((0..100).map(|_| 900 * MIB), 1000 * MIB), []);
        // All in one second, and then nothing.
        let burst = (0..100).map(|at: u64| at.min(2) * 300 * MIB);
        assert_eq!(alarms(burst, 1000 * MIB), []);
        // It goes up and down.
        let waves = (0..100).map(|at: u64| (500 + at % 7 * 50) * MIB);
        assert_eq!(alarms(waves.clone(), 100_000 * MIB), []);
        // Slow growth, with two hours left.
        let slow = (0..100).map(|at: u64| 100 * MIB + at * 65_536);
        assert_eq!(alarms(slow, 1000 * MIB), []);
    }
}
