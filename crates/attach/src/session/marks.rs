//! Marks that were set in a process.

use memhook_stream::{NamedMoment, Region};
use std::time::Duration;

/// Maximum number of stored marks.
const MOST_MARKS: usize = 100_000;

/// Marks that were taken out of the region, which has room for only a few.
#[derive(Default)]
pub(super) struct Marks {
    taken: Vec<NamedMoment>,
    next: u64,
    has_missed: bool,
}

impl Marks {
    /// Takes new marks. Returns the number of lost marks once, so that a process that sets marks in a loop does not
    /// fill the screen.
    pub fn take(&mut self, region: &Region, elapsed: Duration) -> Option<u64> {
        let now_ns = elapsed.as_nanos() as u64;
        let (taken, missed) = region.take_marks(&mut self.next, now_ns);
        self.taken.extend(taken);
        self.taken.truncate(MOST_MARKS);
        let is_first = missed > 0 && !std::mem::replace(&mut self.has_missed, true);
        is_first.then_some(missed)
    }

    /// Returns all marks in order.
    pub fn all(&self) -> &[NamedMoment] {
        &self.taken
    }
}
