//! Limits of a verdict: `--fail-on 'peak > 2G'`.

use crate::scores;
use anyhow::bail;
use memhook_foreign::units;
use memhook_gate::{Limits, SiteLimit};
use memhook_recording::{GroupLimit, ScoreOptions};

/// Limits of the verdict.
#[derive(clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Limits")]
pub struct LimitOptions {
    /// Fail on this: 'leaked > 100K', 'live > 2G', 'peak > 2G', ...
    ///
    /// 'leaked > BYTES' and 'leaked-blocks > N' limit the leaks. Both limits are 0 by default. If you set one of them,
    /// the other no longer applies.
    ///
    /// 'live > BYTES' limits the live memory at the end, and 'peak > BYTES' its maximum over the whole run.
    /// 'allocations > N' limits the number of allocations. 'site PATTERN > BYTES' limits the live memory at the end of
    /// all sites with PATTERN in a function, file or module.
    ///
    /// 'lifetime-score < 0.5' fails a program with a lower lifetime score. This score, from 0 to 1, compares the
    /// lifetime of blocks with the lifetime of the blocks allocated around them. A loop that allocates in each
    /// iteration has a low score. For the score, memhook-rs records the program into a temporary file, which it removes
    /// at the end. 'lifetime-score(5ms) < 0.5' sets the longest pause between allocations that belong together; the
    /// default is 0.1% of the run time.
    ///
    /// 'usage-score < 0.5' fails a program with a lower usage score: how much of its blocks the program reads and writes.
    /// The program has to report its accesses: see `memhook-rs sdk`.
    ///
    /// May be given several times.
    #[arg(long, value_name = "LIMIT", value_parser = limit)]
    fail_on: Vec<Limit>,
    /// Percentage over the baseline to allow
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    tolerance: f64,
}

/// One limit.
#[derive(Clone, Debug, PartialEq)]
enum Limit {
    Leaked(u64),
    LeakedBlocks(u64),
    Live(u64),
    Peak(u64),
    Allocations(u64),
    Lifetime(f64, Option<GroupLimit>),
    Usage(f64),
    Site(SiteLimit),
}

/// Parses a limit.
fn limit(text: &str) -> Result<Limit, String> {
    const EXPECTED: &str = "expected a quantity and a limit, as in 'leaked > 100K', 'leaked-blocks > 5', 'live > 2G', \
         'peak > 2G', 'allocations > 1000', 'site Cache::insert > 4K', 'lifetime-score < 0.5' or 'usage-score < 0.5'";
    // A pattern may contain either character, as in operator<.
    let at = text.rfind(['<', '>']).ok_or(EXPECTED)?;
    let (what, is_above, number) = (
        text[..at].trim(),
        text[at..].starts_with('>'),
        text[at + 1..].trim(),
    );
    let size = || units::size(number).map_err(|error| error.to_string());
    let count = || {
        let count = number.parse::<u64>();
        count.map_err(|_| format!("'{number}': expected a number"))
    };
    let score = || {
        let score = number.parse::<f64>().ok();
        let score = score.filter(|score| (0.0..=1.0).contains(score));
        score.ok_or("expected a score from 0 to 1, like 0.5")
    };
    match (what, is_above) {
        ("leaked", true) => size().map(Limit::Leaked),
        ("leaked-blocks", true) => count().map(Limit::LeakedBlocks),
        ("live", true) => size().map(Limit::Live),
        ("peak", true) => size().map(Limit::Peak),
        ("allocations", true) => count().map(Limit::Allocations),
        ("usage-score", false) => Ok(Limit::Usage(score()?)),
        ("lifetime-score", false) => Ok(Limit::Lifetime(score()?, None)),
        (what, false) => {
            let pause = what.strip_prefix("lifetime-score(");
            let pause = pause.and_then(|rest| rest.strip_suffix(')'));
            let group = scores::group(pause.ok_or(EXPECTED)?)?;
            Ok(Limit::Lifetime(score()?, Some(group)))
        }
        (what, true) => {
            let pattern = what.strip_prefix("site ").map(str::trim);
            Ok(Limit::Site(SiteLimit {
                bytes: size()?,
                pattern: pattern.ok_or(EXPECTED)?.to_owned(),
            }))
        }
    }
}

impl LimitOptions {
    /// Returns the name of a limit of leaks, if there is one.
    pub fn of_leaks(&self) -> Option<&'static str> {
        self.fail_on.iter().find_map(|limit| match limit {
            Limit::Leaked(_) => Some("leaked"),
            Limit::LeakedBlocks(_) => Some("leaked-blocks"),
            _ => None,
        })
    }

    /// Returns the scoring of sites, if scores are limited.
    pub fn scores(&self) -> Option<ScoreOptions> {
        let mut all = self.fail_on.iter();
        let is_limited = all.any(|limit| matches!(limit, Limit::Lifetime(..) | Limit::Usage(_)));
        let group = self.fail_on.iter().rev().find_map(|limit| match limit {
            Limit::Lifetime(_, group) => *group,
            _ => None,
        });
        is_limited.then(|| scores::with_group(group))
    }

    /// Returns true if the limits need reads and writes.
    pub fn need_accesses(&self) -> bool {
        let mut all = self.fail_on.iter();
        all.any(|limit| matches!(limit, Limit::Usage(_)))
    }

    /// Returns the limits. If two limits apply to one quantity, the last one counts.
    pub fn limits(&self) -> anyhow::Result<Limits> {
        if !(self.tolerance >= 0.0 && self.tolerance.is_finite()) {
            bail!(
                "--tolerance {}: a percentage from 0 up is needed",
                self.tolerance
            );
        }
        let default = self.of_leaks().is_none().then_some(0);
        let mut limits = Limits {
            leaked_bytes: default,
            leaked_blocks: default,
            tolerance_percent: self.tolerance,
            ..Limits::default()
        };
        for limit in &self.fail_on {
            match limit {
                Limit::Leaked(bytes) => limits.leaked_bytes = Some(*bytes),
                Limit::LeakedBlocks(blocks) => limits.leaked_blocks = Some(*blocks),
                Limit::Live(bytes) => limits.live_bytes = Some(*bytes),
                Limit::Peak(bytes) => limits.peak_bytes = Some(*bytes),
                Limit::Allocations(count) => limits.allocations = Some(*count),
                Limit::Lifetime(score, _) => limits.lifetime_score = Some(*score),
                Limit::Usage(score) => limits.usage_score = Some(*score),
                Limit::Site(site) => limits.sites.push(site.clone()),
            }
        }
        Ok(limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_quantity_and_a_number() {
        for (text, expected) in [
            ("leaked > 100K", Limit::Leaked(100 << 10)),
            ("leaked-blocks>5", Limit::LeakedBlocks(5)),
            ("allocations > 1000", Limit::Allocations(1000)),
            ("lifetime-score < 0.5", Limit::Lifetime(0.5, None)),
            (
                "lifetime-score(50%) < .5",
                Limit::Lifetime(0.5, Some(GroupLimit::Part(0.5))),
            ),
            (
                "site std::vector<*> > 4K",
                Limit::Site(SiteLimit {
                    bytes: 4096,
                    pattern: "std::vector<*>".into(),
                }),
            ),
        ] {
            assert_eq!(limit(text), Ok(expected), "{text}");
        }
        for bad in [
            "",
            "leaked",
            "leaked > x",
            "leaked < 5",
            "peek > 2G",
            "usage-score < 2",
            "usage-score > 0.5",
            "lifetime-score(x) < 0.5",
            "site > 4K",
        ] {
            assert!(limit(bad).is_err(), "{bad}");
        }
    }
}
