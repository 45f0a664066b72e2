//! Lists of address ranges.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ops::Range;

/// Ascending address ranges.
pub type Runs = Vec<Range<u64>>;

/// Returns the number of bytes in ranges.
pub fn run_bytes(runs: &[Range<u64>]) -> u64 {
    runs.iter().map(|run| run.end - run.start).sum()
}

/// Returns the parts of ranges that are in areas. Both lists are sorted.
pub(crate) fn within(ranges: &[Range<u64>], areas: &[crate::snapshot::Area]) -> Runs {
    let areas: Runs = areas.iter().map(|area| area.start..area.end).collect();
    intersection(ranges, &areas)
}

/// Returns the intersection of two sorted lists of ranges.
pub fn intersection(one: &[Range<u64>], other: &[Range<u64>]) -> Runs {
    let mut found = Runs::new();
    let mut first = 0;
    for &Range { start, end } in one {
        first += other[first..].partition_point(|r| r.end <= start);
        for &Range {
            start: from,
            end: to,
        } in other[first..].iter().take_while(|r| r.start < end)
        {
            found.push(start.max(from)..end.min(to));
        }
    }
    found
}

/// Adds a range to a sorted list, and merges ranges that touch.
pub(crate) fn add_run(runs: &mut Runs, run: Range<u64>) {
    let first = runs.partition_point(|r| r.end < run.start);
    let last = runs.partition_point(|r| r.start <= run.end);
    if first >= last {
        runs.insert(first, run);
        return;
    }
    let joined = runs[first].start.min(run.start)..runs[last - 1].end.max(run.end);
    runs[first] = joined;
    runs.drain(first + 1..last);
}

/// Returns the ranges sorted, with overlapping or touching ones merged.
pub fn joined(mut ranges: Runs) -> Runs {
    ranges.sort_unstable_by_key(|r| (r.start, r.end));
    let mut found = Runs::with_capacity(ranges.len());
    for range in ranges {
        match found.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => found.push(range),
        }
    }
    found
}

/// Returns [start, end) without the holes, which are sorted and disjoint.
pub fn without(start: u64, end: u64, holes: &[Range<u64>]) -> Runs {
    let mut left = Runs::new();
    let mut at = start;
    let first = holes.partition_point(|h| h.end <= start);
    for &Range {
        start: from,
        end: to,
    } in holes[first..].iter().take_while(|h| h.start < end)
    {
        if from > at {
            left.push(at..from);
        }
        at = at.max(to);
    }
    if at < end {
        left.push(at..end);
    }
    left
}

/// A range as a pair of numbers, its form in saved snapshots.
pub(crate) mod pair {
    use super::*;

    pub fn serialize<S: Serializer>(range: &Range<u64>, to: S) -> Result<S::Ok, S::Error> {
        (range.start, range.end).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Range<u64>, D::Error> {
        <(u64, u64)>::deserialize(from).map(|(start, end)| start..end)
    }
}

/// Ranges as pairs of numbers, their form in saved snapshots.
pub(crate) mod pairs {
    use super::*;

    pub fn serialize<S: Serializer>(ranges: &[Range<u64>], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(ranges.iter().map(|range| (range.start, range.end)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Runs, D::Error> {
        let pairs = Vec::<(u64, u64)>::deserialize(from)?;
        Ok(pairs.into_iter().map(|(start, end)| start..end).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::AreaKind;

    #[test]
    fn what_is_in_both() {
        let one = [0..10, 20..30, 40..50];
        assert_eq!(
            intersection(&one, &[5..25, 28..45]),
            [5..10, 20..25, 28..30, 40..45]
        );
        let area = crate::snapshot::Area {
            start: 8,
            end: 9,
            kind: AreaKind::Anonymous,
            name: String::new(),
        };
        assert_eq!(within(&one, &[area]), [8..9]);
        assert_eq!(intersection(&one, &[]), []);
    }

    #[test]
    fn runs_join() {
        let mut runs = Runs::new();
        for run in [10..20, 30..40, 20..25, 0..5, 24..31, 50..60] {
            add_run(&mut runs, run);
        }
        assert_eq!(runs, [0..5, 10..40, 50..60]);
    }

    #[test]
    fn holes_are_cut_out() {
        assert_eq!(without(10, 20, &[]), [10..20]);
        assert_eq!(
            without(10, 20, &joined(vec![11..13, 15..16, 0..12])),
            [13..15, 16..20]
        );
        assert_eq!(without(10, 20, &[5..25]), []);
    }
}
