//! Speed at which a backlog is sent. When a store becomes available again after an outage of an
//! hour, the hosts must not all send it the profiles of that hour at once.

use std::time::Duration;

/// Factor by which a backlog is sent faster than it grew.
const SPEED: u32 = 10;
/// Maximum time in which a backlog is sent.
const LONGEST: Duration = Duration::from_secs(300);
/// Age below which a request is not part of a backlog.
const FRESH: Duration = Duration::from_secs(30);

/// Contents of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Number of requests.
    pub count: usize,
    /// Age of the oldest request.
    pub oldest: Duration,
    /// Times at which the oldest and the newest request were queued. The newest has the larger
    /// number.
    pub stamps: (u64, u64),
}

/// The backlog of one store.
#[derive(Debug, Default)]
pub struct Backlog {
    /// The last request of the backlog, and the mean pause before each request.
    paced: Option<(u64, Duration)>,
}

impl Backlog {
    /// Returns the mean pause before the next request, now that the store accepts requests.
    /// Requests that arrive while a backlog is sent wait for it, and form a smaller backlog.
    pub fn pause(&mut self, queued: Option<Queued>) -> Duration {
        let Some(queued) = queued else {
            self.paced = None;
            return Duration::ZERO;
        };
        let (oldest, newest) = queued.stamps;
        if self.paced.is_none_or(|(last, _)| oldest > last) {
            let time = (queued.oldest / SPEED).min(LONGEST);
            let each = time / u32::try_from(queued.count.max(1)).unwrap_or(u32::MAX);
            self.paced = (queued.oldest >= FRESH).then_some((newest, each));
        }
        self.paced.map_or(Duration::ZERO, |(_, each)| each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a store that becomes available again after an hour. Returns the time until the
    /// queue is empty, and the maximum number of requests within a second.
    fn sent(away: Duration, every: Duration) -> (Duration, u32) {
        let ms = |time: Duration| time.as_millis() as u64;
        let mut backlog = Backlog::default();
        // A request is queued at each multiple of `every`, starting at 0. `first` is the oldest
        // request still in the queue.
        let (mut now, mut first) = (away, 0u64);
        let mut of_second = std::collections::BTreeMap::<u64, u32>::new();
        loop {
            let made = ms(now) / ms(every) + 1;
            let queued = (first < made).then(|| Queued {
                count: (made - first) as usize,
                oldest: now - every * first as u32,
                stamps: (first, made - 1),
            });
            let pause = backlog.pause(queued);
            if queued.is_none() {
                break;
            }
            now += pause;
            first += 1;
            *of_second.entry(now.as_secs()).or_default() += 1;
        }
        let most = of_second.values().copied().max().unwrap_or(0);
        (now - away, most)
    }

    #[test]
    fn an_hour_is_sent_within_minutes_and_not_at_once() {
        let second = Duration::from_secs(1);
        // Ten targets every 15 s, and two hundred targets.
        for every in [Duration::from_millis(1500), Duration::from_millis(75)] {
            let (took, most) = sent(3600 * second, every);
            assert!(took > 300 * second && took < 400 * second, "{took:?}");
            // The requests of the hour are sent within five minutes. At the end, the requests of
            // the last half minute follow without pauses.
            let of_a_second = second.as_millis() as u32 / every.as_millis() as u32;
            let at_once = (FRESH.as_millis() / every.as_millis()) as u32;
            assert!(most <= 14 * (of_a_second + 1) + at_once, "{most}");
        }
    }

    #[test]
    fn what_is_fresh_is_sent_at_once() {
        let mut backlog = Backlog::default();
        let queued = |count, seconds, stamps| {
            Some(Queued {
                count,
                oldest: Duration::from_secs(seconds),
                stamps,
            })
        };
        assert_eq!(backlog.pause(None), Duration::ZERO);
        assert_eq!(backlog.pause(queued(9, 20, (1, 9))), Duration::ZERO);
        // A minute of 60 requests is sent within six seconds, regardless of the requests that
        // arrive meanwhile.
        let each = Duration::from_millis(100);
        assert_eq!(backlog.pause(queued(60, 60, (10, 70))), each);
        assert_eq!(backlog.pause(queued(90, 61, (11, 101))), each);
        // The last request of the backlog is sent, and then the following ones.
        assert_eq!(backlog.pause(queued(20, 7, (70, 101))), each);
        assert_eq!(backlog.pause(queued(19, 6, (71, 101))), Duration::ZERO);
    }
}
