//! Time that each allocation site spends in the allocator, for rows of reports and for recordings.

use crate::ProfileSite;
use crate::units::{counted, duration};
use memhook_ledger::{CallTime, CallTimes, TimeTaken};
use serde::{Deserialize, Serialize};

/// Maximum number of call stacks in a recording's note. The slowest stacks are kept, and each takes about 60 bytes.
const MAX_STACKS: usize = 100_000;

/// Estimate of the time that allocations spent in the allocator, from the calls that were timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AllocatorTime {
    /// Nanoseconds.
    #[serde(rename = "alloc_ns")]
    pub ns: u64,
    /// Standard error of `ns`.
    #[serde(rename = "alloc_error_ns")]
    pub error_ns: u64,
    /// Number of calls that were timed.
    #[serde(rename = "timed_calls")]
    pub timed: u64,
}

impl AllocatorTime {
    /// Returns the estimate; `None` if no call was timed.
    pub(crate) fn of(taken: TimeTaken) -> Option<AllocatorTime> {
        (taken.calls > 0).then(|| AllocatorTime {
            ns: taken.time.round() as u64,
            error_ns: taken.variance.max(0.0).sqrt().round() as u64,
            timed: taken.calls,
        })
    }

    /// Returns a text such as `1.2 ms ± 0.1 ms in the allocator (312 calls timed)`.
    pub(crate) fn in_words(self) -> String {
        let time = |ns: u64| duration(ns as f64 / 1e9);
        format!(
            "{} ± {} in the allocator ({} timed)",
            time(self.ns),
            time(self.error_ns),
            counted(self.timed, "call"),
        )
    }
}

/// Numbers of one call stack: its id, the calls, their weight, and the weighted sums of nanoseconds
/// and of their squares.
#[derive(Serialize, Deserialize)]
struct Numbers(u32, u64, f64, f64, f64);

/// Returns a recording's note about the times of a run, in nanoseconds, as JSON; `None` if it cannot be
/// written.
pub fn call_times_note(times: &CallTimes) -> Option<String> {
    let mut stacks: Vec<(u32, CallTime)> = times.stacks().collect();
    let time = |time: &CallTime| time.of(time.weight).time;
    stacks.sort_by(|a, b| time(&b.1).total_cmp(&time(&a.1)).then(a.0.cmp(&b.0)));
    stacks.truncate(MAX_STACKS);
    let numbers = stacks.into_iter().map(|(stack, time)| {
        let (calls, weight, sum, squares) = time.numbers();
        Numbers(stack, calls, weight, sum, squares)
    });
    serde_json::to_string(&numbers.collect::<Vec<_>>()).ok()
}

/// Parses the text of a note; `None` if the text is not such a note.
pub(crate) fn call_times_of_note(text: &str) -> Option<CallTimes> {
    let numbers: Vec<Numbers> = serde_json::from_str(text).ok()?;
    let mut times = CallTimes::default();
    for Numbers(stack, calls, weight, sum, squares) in numbers {
        times.insert(stack, CallTime::of_numbers((calls, weight, sum, squares)));
    }
    Some(times)
}

/// Estimates the time that the allocations of all sites take. A site without a timed call is assumed to be like the
/// other sites.
pub(crate) fn all_in_allocator(sites: &[ProfileSite], times: Option<&CallTimes>) -> TimeTaken {
    let mut all = TimeTaken::default();
    let Some(times) = times else {
        return all;
    };
    let mut untimed = 0;
    for site in sites {
        all += site.in_allocator;
        if site.in_allocator.calls == 0 {
            untimed += site.measures.allocated.blocks;
        }
    }
    let rest = times.all().of(untimed as f64);
    all += rest;
    // Threads with the same stack share its timed calls.
    TimeTaken {
        calls: times.all().calls,
        ..all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let mut times = CallTimes::default();
        times.add(7, 1.0, 80.0);
        times.add(7, 1.0, 120.0);
        times.add(9, 2.5, 3000.0);
        let note = call_times_note(&times).expect("JSON");
        let read = call_times_of_note(&note).expect("a note");
        for (stack, time) in times.stacks() {
            assert_eq!(read.get(stack), Some(time), "{note}");
        }
        assert_eq!(read.all(), times.all());
        for text in ["", "{}", "[1]", "[[1,2]]"] {
            assert!(call_times_of_note(text).is_none(), "{text}");
        }
    }

    #[test]
    fn words_have_the_error_and_what_it_comes_from() {
        let time = AllocatorTime {
            ns: 1_234_000,
            error_ns: 56_000,
            timed: 312,
        };
        assert_eq!(
            time.in_words(),
            "1.2 ms ± 56.0 µs in the allocator (312 calls timed)"
        );
        assert_eq!(AllocatorTime::of(TimeTaken::default()), None);
    }
}
