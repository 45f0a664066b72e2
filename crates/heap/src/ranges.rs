//! Lists of address ranges.

use crate::snapshot::Area;

/// Ascending address ranges.
pub type Runs = Vec<(u64, u64)>;

/// Bytes of ranges.
pub fn run_bytes(runs: &[(u64, u64)]) -> u64 {
    runs.iter().map(|(start, end)| end - start).sum()
}

/// The parts of ranges that are in areas; both in order.
pub fn within(ranges: &[(u64, u64)], areas: &[Area]) -> Runs {
    let areas: Runs = areas.iter().map(|area| (area.start, area.end)).collect();
    intersection(ranges, &areas)
}

/// What is in both; each in order.
pub fn intersection(one: &[(u64, u64)], other: &[(u64, u64)]) -> Runs {
    let mut found = Runs::new();
    let mut first = 0;
    for &(start, end) in one {
        first += other[first..].partition_point(|r| r.1 <= start);
        for &(from, to) in other[first..].iter().take_while(|r| r.0 < end) {
            found.push((start.max(from), end.min(to)));
        }
    }
    found
}

/// Adds a range to a sorted list, joining what touches.
pub fn add_run(runs: &mut Runs, run: (u64, u64)) {
    let first = runs.partition_point(|r| r.1 < run.0);
    let last = runs.partition_point(|r| r.0 <= run.1);
    if first >= last {
        runs.insert(first, run);
        return;
    }
    let joined = (runs[first].0.min(run.0), runs[last - 1].1.max(run.1));
    runs[first] = joined;
    runs.drain(first + 1..last);
}

/// The ranges in order, those that touch or overlap as one.
pub fn joined(mut ranges: Runs) -> Runs {
    ranges.sort_unstable();
    let mut found = Runs::with_capacity(ranges.len());
    for (start, end) in ranges {
        match found.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => found.push((start, end)),
        }
    }
    found
}

/// [start, end) without the holes, which are in order and apart from each other.
pub fn without(start: u64, end: u64, holes: &[(u64, u64)]) -> Runs {
    let mut left = Runs::new();
    let mut at = start;
    let first = holes.partition_point(|h| h.1 <= start);
    for &(from, to) in holes[first..].iter().take_while(|h| h.0 < end) {
        if from > at {
            left.push((at, from));
        }
        at = at.max(to);
    }
    if at < end {
        left.push((at, end));
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::AreaKind;

    #[test]
    fn what_is_in_both() {
        let one = [(0, 10), (20, 30), (40, 50)];
        assert_eq!(
            intersection(&one, &[(5, 25), (28, 45)]),
            [(5, 10), (20, 25), (28, 30), (40, 45)]
        );
        let area = Area {
            start: 8,
            end: 9,
            kind: AreaKind::Anonymous,
            name: String::new(),
        };
        assert_eq!(within(&one, &[area]), [(8, 9)]);
        assert_eq!(intersection(&one, &[]), []);
    }

    #[test]
    fn runs_join() {
        let mut runs = Runs::new();
        for run in [(10, 20), (30, 40), (20, 25), (0, 5), (24, 31), (50, 60)] {
            add_run(&mut runs, run);
        }
        assert_eq!(runs, [(0, 5), (10, 40), (50, 60)]);
    }

    #[test]
    fn holes_are_cut_out() {
        assert_eq!(without(10, 20, &[]), [(10, 20)]);
        assert_eq!(
            without(10, 20, &joined(vec![(11, 13), (15, 16), (0, 12)])),
            [(13, 15), (16, 20)]
        );
        assert_eq!(without(10, 20, &[(5, 25)]), []);
    }
}
