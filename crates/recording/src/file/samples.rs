//! Meaning of samples whose mean distance changes, stored as a note in [`Meta`](crate::Meta).

use memhook_ledger::{MOST_LEVELS, SampledAllocations};

/// Name of the note. Its value is the mean distance in bytes between samples of level 1, a space,
/// and the largest distance; 0 without sampling.
pub const SAMPLES_NOTE: &str = "samples";

/// Returns the value of the note.
pub fn samples_text(counts: &SampledAllocations) -> String {
    let first = counts.estimator.sample_bytes.unwrap_or(0);
    format!("{first} {}", counts.sample_bytes().unwrap_or(0))
}

/// Returns the meaning of samples that the value of a note describes. `levels` contains the levels
/// of the file's samples.
pub(crate) fn samples_of(text: &str, levels: impl Iterator<Item = u8>) -> SampledAllocations {
    let number = |text: &str| text.parse().ok().filter(|&bytes: &u64| bytes > 0);
    let mut numbers = text.split(' ').map(number);
    let (first, largest) = (numbers.next().flatten(), numbers.next().flatten());
    let mut counts = SampledAllocations::new(first, false);
    if let (Some(first), Some(largest)) = (first, largest) {
        let level = (largest / first)
            .checked_ilog2()
            .map_or(0, |twice| twice + 1);
        counts.announce(level.min(u32::from(MOST_LEVELS)) as u8);
    }
    levels.for_each(|level| counts.announce(level));
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_as_text() {
        let mut counts = SampledAllocations::new(Some(256), false);
        assert_eq!(samples_text(&counts), "256 0");
        assert_eq!(samples_of("256 0", [].into_iter()).sample_bytes(), None);
        counts.announce(4);
        let text = samples_text(&counts);
        assert_eq!(samples_of(&text, [].into_iter()).sample_bytes(), Some(2048));
        // The recorder died before it had noted the last level.
        let found = samples_of(&text, [2, 5].into_iter());
        assert_eq!(found.sample_bytes(), Some(4096));
        for damaged in [
            "",
            "x",
            "0 256",
            "256",
            "512 256",
            "1 18446744073709551615",
            "-1 -1",
        ] {
            samples_of(damaged, [255].into_iter()).unhit_variance();
        }
    }
}
