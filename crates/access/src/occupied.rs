//! Which mappings of a process have blocks in them.

use crate::page_watch::watchable;
use std::ops::Range;

/// Mappings that may have blocks, and whether they do.
pub(crate) struct Occupied {
    /// In order, and apart from each other.
    mappings: Vec<(Range<u64>, bool)>,
    /// Where the last block was: the next one is near it, more often than not.
    last: usize,
}

impl Occupied {
    /// The mappings of a process as they are now, with no block in them yet.
    pub fn none(pid: i32) -> Occupied {
        let mappings = watchable(pid).into_iter().map(|range| (range, false));
        Occupied {
            mappings: mappings.collect(),
            last: 0,
        }
    }

    /// A block begins at this address.
    pub fn note(&mut self, address: u64) {
        let is_last = |(range, _): &(Range<u64>, bool)| range.contains(&address);
        if !self.mappings.get(self.last).is_some_and(is_last) {
            self.last = self
                .mappings
                .partition_point(|(range, _)| range.end <= address);
        }
        if let Some((range, has_blocks)) = self.mappings.get_mut(self.last) {
            *has_blocks |= range.contains(&address);
        }
    }

    /// Those with blocks, in order.
    pub fn with_blocks(self) -> Vec<Range<u64>> {
        let found = self
            .mappings
            .into_iter()
            .filter(|(_, has_blocks)| *has_blocks);
        found.map(|(range, _)| range).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mappings_with_blocks() {
        let mut occupied = Occupied {
            mappings: [10..20, 20..30, 50..60, 70..80]
                .map(|range| (range, false))
                .into(),
            last: 0,
        };
        for address in [55, 12, 9, 40, 90, 51] {
            occupied.note(address);
        }
        assert_eq!(occupied.with_blocks(), [10..20, 50..60]);
    }
}
