//! Result of a judgement.

use crate::evidence::{Evidence, Leak, Sum};
use serde::Serialize;

/// Outcome of a judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Everything is within its limits.
    Passed,
    /// A limit was exceeded.
    Failed,
    /// Nothing was found, but not everything was examined.
    Unsound,
}

/// Standing of a leak, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// The leak counts.
    Counted,
    /// A suppression matches.
    Suppressed,
    /// The leak is in the baseline, and has not grown.
    Known,
}

/// One leak, judged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The leak.
    pub leak: Leak,
    /// Standing of the leak.
    pub standing: Standing,
    /// Leaks of the site in the baseline, if they have grown since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Sum>,
    /// Number of the leak's group. A group consists of the leaks with the same standing that are
    /// blamed on the same line.
    pub group: usize,
}

/// Leaks that differ only in the path by which the program reached the leaking function, the
/// largest first.
#[derive(Clone, Debug)]
pub struct Group<'a>(pub Vec<&'a Finding>);

impl<'a> Group<'a> {
    /// Returns the largest leak.
    pub fn main(&self) -> &'a Finding {
        self.0[0]
    }

    /// Returns the sum of the blocks that no other leaked block points to.
    pub fn direct(&self) -> Sum {
        self.sum(|leak| leak.direct)
    }

    /// Returns the sum of the directly leaked blocks and the blocks reachable only from them.
    pub fn total(&self) -> Sum {
        self.sum(Leak::total)
    }

    /// Returns the part that was in the baseline; `None` if no part was.
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

/// An exceeded limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Option that sets the limit.
    pub option: &'static str,
    /// The exceeding value and the limit, in words.
    pub text: String,
}

/// Verdict on one of several heaps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeapVerdict {
    /// `malloc`, or the name given by the user.
    pub name: String,
    /// Result for this heap.
    pub outcome: Outcome,
    /// Leaks that count.
    pub leaked: Sum,
    /// Suppressed leaks.
    pub suppressed: Sum,
    /// Leaks in the baseline.
    pub known: Sum,
    /// Blocks that something still reaches.
    pub reachable: Sum,
    /// Peak of live bytes.
    pub peak_bytes: u64,
    /// Number of allocations.
    pub allocations: u64,
}

/// A verdict.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The result.
    pub outcome: Outcome,
    /// Exceeded limits.
    pub violations: Vec<Violation>,
    /// Leaks that count. If allocators are described, these are the leaks of malloc's heap only.
    pub leaked: Sum,
    /// Suppressed leaks.
    pub suppressed: Sum,
    /// Leaks in the baseline.
    pub known: Sum,
    /// If allocators are described, each heap has a separate entry, with malloc's heap first. A sum
    /// would count memory twice if one heap takes it from another.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub heaps: Vec<HeapVerdict>,
    /// Every leak, grouped, the largest first.
    pub findings: Vec<Finding>,
    /// Suppressions that matched nothing.
    pub unused_suppressions: Vec<String>,
    /// Evidence for the verdict.
    pub evidence: Evidence,
}

impl Verdict {
    /// Returns the leaks that count, in groups, the largest first.
    pub fn counted(&self) -> Vec<Group<'_>> {
        let findings = self.findings.iter();
        let counted: Vec<_> = findings
            .filter(|f| f.standing == Standing::Counted)
            .collect();
        let groups = counted.chunk_by(|a, b| a.group == b.group);
        groups.map(|group| Group(group.to_vec())).collect()
    }
}

/// Returns the worst outcome of several processes.
pub fn outcome(verdicts: &[Verdict]) -> Outcome {
    let is = |outcome| verdicts.iter().any(|v| v.outcome == outcome);
    match (is(Outcome::Failed), is(Outcome::Unsound)) {
        (true, _) => Outcome::Failed,
        (false, true) => Outcome::Unsound,
        (false, false) => Outcome::Passed,
    }
}
