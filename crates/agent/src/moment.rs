//! Moments that remain meaningful for the next agent.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A moment since the machine was started. Ages follow a clock that cannot be set
/// (`CLOCK_BOOTTIME`, clock_gettime(2)). The time of day is used only for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// Milliseconds since the start of the machine.
    since_boot_ms: u64,
    /// Milliseconds since 1970, by the clock at that time.
    pub unix_ms: u64,
}

impl Moment {
    /// Returns the current moment.
    pub fn now() -> Moment {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        Moment {
            since_boot_ms: since_boot_ms(),
            unix_ms: unix.map_or(0, |time| time.as_millis() as u64),
        }
    }

    /// Returns the time since this moment. A moment in the future has age 0, because it is forged
    /// or comes from another time namespace.
    pub fn age(&self) -> Duration {
        Duration::from_millis(since_boot_ms().saturating_sub(self.since_boot_ms))
    }
}

fn since_boot_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_do_not_follow_the_time_of_day() {
        let now = Moment::now();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        let unix_ms = unix.expect("after 1970").as_millis() as u64;
        assert!(now.unix_ms <= unix_ms && now.unix_ms + 60_000 > unix_ms);
        let earlier = Moment {
            since_boot_ms: now.since_boot_ms - 5000,
            // The clock was set back by an hour.
            unix_ms: now.unix_ms + 3_600_000,
        };
        assert!(
            earlier.age() >= Duration::from_secs(5) && earlier.age() < Duration::from_secs(3600)
        );
        let to_come = Moment {
            since_boot_ms: u64::MAX,
            unix_ms: 0,
        };
        assert_eq!(to_come.age(), Duration::ZERO);
    }
}
