//! Resident memory of the process over time, as a note of [`Meta`](crate::Meta). Readers that do
//! not know the note can still read everything else.

/// Name of the note with the cost and rate of tracing under a budget, as in the JSON of the last
/// report.
pub const OVERHEAD_NOTE: &str = "overhead";
/// Name of the note with untouched memory: a report `memhook-rs/stale/1`.
pub const STALE_NOTE: &str = "stale";
/// Name of the note with unreachable blocks at the end, as JSON.
pub const UNREACHABLE_NOTE: &str = "unreachable";
/// Name of the note with the time of allocator calls, as JSON.
pub const CALL_TIMES_NOTE: &str = "call_times";
/// Name of the note with resident memory at the end: a report `memhook-rs/rss/1`.
pub const ACCOUNT_NOTE: &str = "account";
/// Name of the note that compares the allocator's own count at the end of the run with the trace's
/// count.
pub const HEAP_COMPARISON_NOTE: &str = "heap_comparison";
/// Name of the note with the resident memory at the start and its growth up to the end, as JSON.
pub const TWO_LOOKS_NOTE: &str = "two_looks";
/// Name of the note with resident memory over time.
pub const RESIDENT_NOTE: &str = "resident";

/// Memory counters of the kernel for the process at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResidentSample {
    /// Milliseconds since the attach.
    pub time_ms: u64,
    /// Resident bytes of anonymous memory.
    pub anonymous_bytes: u64,
    /// Resident bytes of files.
    pub file_bytes: u64,
    /// Resident bytes of shared memory.
    pub shared_bytes: u64,
    /// Bytes swapped out.
    pub swap_bytes: u64,
}

/// Returns the value of the note: `MS,ANONYMOUS,FILE,SHARED,SWAP`, in milliseconds and KiB,
/// separated by spaces.
pub fn resident_text(samples: &[ResidentSample]) -> String {
    let texts = samples.iter().map(|sample| {
        let kib = |bytes: u64| bytes >> 10;
        format!(
            "{},{},{},{},{}",
            sample.time_ms,
            kib(sample.anonymous_bytes),
            kib(sample.file_bytes),
            kib(sample.shared_bytes),
            kib(sample.swap_bytes)
        )
    });
    texts.collect::<Vec<_>>().join(" ")
}

/// Parses the value of a note into samples, in chronological order. Skips anything that is not a
/// sample.
pub fn resident_of(text: &str) -> Vec<ResidentSample> {
    let sample = |one: &str| {
        let mut numbers = one.split(',').map(|number| number.parse::<u64>().ok());
        let time_ms = numbers.next()??;
        let mut bytes = || numbers.next()??.checked_mul(1024);
        Some(ResidentSample {
            time_ms,
            anonymous_bytes: bytes()?,
            file_bytes: bytes()?,
            shared_bytes: bytes()?,
            swap_bytes: bytes()?,
        })
    };
    let mut all: Vec<ResidentSample> = text.split_ascii_whitespace().filter_map(sample).collect();
    all.sort_by_key(|sample| sample.time_ms);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_as_text() {
        let sample = |time_ms, kib: u64| ResidentSample {
            time_ms,
            anonymous_bytes: kib << 10,
            file_bytes: 2048,
            shared_bytes: 0,
            swap_bytes: 1024,
        };
        let samples = [sample(0, 7), sample(1000, 9)];
        assert_eq!(resident_text(&samples), "0,7,2,0,1 1000,9,2,0,1");
        assert_eq!(resident_of(&resident_text(&samples)), samples);
        assert_eq!(
            resident_of("5 1,2 x,1,1,1,1 1,1,1,1,99999999999999999999"),
            []
        );
        assert_eq!(resident_of("9,1,1,1,18446744073709551615"), []);
    }
}
