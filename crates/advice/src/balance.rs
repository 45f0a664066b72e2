//! Compares the parts of the resident memory at the start and at the end. Only growth in this
//! balance is called growth.

use crate::{Facts, Line};
use memhook_report::RssReport;

/// A line of the balance: its name, and the parts of an account that it sums up.
struct Sum {
    what: &'static str,
    parts: &'static [&'static str],
}

const SUMS: [Sum; 9] = [
    Sum {
        what: "live heap",
        parts: &["live heap"],
    },
    Sum {
        what: "free in the allocator, on pages of its own",
        parts: &["free inside the allocator"],
    },
    Sum {
        what: "free in the allocator, beside live blocks",
        parts: &["fragmentation"],
    },
    Sum {
        what: "the allocator's own data",
        parts: &["allocator overhead", "rest of the allocator's memory"],
    },
    Sum {
        what: "stacks of threads",
        parts: &["stacks"],
    },
    Sum {
        what: "mappings beside the heap",
        parts: &["mappings", "shared memory"],
    },
    Sum {
        what: "heap of another allocator, and mappings",
        parts: &["heap of another allocator, and mappings"],
    },
    Sum {
        what: "heap and mappings",
        parts: &["heap and mappings"],
    },
    Sum {
        what: "file pages",
        parts: &["file pages"],
    },
];
const OURS: &str = "ourselves";
const UNEXPLAINED: &str = "unknown";
/// Share of the resident memory that may be unexplained.
const MOST_UNEXPLAINED: f64 = 0.05;

/// Returns the resident bytes of a part of an account.
pub fn part(account: &RssReport, name: &str) -> u64 {
    let found = account.parts.iter().find(|part| part.name == name);
    found.map_or(0, |part| part.bytes)
}

/// Returns the growth of a part between the first and the last look; `None` if there was only one
/// look.
pub fn grown(facts: &Facts<'_>, name: &str) -> Option<f64> {
    let before = part(facts.before()?, name) as f64;
    Some(part(facts.account?, name) as f64 - before)
}

/// Returns the growth of the resident memory, excluding our own memory; `None` unless it was
/// measured twice.
pub fn resident(facts: &Facts<'_>) -> Option<f64> {
    if let (Some(before), Some(after)) = (facts.before(), facts.account) {
        let own = |account: &RssReport| account.rss_bytes.saturating_sub(part(account, OURS));
        return Some(own(after) as f64 - own(before) as f64);
    }
    let points = &facts.profile.resident;
    let (first, last) = (points.first()?, points.last()?);
    // Our own memory in the process is shared, so it is not counted here.
    Some(last.anonymous_bytes as f64 - first.anonymous_bytes as f64)
}

/// Returns the growth of the live heap between two heap walks.
pub fn live(facts: &Facts<'_>) -> Option<f64> {
    let (before, after) = facts.profile.looks.as_ref()?.live_bytes?;
    Some(after as f64 - before as f64)
}

/// Returns the growth of memory that may contain a heap and was not walked.
pub fn unread(facts: &Facts<'_>) -> f64 {
    let parts = [
        "mappings",
        "heap of another allocator, and mappings",
        "heap and mappings",
    ];
    let grown = parts.iter().filter_map(|name| grown(facts, name));
    grown.sum::<f64>().max(0.0)
}

/// Lists the resident bytes by part, now and at the start.
pub fn lines(facts: &Facts<'_>, account: &RssReport) -> Vec<Line> {
    let sum = |account: &RssReport, parts: &[&str]| -> u64 {
        parts.iter().map(|name| part(account, name)).sum()
    };
    let rest = [
        Sum {
            what: "memory of memhook-rs",
            parts: &[OURS],
        },
        Sum {
            what: "not explained",
            parts: &[UNEXPLAINED],
        },
    ];
    let found = SUMS.iter().chain(&rest).filter_map(|line| {
        let bytes = sum(account, line.parts);
        let before = facts.before().map(|before| sum(before, line.parts));
        (bytes > 0 || before > Some(0)).then(|| Line {
            what: line.what,
            bytes,
            bytes_before: before,
            bytes_an_hour: None,
            certainty: "exact",
            evidence: format!("memhook-rs rss {}", facts.target()),
        })
    });
    found.collect()
}

/// Returns the unexplained resident bytes, if there are enough of them to cast doubt on the rest.
pub fn unexplained(account: &RssReport) -> Option<u64> {
    let bytes = part(account, UNEXPLAINED);
    (bytes as f64 > MOST_UNEXPLAINED * account.rss_bytes as f64).then_some(bytes)
}
