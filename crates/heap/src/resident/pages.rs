//! Pages that are in memory, and the resident bytes of a range.

use crate::ranges::{Runs, intersection, joined};
use std::ops::Range;

/// Size of a page.
pub const PAGE_BYTES: u64 = 4096;

/// The resident pages of a process's private memory.
pub struct ResidentPages {
    runs: Runs,
    /// Bytes of all runs before each run.
    before: Vec<u64>,
}

impl ResidentPages {
    /// Builds the set from page ranges in any order.
    pub fn new(runs: Runs) -> ResidentPages {
        let runs = joined(runs);
        let before = runs.iter().scan(0, |sum, run| {
            let before = *sum;
            *sum += run.end - run.start;
            Some(before)
        });
        ResidentPages {
            before: before.collect(),
            runs,
        }
    }

    /// Returns the bytes of a range that are in memory.
    pub fn bytes(&self, range: &Range<u64>) -> u64 {
        if range.start >= range.end {
            return 0;
        }
        self.below(range.end) - self.below(range.start)
    }

    /// Returns the resident parts of sorted ranges.
    pub fn within(&self, ranges: &[Range<u64>]) -> Runs {
        intersection(ranges, &self.runs)
    }

    /// Returns the resident bytes below an address.
    fn below(&self, address: u64) -> u64 {
        let after = self.runs.partition_point(|run| run.start < address);
        let Some(last) = after.checked_sub(1) else {
            return 0;
        };
        let run = &self.runs[last];
        self.before[last] + (address.min(run.end) - run.start)
    }

    /// Returns the addresses of the resident pages of a range, which begins and ends at page
    /// boundaries.
    pub fn pages(&self, range: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        let first = self.runs.partition_point(|run| run.end <= range.start);
        let end = range.end;
        let runs = self.runs[first..]
            .iter()
            .take_while(move |run| run.start < end);
        runs.flat_map(move |run| {
            (run.start.max(range.start)..run.end.min(end)).step_by(PAGE_BYTES as usize)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_are_those_of_the_pages(
            there in prop::collection::vec(any::<bool>(), 40),
            from in 0u64..40 * PAGE_BYTES,
            length in 0u64..40 * PAGE_BYTES,
        ) {
            let pages = (0u64..).zip(&there).filter(|(_, is_there)| **is_there);
            let pages: Runs = pages.map(|(i, _)| i * PAGE_BYTES..(i + 1) * PAGE_BYTES).collect();
            let expected: u64 = pages
                .iter()
                .map(|p| p.end.min(from + length).saturating_sub(p.start.max(from)))
                .sum();
            let resident = ResidentPages::new(pages.clone());
            prop_assert_eq!(resident.bytes(&(from..from + length)), expected);
            let found: Vec<u64> = resident.pages(0..40 * PAGE_BYTES).collect();
            prop_assert_eq!(found, pages.iter().map(|p| p.start).collect::<Vec<_>>());
        }
    }
}
