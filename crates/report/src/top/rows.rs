//! Rows of the table, and their order.

use std::{cmp::Reverse, time::Duration};

/// Order of the rows. The largest, or the oldest, is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the definition
pub enum Sort {
    Bytes,
    Blocks,
    Growth,
    Rate,
    Age,
    Stale,
}

impl Sort {
    /// Returns the next column. `has_stale` is true if untouched memory has a column.
    pub(super) fn next(self, has_stale: bool) -> Sort {
        match self {
            Sort::Bytes => Sort::Blocks,
            Sort::Blocks => Sort::Growth,
            Sort::Growth => Sort::Rate,
            Sort::Rate => Sort::Age,
            Sort::Age if has_stale => Sort::Stale,
            Sort::Age | Sort::Stale => Sort::Bytes,
        }
    }
}

/// Numbers of live blocks, and their changes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Numbers {
    pub bytes: u64,
    pub blocks: u64,
    /// Bytes per second.
    pub growth: f64,
    /// Allocations per second.
    pub rate: f64,
    /// Time since the attach at which the oldest live block was allocated.
    pub oldest: Option<Duration>,
    /// Estimated bytes that were not touched for a time.
    pub stale: u64,
}

impl Numbers {
    /// Adds the numbers of other blocks.
    pub fn add(&mut self, other: &Numbers) {
        self.bytes += other.bytes;
        self.blocks += other.blocks;
        self.growth += other.growth;
        self.rate += other.rate;
        self.stale += other.stale;
        self.oldest = self.oldest.into_iter().chain(other.oldest).min();
    }

    /// Returns true if any number is not 0.
    pub fn is_something(&self) -> bool {
        self.bytes > 0 || self.blocks > 0 || self.rate > 0.0
    }

    /// Returns the sort key of the row.
    pub fn order(&self, sort: Sort) -> impl Ord + use<> {
        let whole = |number: f64| i128::from(number.round() as i64);
        match sort {
            Sort::Bytes => Reverse(i128::from(self.bytes)),
            Sort::Blocks => Reverse(i128::from(self.blocks)),
            Sort::Stale => Reverse(i128::from(self.stale)),
            Sort::Growth => Reverse(whole(self.growth)),
            Sort::Rate => Reverse(whole(self.rate)),
            Sort::Age => {
                let oldest = self.oldest.unwrap_or(Duration::MAX).as_nanos();
                Reverse(-i128::try_from(oldest).unwrap_or(i128::MAX))
            }
        }
    }
}

/// Object that a row shows.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Subject {
    /// A site, by its stack.
    Site(u32),
    /// A call in the tree.
    Call {
        name: String,
        /// Distance from the root, in calls.
        depth: usize,
        /// True if the calls below this call are shown; `None` if there are none.
        is_open: Option<bool>,
    },
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    /// Identity of the subject across samples.
    pub key: u64,
    pub subject: Subject,
    pub numbers: Numbers,
}

impl Row {
    /// Creates a row for a site.
    pub fn of_site(stack: u32, numbers: Numbers) -> Row {
        Row {
            key: u64::from(stack),
            subject: Subject::Site(stack),
            numbers,
        }
    }

    /// Returns the stack, if the row is a site.
    pub fn stack(&self) -> Option<u32> {
        match self.subject {
            Subject::Site(stack) => Some(stack),
            Subject::Call { .. } => None,
        }
    }
}
