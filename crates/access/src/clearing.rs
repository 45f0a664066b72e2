//! Clears the accessed marks in page tables in slices, so that the process hardly has to wait. If
//! the kernel can only clear all marks in one step, they are cleared only if that step is short.

use crate::lock_slices::LockSlices;
use memhook_inject::{Pace, RangeMarks, clear_access_marks};
use memhook_process::has_swap;
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Time of the slices of one turn.
const TURN: Duration = Duration::from_millis(3);
/// Maximum duration of clearing all marks in one step. Estimated by the time to read all marks,
/// which takes about as long.
const LONGEST_WHOLE: Duration = Duration::from_millis(5);

/// Progress of the clearing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    UnderWay,
    Done,
    /// The clearing would take, or took, too long.
    TooLong,
}

/// Clears marks.
pub struct Clearing {
    /// Marks that are cleared in slices; `None` to clear all in one step.
    ranges: Option<RangeMarks>,
    slices: LockSlices,
    /// Remaining ranges. The next one is last.
    left: Vec<Range<u64>>,
    /// Estimated time of clearing all marks in one step.
    whole: Duration,
    longest_whole: Duration,
}

impl Clearing {
    /// Selects the method that this kernel allows.
    pub fn of(pid: i32) -> Clearing {
        Clearing {
            ranges: RangeMarks::of(pid).ok(),
            slices: LockSlices::default(),
            left: Vec::new(),
            whole: Duration::ZERO,
            longest_whole: Duration::ZERO,
        }
    }

    /// Returns the longest wait of the process.
    pub fn longest(&self) -> Duration {
        self.slices.longest().max(self.longest_whole)
    }

    /// Starts clearing the marks of these sorted ranges, each within one mapping. `whole` is the
    /// time that reading all marks took.
    pub fn begin(&mut self, ranges: Vec<Range<u64>>, whole: Duration) {
        // The marks also tell the kernel which pages to swap out first.
        if has_swap() {
            self.ranges = None;
        }
        (self.left, self.whole) = (ranges, whole);
        self.left.reverse();
    }

    /// Leaves the remaining marks unchanged.
    pub fn stop(&mut self) {
        self.left.clear();
    }

    /// Continues for a few milliseconds.
    pub fn go_on(&mut self, pid: i32) -> io::Result<Progress> {
        let begin = Instant::now();
        let Some(marks) = &self.ranges else {
            if self.whole > LONGEST_WHOLE {
                return Ok(Progress::TooLong);
            }
            clear_access_marks(pid)?;
            self.longest_whole = self.longest_whole.max(begin.elapsed());
            return Ok(Progress::Done);
        };
        while let Some(next) = self.left.last_mut() {
            let Some(end) = self.slices.end_of(next.start, next.end) else {
                self.left.clear();
                return Ok(Progress::TooLong);
            };
            let slice_begin = Instant::now();
            // Pages that cannot be cleared, because they are locked or unmapped, keep their marks.
            let _ = marks.clear(next.start..end);
            let took = slice_begin.elapsed();
            self.slices.took(took);
            next.start = end;
            if next.is_empty() {
                self.left.pop();
            }
            if begin.elapsed() > TURN {
                return Ok(Progress::UnderWay);
            }
            std::thread::sleep(Pace::after(took));
        }
        Ok(Progress::Done)
    }
}
