//! Recent history of the heap and of each site, for growth and rates.

use super::Sample;
use crate::course::{Course, PARTS, course};
use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

/// Number of samples to remember.
const REMEMBERED: usize = 60;
/// Number of samples over which growth and rates are averaged, because single samples fluctuate.
const RECENT: usize = 10;

/// Minimum growth that counts: in bytes, and as a share of all live bytes.
const LEAST_BYTES: f64 = 1_048_576.0;
const LEAST_SHARE: f64 = 0.02;

/// Live bytes and allocations up to each sample, oldest first.
type Series = VecDeque<(u64, u64)>;

/// The latest samples.
#[derive(Default)]
pub(super) struct Past {
    times: VecDeque<Duration>,
    all: Series,
    /// Resident bytes at each sample, if known.
    resident: VecDeque<Option<u64>>,
    sites: HashMap<u32, Series>,
}

impl Past {
    /// Remembers a sample.
    pub fn remember(&mut self, sample: &Sample) {
        // A new site had no memory before.
        let before = self.times.len();
        for site in &sample.sites {
            let series = self.sites.entry(site.stack);
            let series = series.or_insert_with(|| vec![(0, 0); before].into());
            series.push_back((site.bytes, site.allocated_blocks));
        }
        for series in self.sites.values_mut() {
            if series.len() == before {
                let allocated = series.back().map_or(0, |last| last.1);
                series.push_back((0, allocated));
            }
        }
        self.times.push_back(sample.time);
        let resident = sample.resident.as_ref();
        self.resident
            .push_back(resident.map(|resident| resident.rss_bytes));
        let totals = &sample.totals;
        self.all.push_back((totals.live_bytes, totals.allocations));
        if self.times.len() > REMEMBERED {
            self.times.pop_front();
            self.all.pop_front();
            self.resident.pop_front();
            for series in self.sites.values_mut() {
                series.pop_front();
            }
        }
    }

    /// Returns the time of the latest sample.
    pub fn time(&self) -> Duration {
        self.times.back().copied().unwrap_or_default()
    }

    /// Returns the time over which growth and rates are averaged.
    pub fn averaged(&self) -> Duration {
        let first = self.times.len().saturating_sub(RECENT + 1);
        let first = self.times.get(first).copied().unwrap_or_default();
        self.time().saturating_sub(first)
    }

    /// Returns bytes and allocations per second of the whole heap.
    pub fn changes(&self) -> (f64, f64) {
        self.changes_in(&self.all)
    }

    /// Returns bytes and allocations per second of a site.
    pub fn changes_of(&self, stack: u32) -> (f64, f64) {
        let series = self.sites.get(&stack);
        series.map_or((0.0, 0.0), |series| self.changes_in(series))
    }

    fn changes_in(&self, series: &Series) -> (f64, f64) {
        let last = series.len().saturating_sub(1);
        let first = last.saturating_sub(RECENT);
        let seconds = match (self.times.get(first), self.times.get(last)) {
            (Some(&from), Some(&to)) if to > from => (to - from).as_secs_f64(),
            _ => return (0.0, 0.0),
        };
        let ((old_bytes, old_count), (bytes, count)) = (series[first], series[last]);
        (
            (bytes as f64 - old_bytes as f64) / seconds,
            count.saturating_sub(old_count) as f64 / seconds,
        )
    }

    /// Returns a letter for the trend of a site: it grows (u), levels off (w), is bounded because older blocks are
    /// released (b), had a peak (p), or is unclear (?). A space means that the site does not change, or that the time
    /// is too short to tell.
    pub fn letter_of(&self, stack: u32) -> char {
        let bytes = self.bytes_of(stack);
        if bytes.len() <= PARTS {
            return ' ';
        }
        let live = std::array::from_fn(|at| bytes[at * (bytes.len() - 1) / PARTS] as f64);
        let all = self.all.back().map_or(0, |last| last.0) as f64;
        let least = LEAST_BYTES.max(LEAST_SHARE * all);
        match course(&live, least) {
            Course::Steady => ' ',
            Course::Burst => 'p',
            // If the process has not grown, it has released the same amount of memory from before the trace.
            _ if self.resident_growth().is_some_and(|grown| grown < least) => 'b',
            Course::Levelling => 'w',
            Course::Growing => 'u',
            Course::Unclear => '?',
        }
    }

    /// Returns the growth of the resident memory over the remembered time, if known.
    fn resident_growth(&self) -> Option<f64> {
        let mut known = self.resident.iter().flatten();
        let first = known.next()?;
        Some(*known.next_back()? as f64 - *first as f64)
    }

    /// Returns true if the remembered time is long enough for letters.
    pub fn has_letters(&self) -> bool {
        self.times.len() > PARTS
    }

    /// Returns the live bytes of the whole heap, oldest first.
    pub fn bytes(&self) -> Vec<u64> {
        self.all.iter().map(|point| point.0).collect()
    }

    /// Returns the live bytes of a site, oldest first.
    pub fn bytes_of(&self, stack: u32) -> Vec<u64> {
        let series = self.sites.get(&stack);
        series.into_iter().flatten().map(|point| point.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Resident;
    use super::super::tests::{sample, site};
    use super::*;

    #[test]
    fn a_site_that_goes_away_is_at_nothing() {
        let mut past = Past::default();
        past.remember(&sample(0, vec![site(1, 100, 1, 1, 0)]));
        past.remember(&sample(1, vec![]));
        past.remember(&sample(2, vec![site(1, 50, 1, 2, 0), site(2, 7, 1, 1, 0)]));
        assert_eq!(past.bytes_of(1), [100, 0, 50]);
        assert_eq!(past.bytes_of(2), [0, 0, 7]);
        assert_eq!(past.changes_of(1), (-25.0, 0.5));
        assert_eq!(past.changes_of(3), (0.0, 0.0));
        assert_eq!(past.averaged(), Duration::from_secs(2));
    }

    #[test]
    fn a_letter_tells_growth_from_turnover() {
        let letter = |live: fn(u64) -> u64, resident: Option<fn(u64) -> u64>| {
            let mut past = Past::default();
            for second in 0..40 {
                let mut sample = sample(second, vec![site(1, live(second) << 20, 1, 1, 0)]);
                sample.resident = resident.map(|resident| Resident {
                    rss_bytes: resident(second) << 20,
                    parts: Vec::new(),
                });
                past.remember(&sample);
                assert!(past.has_letters() || past.letter_of(1) == ' ');
            }
            past.letter_of(1)
        };
        let grows: fn(u64) -> u64 = |second| second;
        assert_eq!(letter(grows, None), 'u');
        assert_eq!(letter(grows, Some(|second| 100 + second)), 'u');
        assert_eq!(letter(grows, Some(|_| 100)), 'b');
        assert_eq!(letter(|second| second.min(10), None), 'w');
        assert_eq!(
            letter(|second| if second % 20 < 9 { 9 } else { 0 }, None),
            'p'
        );
        assert_eq!(letter(|_| 50, None), ' ');
        assert_eq!(letter(|second| if second > 35 { 9 } else { 0 }, None), '?');
    }

    #[test]
    fn only_the_latest_samples_are_kept() {
        let mut past = Past::default();
        for second in 0..200 {
            past.remember(&sample(second, vec![site(1, second, 1, 1, 0)]));
        }
        assert_eq!(past.bytes_of(1).len(), REMEMBERED);
        assert_eq!(past.changes_of(1).0, 1.0);
        assert_eq!(past.averaged(), Duration::from_secs(10));
        assert_eq!(past.time(), Duration::from_secs(199));
    }
}
