//! Histograms of durations: eight classes for each power of two, so that the width of a class is at most an
//! eighth of its values.

/// Maximum number of functions whose latency can be measured at the same time.
pub const MOST_LATENCIES: usize = 256;
/// Number of classes of a histogram.
pub(crate) const CLASSES: usize = 512;

/// Latency of calls, in ticks of the time-stamp counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    classes: Vec<u64>,
    longest: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            classes: vec![0; CLASSES],
            longest: 0,
        }
    }
}

/// Returns the shortest duration of a class. Pads do the reverse: they compute the class of a duration (`Pad`).
fn shortest(class: usize) -> u64 {
    match class {
        0..8 => class as u64 + 8,
        _ => (class as u64 % 8 + 8) << (class / 8),
    }
}

impl Histogram {
    /// Number of words that a histogram takes in memory: the longest duration, then the classes.
    pub(crate) const WORDS: usize = CLASSES + 1;

    /// Adds the counts of a thread: the longest duration, and the classes.
    pub fn add(&mut self, words: &[u64]) {
        let Some((longest, classes)) = words.split_first() else {
            return;
        };
        self.longest = self.longest.max(*longest);
        for (sum, count) in self.classes.iter_mut().zip(classes) {
            *sum += count;
        }
    }

    /// Returns the number of calls.
    pub fn calls(&self) -> u64 {
        self.classes.iter().sum()
    }

    /// Returns the duration of the longest call.
    pub fn longest(&self) -> u64 {
        self.longest
    }

    /// Returns an upper bound on this quantile (in thousandths). The bound is at most an eighth too
    /// high.
    pub fn quantile(&self, of_thousand: u64) -> u64 {
        let wanted = (self.calls() * of_thousand).div_ceil(1000).max(1);
        let mut seen = 0;
        let class = self.classes.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        let end = class.map_or(0, |class| shortest(class + 1) - 1);
        end.min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes the class of a duration in the same way as the pads do.
    fn class_of(duration: u64) -> usize {
        let duration = duration.max(8);
        let shift = 60 - u64::from(duration.leading_zeros());
        (shift * 8 + (duration >> shift) - 8) as usize
    }

    #[test]
    fn classes_follow_each_other() {
        for class in 0..CLASSES - 32 {
            assert_eq!(class_of(shortest(class)), class);
            assert_eq!(class_of(shortest(class + 1) - 1), class);
        }
        assert!(class_of(u64::MAX) < CLASSES);
    }

    #[test]
    fn quantiles_are_close_and_never_above_the_longest() {
        let mut words = vec![0; Histogram::WORDS];
        for duration in 1..=1000u64 {
            words[1 + class_of(duration * 10)] += 1;
        }
        words[0] = 10_000;
        let mut histogram = Histogram::default();
        histogram.add(&words);
        assert_eq!(histogram.calls(), 1000);
        assert!((5000..5700).contains(&histogram.quantile(500)));
        assert!((9900..=10_000).contains(&histogram.quantile(990)));
        assert_eq!(histogram.quantile(1000), 10_000);
        assert_eq!(Histogram::default().quantile(500), 0);
    }
}
