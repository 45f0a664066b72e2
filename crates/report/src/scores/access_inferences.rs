//! Changes that the reads and writes of a site suggest.

use super::inferences::{Finding, Gain, InferenceKind, Seen};
use crate::units::{bytes, count, counted, duration};
use memhook_recording::{AccessSums, ScoredSite};

/// Total bytes of a site's blocks below which a change is not worthwhile.
const LEAST_BYTES: u64 = 1024;
/// Share of a site's blocks that must have a property before the site itself is considered to have
/// it.
const MOST_BLOCKS: f64 = 0.9;
/// Share of each block that has to be unused before a smaller block would suffice.
const UNUSED: f64 = 0.5;
/// Idle share of the lifetime, before the first access or after the last one, above which there is
/// a finding.
const IDLE: f64 = 0.5;
/// Share of the run below which lifetimes are too short for idleness to matter.
const LEAST_LIFETIME: f64 = 0.01;
/// Number of times that a site's cache lines must move between threads before there is a finding.
const LEAST_FALSE_SHARES: u64 = 100;

/// Infers suggested changes from the reads and writes of a site. Returns no suggestions if the
/// reads and writes are unknown.
pub(super) fn of_accesses(site: &ScoredSite, seen: Seen) -> Vec<Finding> {
    let Some(sums) = &site.accesses else {
        return Vec::new();
    };
    if sums.chunks == 0 || sums.bytes < LEAST_BYTES {
        return Vec::from_iter(false_sharing(sums));
    }
    let of_contents = untouched(site, sums, seen)
        .or_else(|| never_read(site, sums))
        .or_else(|| never_written(site, sums));
    let all = [
        of_contents,
        over_allocated(site, sums),
        early(site, sums, seen),
        late(site, sums, seen),
        false_sharing(sums).or_else(|| several_threads(sums)),
    ];
    all.into_iter().flatten().collect()
}

fn are_most(blocks: u64, sums: &AccessSums) -> bool {
    blocks as f64 >= MOST_BLOCKS * sums.chunks as f64
}

fn untouched(site: &ScoredSite, sums: &AccessSums, seen: Seen) -> Option<Finding> {
    are_most(sums.untouched, sums).then(|| Finding {
        kind: InferenceKind::NeverTouched,
        evidence: format!(
            "{} of {} are neither read nor written by the program's own code",
            count(sums.untouched),
            counted(sums.chunks, "block")
        ),
        advice: "leave the allocation out, or make it where it is needed",
        gain: Gain {
            bytes: site.most_live_bytes,
            byte_seconds: sums.untouched_byte_ns / 1e9,
            ..seen.calls(sums.untouched)
        },
    })
}

fn never_read(site: &ScoredSite, sums: &AccessSums) -> Option<Finding> {
    are_most(sums.never_read, sums).then(|| Finding {
        kind: InferenceKind::NeverRead,
        evidence: format!(
            "{} of {} are written and never read by the program's own code ({})",
            count(sums.never_read),
            counted(sums.chunks, "block"),
            counted(sums.writes, "write")
        ),
        advice: "do not compute what nobody reads",
        gain: Gain {
            bytes: site.most_live_bytes,
            ..Gain::default()
        },
    })
}

fn never_written(site: &ScoredSite, sums: &AccessSums) -> Option<Finding> {
    are_most(sums.never_written, sums).then(|| Finding {
        kind: InferenceKind::NeverWritten,
        evidence: format!(
            "{} of {} are zeroed by calloc, read and never written ({})",
            count(sums.never_written),
            counted(sums.chunks, "block"),
            counted(sums.reads, "read")
        ),
        advice: "share one constant block",
        gain: Gain {
            bytes: site.most_live_bytes,
            ..Gain::default()
        },
    })
}

fn over_allocated(site: &ScoredSite, sums: &AccessSums) -> Option<Finding> {
    let unused = site.smallest.saturating_sub(sums.furthest);
    let is_unused = unused as f64 >= UNUSED * site.smallest as f64;
    let wasted = unused.saturating_mul(sums.chunks);
    if sums.furthest == 0 || !is_unused || wasted < LEAST_BYTES {
        return None;
    }
    Some(Finding {
        kind: InferenceKind::OverAllocated,
        evidence: format!(
            "of blocks of {} or more, nothing past the first {} is used ({})",
            bytes(site.smallest),
            bytes(sums.furthest),
            counted(sums.chunks, "block")
        ),
        advice: "allocate as much as is used",
        gain: Gain {
            bytes: unused.saturating_mul(site.most_live),
            byte_seconds: sums.lifetimes_ns as f64 / 1e9 * unused as f64,
            ..Gain::default()
        },
    })
}

/// Returns true if the blocks are idle for at least the share [`IDLE`] of their lifetimes, and for
/// long enough to matter.
fn is_idle(idle_ns: u128, sums: &AccessSums, seen: Seen) -> bool {
    let touched = sums.chunks - sums.untouched;
    let mean_s = sums.lifetimes_ns as f64 / 1e9 / touched.max(1) as f64;
    let is_long = mean_s >= LEAST_LIFETIME * seen.seconds;
    touched > 0 && is_long && idle_ns as f64 >= IDLE * sums.lifetimes_ns as f64
}

/// Returns `first 20 ms of 30 ms`.
fn part(idle_ns: u128, sums: &AccessSums) -> String {
    let touched = (sums.chunks - sums.untouched).max(1) as f64;
    let mean = |ns: u128| duration(ns as f64 / 1e9 / touched);
    format!("{} of {}", mean(idle_ns), mean(sums.lifetimes_ns))
}

fn early(site: &ScoredSite, sums: &AccessSums, seen: Seen) -> Option<Finding> {
    is_idle(sums.before_ns, sums, seen).then(|| Finding {
        kind: InferenceKind::AllocatedEarly,
        evidence: format!(
            "not used in the first {} that they live, on average ({})",
            part(sums.before_ns, sums),
            counted(sums.chunks, "block")
        ),
        advice: "allocate when it is first needed",
        gain: Gain {
            bytes: site.most_live_bytes,
            byte_seconds: sums.before_byte_ns / 1e9,
            ..Gain::default()
        },
    })
}

fn late(site: &ScoredSite, sums: &AccessSums, seen: Seen) -> Option<Finding> {
    is_idle(sums.after_ns, sums, seen).then(|| Finding {
        kind: InferenceKind::HeldLong,
        evidence: format!(
            "not used in the last {} that they live, on average ({})",
            part(sums.after_ns, sums),
            counted(sums.chunks, "block")
        ),
        advice: "release after the last use",
        gain: Gain {
            bytes: site.most_live_bytes,
            byte_seconds: sums.after_byte_ns / 1e9,
            ..Gain::default()
        },
    })
}

fn false_sharing(sums: &AccessSums) -> Option<Finding> {
    (sums.false_shares >= LEAST_FALSE_SHARES).then(|| Finding {
        kind: InferenceKind::FalseSharing,
        evidence: format!(
            "a thread wrote {} into a cache line just after another thread wrote to other bytes of it ({} accessed by several threads)",
            counted(sums.false_shares, "time"),
            counted(sums.by_several, "block")
        ),
        advice: "give each thread lines of its own (alignas(64))",
        gain: Gain {
            line_transfers: sums.false_shares,
            ..Gain::default()
        },
    })
}

fn several_threads(sums: &AccessSums) -> Option<Finding> {
    are_most(sums.by_several, sums).then(|| Finding {
        kind: InferenceKind::SeveralThreads,
        evidence: format!(
            "{} of {} are accessed by several threads",
            count(sums.by_several),
            counted(sums.chunks, "block")
        ),
        advice: "",
        gain: Gain::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: Seen = Seen { seconds: 10.0 };

    /// Ten blocks of 1000 bytes, each fully used from the start to the end of the second for which
    /// it lives.
    fn used() -> ScoredSite {
        ScoredSite {
            smallest: 1000,
            largest: 1000,
            most_live: 10,
            most_live_bytes: 10_000,
            chunks: 10,
            accesses: Some(AccessSums {
                chunks: 10,
                bytes: 10_000,
                accessed_bytes: 10_000,
                active: 10.0,
                reads: 100,
                writes: 100,
                furthest: 1000,
                lifetimes_ns: 10_000_000_000,
                ..AccessSums::default()
            }),
            ..ScoredSite::default()
        }
    }

    fn kinds(change: fn(&mut AccessSums)) -> Vec<InferenceKind> {
        let mut site = used();
        change(site.accesses.as_mut().unwrap());
        of_accesses(&site, SEEN).iter().map(|f| f.kind).collect()
    }

    #[test]
    fn thresholds() {
        use InferenceKind::*;
        assert_eq!(kinds(|_| {}), []);
        assert_eq!(kinds(|s| s.never_read = 9), [NeverRead]);
        assert_eq!(kinds(|s| s.never_read = 8), []);
        assert_eq!(kinds(|s| s.never_written = 9), [NeverWritten]);
        assert_eq!(kinds(|s| s.never_written = 8), []);
        assert_eq!(kinds(|s| s.furthest = 500), [OverAllocated]);
        assert_eq!(kinds(|s| s.furthest = 501), []);
        assert_eq!(kinds(|s| s.before_ns = 5_000_000_000), [AllocatedEarly]);
        assert_eq!(kinds(|s| s.before_ns = 4_999_999_999), []);
        assert_eq!(kinds(|s| s.after_ns = 5_000_000_000), [HeldLong]);
        assert_eq!(kinds(|s| s.after_ns = 4_999_999_999), []);
        assert_eq!(kinds(|s| s.false_shares = 100), [FalseSharing]);
        assert_eq!(kinds(|s| s.false_shares = 99), []);
        assert_eq!(kinds(|s| s.by_several = 9), [SeveralThreads]);
        assert_eq!(kinds(|s| s.by_several = 8), []);
        let untouched = |s: &mut AccessSums| {
            *s = AccessSums {
                chunks: 10,
                bytes: 10_000,
                untouched: 10,
                ..AccessSums::default()
            }
        };
        assert_eq!(kinds(untouched), [NeverTouched]);
        // The lifetimes are too short for the pauses to matter.
        let short = |s: &mut AccessSums| (s.lifetimes_ns, s.after_ns) = (999_999_999, 999_999_999);
        assert_eq!(kinds(short), []);
        // The blocks are too small to matter.
        let small = |s: &mut AccessSums| (s.bytes, s.never_read) = (1023, 10);
        assert_eq!(kinds(small), []);
    }
}
