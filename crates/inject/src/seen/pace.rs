//! Pacing of requests that make the kernel walk a process's memory. Threads of the process that map or unmap memory
//! have to wait during a request, so requests are short, with pauses in between.

use std::ops::Range;
use std::time::{Duration, Instant};

/// A request shorter than this must have covered mostly unpopulated memory.
const QUICK: Duration = Duration::from_micros(100);
const MOST_QUICK_BYTES: u64 = 1 << 30;

const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Ranges closer together than this are combined into one request: walking the gap costs hardly more than a separate
/// request.
const NEAR_BYTES: u64 = 2 << 20;

/// Merges nearby ranges, given in order, including the gaps between them.
pub fn with_gaps(ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match found.last_mut() {
            Some(last) if range.start.saturating_sub(last.end) <= NEAR_BYTES => {
                last.end = last.end.max(range.end);
            }
            _ => found.push(range),
        }
    }
    found
}

/// Pacing of requests for any number of ranges. If a lock is retaken immediately, threads that are waiting for it do
/// not get it (`rwsem_down_read_slowpath` of kernel/locking/rwsem.c lets readers overtake them for 4 ms).
#[derive(Debug, Default)]
pub struct Pace {
    /// Duration of the requests since the last pause.
    since_pause: Duration,
}

impl Pace {
    /// Desired duration of a request.
    pub const AIM: Duration = Duration::from_micros(500);
    /// Upper limit of a request's duration. A longer request may also have waited for a lock or for a processor.
    pub const TOO_LONG: Duration = Duration::from_millis(2);
    /// Largest request. Empty memory, which is walked quickly, may be followed by populated memory.
    pub const MOST_BYTES: u64 = 64 << 20;

    /// Size up to which a mapping, including its room to grow, is released as a whole. If it were released in slices,
    /// it would temporarily consist of two mappings, and mremap(2) refuses a range that spans two. Releasing a larger
    /// mapping as a whole would make threads wait for longer than a hold.
    const MOST_WHOLE_BYTES: u64 = 320 << 20;

    /// Releases a mapping. Only a large mapping is released in slices, paced as in [`Pace::in_slices`].
    pub fn let_go<E>(
        &mut self,
        mapping: Range<u64>,
        mut ask: impl FnMut(Range<u64>) -> Result<(), E>,
    ) -> Result<(), E> {
        if mapping.end.saturating_sub(mapping.start) > Pace::MOST_WHOLE_BYTES {
            return self.in_slices(mapping, ask);
        }
        self.ask(|| ask(mapping))
    }

    /// Makes a request and measures it.
    pub fn ask<T>(&mut self, ask: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let answer = ask();
        if let Some(pause) = self.took(begin.elapsed()) {
            std::thread::sleep(pause);
        }
        answer
    }

    /// Returns the pause after requests of this duration: as long as they held the locks, within limits.
    pub fn after(time: Duration) -> Duration {
        time.clamp(Duration::from_micros(100), Pace::TOO_LONG)
    }

    /// Makes requests about a range in slices.
    pub fn in_slices<E>(
        &mut self,
        range: Range<u64>,
        mut ask: impl FnMut(Range<u64>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut at, mut bytes) = (range.start, Pace::MOST_BYTES);
        while at < range.end {
            // A huge page that is in two slices would be split.
            let end = at.saturating_add(bytes) & !(HUGE_PAGE_BYTES - 1);
            let end = range.end.min(end);
            let begin = Instant::now();
            ask(at..end)?;
            let took = begin.elapsed();
            bytes = if took < QUICK {
                (2 * bytes).min(MOST_QUICK_BYTES)
            } else {
                Pace::MOST_BYTES
            };
            if let Some(pause) = self.took(took) {
                std::thread::sleep(pause);
            }
            at = end;
        }
        Ok(())
    }

    /// Records the duration of a request. Returns the length of the pause before the next request. Pauses are rare,
    /// because on a busy machine each one lasts for milliseconds, regardless of its intended length.
    fn took(&mut self, time: Duration) -> Option<Duration> {
        self.since_pause += time;
        (self.since_pause >= Pace::AIM).then(|| Pace::after(std::mem::take(&mut self.since_pause)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_asked_about_without_holes() {
        let (mut at, mut count) = (4096, 0);
        let end = at + 5 * Pace::MOST_BYTES + 4096;
        let result = Pace::default().in_slices(at..end, |slice| {
            assert!(slice.start == at && slice.end <= end);
            (at, count) = (slice.end, count + 1);
            Ok::<(), ()>(())
        });
        assert_eq!((result, at), (Ok(()), end));
        assert!(count > 1);
        assert_eq!(Pace::default().in_slices(0..1, |_| Err(7)), Err(7));
    }

    /// A test with the maximum number of mappings of a process, on a busy machine where some requests wait for a
    /// processor.
    #[test]
    fn pauses_between_tens_of_thousands_of_requests_are_few() {
        let mut pace = Pace::default();
        let (mut asked, mut pauses) = (Duration::ZERO, Vec::new());
        for i in 0..60_000 {
            let took = Duration::from_micros(if i % 50 == 0 { 150 } else { 2 });
            asked += took;
            pauses.extend(pace.took(took));
        }
        assert!(pauses.len() < 1000, "{}", pauses.len());
        assert!(pauses.iter().sum::<Duration>() <= asked);
        // Waiting threads get the lock nevertheless.
        assert_eq!(pace.took(Pace::TOO_LONG), Some(Pace::TOO_LONG));
    }

    #[test]
    fn near_ranges_are_asked_about_together() {
        let pages = (0..60_000).map(|i| i * 8192..i * 8192 + 4096);
        let one = with_gaps(pages);
        assert_eq!((one.len(), one[0].end), (1, 59_999 * 8192 + 4096));
        let far = [0..1, NEAR_BYTES + 2..NEAR_BYTES + 3];
        assert_eq!(with_gaps(far.clone()), far);
    }
}
