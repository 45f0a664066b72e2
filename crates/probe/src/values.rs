//! Counts of values and of call stacks by threads.

use memhook_abi::{STACK_PLACES, VALUE_BOUNDS, VALUE_CLASSES, VALUE_PLACES, VALUE_TABLE_BYTES};
use std::collections::BTreeMap;

/// Range of values, and the number of calls with such a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueClass {
    /// Lowest value.
    pub from: i64,
    /// Highest value.
    pub to: i64,
    /// Number of calls.
    pub calls: u64,
}

/// Values of an argument.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values {
    classes: BTreeMap<usize, u64>,
    counts: BTreeMap<i64, u64>,
    bounds: Option<(i64, i64)>,
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at * 8..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u64::from_le_bytes(*word))
}

/// Decodes a bound. The hook stores bounds so that they compare as unsigned numbers, with the lower bound inverted, so
/// that both only increase.
fn of_rank(rank: u64) -> i64 {
    (rank ^ (1 << 63)) as i64
}

impl Values {
    /// Size of a table in bytes.
    pub const TABLE_BYTES: usize = VALUE_TABLE_BYTES;

    /// Adds the table of one thread.
    pub fn add(&mut self, table: &[u8]) {
        let mut seen = 0u64;
        for class in 0..VALUE_CLASSES {
            let calls = word(table, VALUE_BOUNDS + class);
            if calls > 0 {
                let of_class = self.classes.entry(class).or_default();
                *of_class = of_class.saturating_add(calls);
                seen = seen.saturating_add(calls);
            }
        }
        if seen == 0 {
            return;
        }
        let (highest, lowest) = (of_rank(word(table, 0)), of_rank(!word(table, 1)));
        let (low, high) = self.bounds.unwrap_or((lowest, highest));
        self.bounds = Some((low.min(lowest), high.max(highest)));
        for place in 0..VALUE_PLACES {
            let at = VALUE_BOUNDS + VALUE_CLASSES + 2 * place;
            let calls = word(table, at + 1);
            if calls > 0 {
                let of_value = self.counts.entry(word(table, at) as i64).or_default();
                *of_value = of_value.saturating_add(calls);
            }
        }
    }

    /// Returns the number of calls that were examined.
    pub fn calls(&self) -> u64 {
        self.classes
            .values()
            .fold(0, |sum, calls| sum.saturating_add(*calls))
    }

    /// Returns the lowest and the highest value, if there are any.
    pub fn bounds(&self) -> Option<(i64, i64)> {
        self.bounds
    }

    /// Returns the most frequent values with their counts, and the number of calls with other values. Each thread
    /// counts up to 256 distinct values. Some of these counts may be too low, but only if a thread saw more values than
    /// that.
    pub fn top(&self, most: usize) -> (Vec<(i64, u64)>, u64) {
        let mut all: Vec<(i64, u64)> = self.counts.iter().map(|(v, n)| (*v, *n)).collect();
        all.sort_by_key(|&(value, calls)| (std::cmp::Reverse(calls), value));
        all.truncate(most);
        let shown = all
            .iter()
            .fold(0u64, |sum, (_, calls)| sum.saturating_add(*calls));
        (all, self.calls().saturating_sub(shown))
    }

    /// Returns the values by their number of bits, ascending, without empty classes.
    pub fn histogram(&self) -> Vec<ValueClass> {
        let class = |(&class, &calls): (&usize, &u64)| {
            let (from, to) = bounds_of(class);
            ValueClass { from, to, calls }
        };
        self.classes.iter().map(class).collect()
    }
}

/// Returns the values of a class: 64 + the number of bits of a non-negative value, or 63 - the number of bits of its
/// complement.
fn bounds_of(class: usize) -> (i64, i64) {
    let range = |bits: usize| match bits {
        0 => (0u64, 0u64),
        bits => (1 << (bits - 1), u64::MAX >> (64 - bits)),
    };
    match class.checked_sub(VALUE_CLASSES / 2) {
        Some(bits) => {
            let (low, high) = range(bits.min(63));
            (low as i64, high as i64)
        }
        None => {
            let (low, high) = range(VALUE_CLASSES / 2 - 1 - class);
            (!(high as i64), !(low as i64))
        }
    }
}

/// Numbers of calls of a probed function by call stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackCounts {
    /// Calls by number of the probe and id of the stack.
    pub calls: BTreeMap<(usize, u32), u64>,
}

impl StackCounts {
    /// Size of a table in bytes.
    pub const TABLE_BYTES: usize = STACK_PLACES * 16;

    /// Adds the table of one thread.
    pub fn add(&mut self, table: &[u8]) {
        for place in 0..STACK_PLACES {
            let (key, calls) = (word(table, 2 * place), word(table, 2 * place + 1));
            let probe = (key >> 32).checked_sub(1);
            if let (Some(probe), 1..) = (probe, calls) {
                let of_stack = self.calls.entry((probe as usize, key as u32)).or_default();
                *of_stack = of_stack.saturating_add(calls);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_each_other() {
        assert_eq!(bounds_of(0), (i64::MIN, !(1 << 62)));
        assert_eq!(bounds_of(62), (-2, -2));
        assert_eq!(bounds_of(63), (-1, -1));
        assert_eq!(bounds_of(64), (0, 0));
        assert_eq!(bounds_of(65), (1, 1));
        assert_eq!(bounds_of(66), (2, 3));
        assert_eq!(bounds_of(127), (1 << 62, i64::MAX));
        for class in 1..VALUE_CLASSES {
            assert_eq!(bounds_of(class).0, bounds_of(class - 1).1 + 1, "{class}");
        }
    }

    #[test]
    fn tables_are_added_up() {
        let mut table = vec![0u8; Values::TABLE_BYTES];
        let mut put =
            |at: usize, word: u64| table[at * 8..][..8].copy_from_slice(&word.to_le_bytes());
        let rank = |value: i64| value as u64 ^ (1 << 63);
        put(0, rank(5));
        put(1, !rank(-3));
        put(VALUE_BOUNDS + 64 + 3, 7); // 4..=7
        put(VALUE_BOUNDS + 63 - 2, 1); // -4..=-3
        let places = VALUE_BOUNDS + VALUE_CLASSES;
        put(places, 5);
        put(places + 1, 6);
        put(places + 10, -3i64 as u64);
        put(places + 11, 1);
        let mut values = Values::default();
        assert_eq!(values.bounds(), None);
        values.add(&table);
        values.add(&table);
        assert_eq!((values.calls(), values.bounds()), (16, Some((-3, 5))));
        assert_eq!(values.top(1), (vec![(5, 12)], 4));
        assert_eq!(values.top(9), (vec![(5, 12), (-3, 2)], 2));
        let class = |from, to, calls| ValueClass { from, to, calls };
        assert_eq!(values.histogram(), [class(-4, -3, 2), class(4, 7, 14)]);
        // Bytes written by a target are treated only as numbers.
        values.add(&vec![0xff; Values::TABLE_BYTES]);
        values.add(&[1, 2, 3]);
        values.histogram();
        let mut stacks = StackCounts::default();
        stacks.add(&vec![0xff; StackCounts::TABLE_BYTES]);
        stacks.add(&[]);
        assert_eq!(stacks.calls.len(), 1);
    }
}
