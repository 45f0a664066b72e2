//! Forecast of when growing memory use will reach a limit.

use std::collections::VecDeque;
use std::time::Duration;

/// Window of the forecast. Memory use must grow in both of its halves.
const WINDOW: Duration = Duration::from_secs(10);
/// Time between two samples.
const PAUSE: Duration = Duration::from_millis(500);
/// Forecast time within which a limit causes an alarm.
const HORIZON: Duration = Duration::from_secs(60);

/// Memory use below one limit.
#[derive(Debug, Default)]
pub struct GrowthForecast {
    /// Time and used bytes, the oldest first.
    samples: VecDeque<(Duration, u64)>,
    limit: u64,
    /// Remaining time at which the next alarm is due.
    next: Option<Duration>,
}

impl GrowthForecast {
    /// Takes a sample. Returns the time until the limit is reached if an alarm is due. The first alarm is due when one
    /// minute remains, and each further alarm when the remaining time has halved since the last alarm.
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
            // The use has stopped growing, or much was released.
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

    /// Returns the remaining time, extrapolated from the half of the window that grows more slowly; `None` if that half
    /// does not grow, or if the window is not full.
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

    /// Returns the alarms (time, remaining time) for a program whose memory use has these values at half-second
    /// intervals.
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
        // 10 MiB a second, with a limit of 1,000 MiB.
        let leak = (0..200).map(|at| at * 5 * MIB);
        let found = alarms(leak, 1000 * MIB);
        assert_eq!(found[..3], [(40.0, 60.0), (70.0, 30.0), (85.0, 15.0)]);
    }

    #[test]
    fn what_stands_still_or_comes_at_once_is_no_growth() {
        assert_eq!(alarms((0..100).map(|_| 900 * MIB), 1000 * MIB), []);
        // All growth within one second, then none.
        let burst = (0..100).map(|at: u64| at.min(2) * 300 * MIB);
        assert_eq!(alarms(burst, 1000 * MIB), []);
        // Up and down.
        let waves = (0..100).map(|at: u64| (500 + at % 7 * 50) * MIB);
        assert_eq!(alarms(waves.clone(), 100_000 * MIB), []);
        // Slow growth, with two hours left.
        let slow = (0..100).map(|at: u64| 100 * MIB + at * 65_536);
        assert_eq!(alarms(slow, 1000 * MIB), []);
    }
}
