//! Result of a judgement.

use crate::evidence::{Evidence, Leak, Sum};
use serde::Serialize;

/// The result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Everything is within its limits.
    Passed,
    /// A limit is exceeded.
    Failed,
    /// Nothing was found, but not everything was seen.
    Unsound,
}

/// Standing of a leak, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// It counts.
    Counted,
    /// A suppression matches.
    Suppressed,
    /// It is in the baseline, and has not grown.
    Known,
}

/// One leak, weighed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The leak.
    pub leak: Leak,
    /// Standing of the leak.
    pub standing: Standing,
    /// Leaks of the site in the baseline, if it has grown since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Sum>,
    /// Number of its group: leaks of one standing for which the same line is to blame.
    pub group: usize,
}

/// Leaks that differ only in how the program got to the function that leaks, the largest first.
#[derive(Clone, Debug)]
pub struct Group<'a>(pub Vec<&'a Finding>);

impl<'a> Group<'a> {
    /// The largest.
    pub fn main(&self) -> &'a Finding {
        self.0[0]
    }

    /// Blocks to which no other leaked block points.
    pub fn direct(&self) -> Sum {
        self.sum(|leak| leak.direct)
    }

    /// With what only they reach.
    pub fn total(&self) -> Sum {
        self.sum(Leak::total)
    }

    /// Returns the part that was in the baseline, or `None` if nothing was.
    pub fn before(&self) -> Option<Sum> {
        let known = self.0.iter().filter_map(|finding| finding.before);
        known.reduce(|mut sum, more| {
            sum.add(more);
            sum
        })
    }

    fn sum(&self, of: impl Fn(&Leak) -> Sum) -> Sum {
        let mut sum = Sum::default();
        self.0.iter().for_each(|finding| sum.add(of(&finding.leak)));
        sum
    }
}

/// A limit that is exceeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The option that sets it.
    pub option: &'static str,
    /// Finding and limit, in words.
    pub text: String,
}

/// Verdict on one of several heaps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeapVerdict {
    /// `malloc`, or what the user calls it.
    pub name: String,
    /// Result for this heap.
    pub outcome: Outcome,
    /// Leaks that count.
    pub leaked: Sum,
    /// Suppressed leaks.
    pub suppressed: Sum,
    /// Leaks that are in the baseline.
    pub known: Sum,
    /// Blocks that something still reaches.
    pub reachable: Sum,
    /// Most bytes live at a time.
    pub peak_bytes: u64,
    /// Allocations made.
    pub allocations: u64,
}

/// The verdict.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The result.
    pub outcome: Outcome,
    /// Exceeded limits.
    pub violations: Vec<Violation>,
    /// Leaks that count. Where allocators are described, of those of malloc's heap.
    pub leaked: Sum,
    /// Suppressed leaks.
    pub suppressed: Sum,
    /// Leaks that are in the baseline.
    pub known: Sum,
    /// Where allocators are described, every heap for itself, that of malloc and its like first: one that takes its
    /// memory from another would be counted twice in a sum.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub heaps: Vec<HeapVerdict>,
    /// Every leak, those of a group together, the largest first.
    pub findings: Vec<Finding>,
    /// Suppressions that matched nothing.
    pub unused_suppressions: Vec<String>,
    /// Evidence for the verdict.
    pub evidence: Evidence,
}

impl Verdict {
    /// The leaks that count, in groups, the largest first.
    pub fn counted(&self) -> Vec<Group<'_>> {
        let findings = self.findings.iter();
        let counted: Vec<_> = findings
            .filter(|f| f.standing == Standing::Counted)
            .collect();
        let groups = counted.chunk_by(|a, b| a.group == b.group);
        groups.map(|group| Group(group.to_vec())).collect()
    }
}

/// The result for several processes: that of the worst.
pub fn outcome(verdicts: &[Verdict]) -> Outcome {
    let is = |outcome| verdicts.iter().any(|v| v.outcome == outcome);
    match (is(Outcome::Failed), is(Outcome::Unsound)) {
        (true, _) => Outcome::Failed,
        (false, true) => Outcome::Unsound,
        (false, false) => Outcome::Passed,
    }
}
