//! Live bytes by the time since their last use, over the run. This is Memcov's aging of
//! allocations, with the distribution of its monitoring thresholds (Callanan et al., Model
//! predictive control for memory profiling, figures 5 and 6).

use crate::pages::THRESHOLDS_MS;

/// Upper ends of the age bands. One more band contains everything older.
pub const AGES_MS: [u32; 6] = [1000, 2000, 4000, 8000, 16_000, 32_000];
/// Number of bands.
pub const BANDS: usize = AGES_MS.len() + 1;
/// Maximum number of points. When there are more, every second point is dropped.
const MOST_POINTS: usize = 1024;

/// Returns the band of an idle time.
pub fn band(idle_ms: u32) -> usize {
    AGES_MS.partition_point(|&end| end <= idle_ms)
}

/// One moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgePoint {
    /// Time of the point in ms since the attach.
    pub at_ms: u32,
    /// Live bytes by the time for which they were certainly not written, and no read of them was
    /// seen.
    pub bytes: [u64; BANDS],
    /// Number of pages by their monitoring threshold.
    pub pages: [u64; THRESHOLDS_MS.len()],
}

/// Points of a watch. Their memory is bounded, regardless of the length of the watch.
#[derive(Clone, Debug, Default)]
pub struct AgeHistory {
    points: Vec<AgePoint>,
    apart_ms: u32,
}

impl AgeHistory {
    /// Adds a point, unless it is too close to the previous one.
    pub fn add(&mut self, point: AgePoint) {
        let is_due = |last: &AgePoint| point.at_ms >= last.at_ms.saturating_add(self.apart_ms);
        if !self.points.last().is_none_or(is_due) {
            return;
        }
        self.points.push(point);
        if self.points.len() > MOST_POINTS {
            let mut number = 0;
            self.points.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            let length = self.points.last().map_or(0, |last| last.at_ms)
                - self.points.first().map_or(0, |first| first.at_ms);
            self.apart_ms = length / (MOST_POINTS as u32 / 2);
        }
    }

    /// Returns the moments, in order.
    pub fn points(&self) -> &[AgePoint] {
        &self.points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_begin_where_the_one_before_ends() {
        let bands = [0, 999, 1000, 3999, 4000, 31_999, 32_000, u32::MAX].map(band);
        assert_eq!(bands, [0, 0, 1, 2, 3, 5, 6, 6]);
    }

    #[test]
    fn a_long_watch_keeps_moments_of_all_its_length() {
        let mut history = AgeHistory::default();
        for second in 0..10_000 {
            history.add(AgePoint {
                at_ms: second * 1000,
                ..AgePoint::default()
            });
        }
        let points = history.points();
        assert!((256..=MOST_POINTS).contains(&points.len()));
        assert_eq!(points[0].at_ms, 0);
        assert!(points[points.len() - 1].at_ms > 9_950_000);
        let gaps = points.windows(2).map(|two| two[1].at_ms - two[0].at_ms);
        assert!(gaps.max() <= Some(60_000));
    }
}
