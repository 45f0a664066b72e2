//! What a judgement comes to.

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

/// Why a leak does or does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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
    /// Whether it counts.
    pub standing: Standing,
    /// What the site leaked in the baseline, if it has grown since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Sum>,
}

/// A limit that is exceeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The option that sets it.
    pub option: &'static str,
    /// What was found against what is allowed, in words.
    pub text: String,
}

/// The verdict.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The result.
    pub outcome: Outcome,
    /// Exceeded limits.
    pub violations: Vec<Violation>,
    /// What counts of the leaks.
    pub leaked: Sum,
    /// What is suppressed.
    pub suppressed: Sum,
    /// What is in the baseline.
    pub known: Sum,
    /// Every leak, largest first.
    pub findings: Vec<Finding>,
    /// Suppressions that matched nothing.
    pub unused_suppressions: Vec<String>,
    /// What it was made from.
    pub evidence: Evidence,
}

impl Verdict {
    /// The leaks that count.
    pub fn counted(&self) -> impl Iterator<Item = &Finding> {
        let findings = self.findings.iter();
        findings.filter(|f| f.standing == Standing::Counted)
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
