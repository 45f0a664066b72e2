//! Size of the slices in which the kernel walks a process's memory. During a slice, threads of the
//! process that map or unmap memory have to wait, so each request should be short. Its duration
//! depends on the machine and on the memory's contents, and is measured continuously.

use memhook_inject::Pace;
use std::time::Duration;

/// Number of consecutive slow slices of the minimum size after which the walk ends. It is too large
/// for waits for a processor to explain all of them.
const MOST_TOO_LONG: u32 = 5;
/// Bytes covered by one page table. Huge pages must not be split.
pub const LEAST_SLICE_BYTES: u64 = 2 << 20;

/// Chooses the size of the next slice.
#[derive(Clone, Debug)]
pub struct LockSlices {
    bytes: u64,
    longest: Duration,
    too_long: u32,
}

impl Default for LockSlices {
    fn default() -> LockSlices {
        LockSlices {
            bytes: LEAST_SLICE_BYTES,
            longest: Duration::ZERO,
            too_long: 0,
        }
    }
}

impl LockSlices {
    /// Returns the end of the slice that begins here, at a multiple of the minimum size unless it
    /// is the last. Returns `None` if even the smallest slices take too long.
    pub fn end_of(&self, start: u64, end: u64) -> Option<u64> {
        let whole = (start + self.bytes) / LEAST_SLICE_BYTES * LEAST_SLICE_BYTES;
        (self.too_long < MOST_TOO_LONG).then_some(whole.min(end))
    }

    /// Records the time that a slice took.
    pub fn took(&mut self, time: Duration) {
        self.longest = self.longest.max(time);
        let is_least = self.bytes == LEAST_SLICE_BYTES;
        self.too_long = if is_least && time > Pace::TOO_LONG {
            self.too_long + 1
        } else {
            0
        };
        let mut expected = time;
        while expected > Pace::AIM && self.bytes > LEAST_SLICE_BYTES {
            (self.bytes, expected) = (self.bytes / 2, expected / 2);
        }
        if time < Pace::AIM / 2 {
            self.bytes = (self.bytes * 2).min(Pace::MOST_BYTES);
        }
    }

    /// Returns the longest time of a slice.
    pub fn longest(&self) -> Duration {
        self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Walks memory in which each 2 MB takes a given time. Returns the time of each slice.
    fn walk(slices: &mut LockSlices, each: &[Duration]) -> Vec<Duration> {
        let (mut at, end) = (0, each.len() as u64 * LEAST_SLICE_BYTES);
        let mut times = Vec::new();
        while at < end {
            let Some(to) = slices.end_of(at, end) else {
                break;
            };
            assert!(to > at && to <= end);
            let parts = (at / LEAST_SLICE_BYTES) as usize..(to / LEAST_SLICE_BYTES) as usize;
            let time = each[parts].iter().sum();
            slices.took(time);
            times.push(time);
            at = to;
        }
        times
    }

    #[test]
    fn slices_keep_to_the_aim() {
        // A page takes 50 ns.
        let each = vec![Duration::from_micros(26); 2000];
        let mut slices = LockSlices::default();
        let times = walk(&mut slices, &each);
        assert_eq!(times.iter().sum::<Duration>(), each.iter().sum());
        assert!(slices.longest() <= 2 * Pace::AIM, "{:?}", slices.longest());
        assert!(times.len() < 400, "{}", times.len());
    }

    #[test]
    fn nothing_is_asked_where_the_smallest_take_too_long() {
        let mut slices = LockSlices::default();
        let each = vec![Duration::from_millis(3); 100];
        assert_eq!(walk(&mut slices, &each).len(), MOST_TOO_LONG as usize);
        assert_eq!(slices.end_of(0, LEAST_SLICE_BYTES), None);
        // A slice that occasionally waits for a processor does not count as slow.
        let mut slices = LockSlices::default();
        let now_and_then = |i| Duration::from_micros(if i % 3 == 0 { 5000 } else { 20 });
        let each: Vec<Duration> = (0..1000).map(now_and_then).collect();
        let times = walk(&mut slices, &each);
        assert_eq!(times.iter().sum::<Duration>(), each.iter().sum());
    }

    #[test]
    fn slices_end_at_page_tables() {
        let slices = LockSlices::default();
        let start = LEAST_SLICE_BYTES / 2;
        assert_eq!(slices.end_of(start, u64::MAX), Some(LEAST_SLICE_BYTES));
        assert_eq!(slices.end_of(start, start + 4096), Some(start + 4096));
    }

    proptest! {
        /// The density of the memory may change arbitrarily. After an empty part, at most one slice
        /// takes too long, and the limit on its size bounds its duration.
        #[test]
        fn no_slice_is_much_longer_than_the_one_before(
            parts in proptest::collection::vec((1usize..200, 0u64..60), 1..20),
        ) {
            let each: Vec<Duration> = parts
                .iter()
                .flat_map(|&(count, micros)| vec![Duration::from_micros(micros); count])
                .collect();
            let times = walk(&mut LockSlices::default(), &each);
            let most = 60 * Pace::MOST_BYTES / LEAST_SLICE_BYTES;
            prop_assert!(times.iter().all(|time| *time <= Duration::from_micros(most)));
            // At a constant density, no two consecutive slices take too long.
            let long = |time: &Duration| *time > 2 * Pace::AIM;
            let in_a_row = times.windows(2).filter(|two| two.iter().all(long)).count();
            prop_assert!(in_a_row <= parts.len(), "{in_a_row}");
            prop_assert_eq!(times.iter().sum::<Duration>(), each.iter().sum());
        }
    }
}
