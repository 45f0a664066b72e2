//! Conditions under which a comparison fails: `growth > 5%`.

use crate::units::{change, count};
use crate::{Diff, Measure, Unit, bytes};
use memhook_foreign::units;
use std::str::FromStr;

/// Number of standard errors by which an estimate has to exceed a limit. By chance alone, one
/// estimate in forty does so.
const ERRORS: u64 = 2;

/// Message for a text that is not a valid expression.
const ALLOWED: &str = "expected [site] [live|peak|allocated|released|temporary] [growth] [count] > LIMIT, where LIMIT is a size \
     (4K, 1M), a number of blocks after count, or a percentage: growth > 5%, allocated > 10M, site growth > 1M, count > 100";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    Percent(f64),
    Absolute(u64),
}

/// Limit on the growth of the newer run.
#[derive(Clone, Debug, PartialEq)]
pub struct FailOn {
    text: String,
    /// True if the limit applies to each single site, and not to the sum.
    is_of_sites: bool,
    measure: Option<Measure>,
    unit: Unit,
    limit: Limit,
}

impl FromStr for FailOn {
    type Err = String;

    fn from_str(text: &str) -> Result<FailOn, String> {
        let failed = || format!("{text:?}: {ALLOWED}");
        let (what, limit) = text.split_once('>').ok_or_else(failed)?;
        let mut words = what.split_ascii_whitespace().peekable();
        let is_of_sites = words.next_if_eq(&"site").is_some();
        let measure = words.peek().and_then(|word| word.parse().ok());
        if measure.is_some() {
            words.next();
        }
        let is_growth = words.next_if_eq(&"growth").is_some();
        let unit = match words.next_if_eq(&"count") {
            Some(_) => Unit::Blocks,
            None => Unit::Bytes,
        };
        let names_nothing = measure.is_none() && !is_growth && unit == Unit::Bytes;
        if names_nothing || words.next().is_some() {
            return Err(failed());
        }
        Ok(FailOn {
            limit: limit_of(limit.trim(), unit).ok_or_else(failed)?,
            text: text.trim().to_owned(),
            is_of_sites,
            measure,
            unit,
        })
    }
}

fn limit_of(text: &str, unit: Unit) -> Option<Limit> {
    if text.ends_with('%') {
        return units::percent(text).map(Limit::Percent);
    }
    let number = match unit {
        Unit::Bytes => units::size(text).ok(),
        Unit::Blocks | Unit::Calls => text.parse().ok(),
    };
    number.map(Limit::Absolute)
}

/// Value that is compared with the limit.
struct Change {
    old: u64,
    new: u64,
    error: u64,
}

impl FailOn {
    /// Returns the measure to compare, if the expression names one.
    pub fn measure(&self) -> Option<Measure> {
        self.measure
    }

    /// Describes the value that exceeds the limit, or returns `None`. If the limit applies to
    /// sites, the comparison must list all sites.
    pub fn violation(&self, diff: &Diff) -> Option<String> {
        if !self.is_of_sites {
            let change = self.change(
                (diff.old.bytes, diff.new.bytes),
                (diff.old.blocks, diff.new.blocks),
                [diff.old.error_bytes, diff.new.error_bytes]
                    .into_iter()
                    .flatten()
                    .max(),
            );
            let what = format!("{} in all", diff.measure);
            return self.is_above(&change).then(|| self.said(&what, &change));
        }
        let changes = diff.sites.iter().map(|site| {
            let change = self.change(
                (site.old_bytes, site.new_bytes),
                (site.old_blocks, site.new_blocks),
                site.error_bytes,
            );
            (site, change)
        });
        let mut above = changes.filter(|(_, change)| self.is_above(change));
        let (site, change) = above.next()?;
        let others = match above.count() {
            0 => String::new(),
            n => format!(", and {}", crate::counted(n as u64, "other site")),
        };
        let name = crate::labels::site_name(&site.stack);
        Some(self.said(&name, &change) + &others)
    }

    fn change(&self, bytes: (u64, u64), blocks: (u64, u64), error: Option<u64>) -> Change {
        let (old, new) = match self.unit {
            Unit::Bytes => bytes,
            Unit::Blocks | Unit::Calls => blocks,
        };
        let error = match self.unit {
            Unit::Bytes => error.unwrap_or(0),
            Unit::Blocks | Unit::Calls => 0,
        };
        Change { old, new, error }
    }

    fn is_above(&self, change: &Change) -> bool {
        let least = change
            .new
            .saturating_sub(change.error.saturating_mul(ERRORS));
        let growth = least.saturating_sub(change.old);
        match self.limit {
            Limit::Absolute(most) => growth > most,
            Limit::Percent(most) => growth > 0 && growth as f64 > change.old as f64 * most / 100.0,
        }
    }

    fn said(&self, what: &str, change: &Change) -> String {
        let grown = i64::try_from(change.new.saturating_sub(change.old)).unwrap_or(i64::MAX);
        let (by, from, to) = match self.unit {
            Unit::Bytes => (self::change(grown), bytes(change.old), bytes(change.new)),
            Unit::Blocks | Unit::Calls => (
                format!("+{}", count(grown.unsigned_abs())),
                count(change.old),
                crate::counted(change.new, "block"),
            ),
        };
        let percent = match change.old {
            0 => String::new(),
            old => format!(", {:.1} %", grown as f64 * 100.0 / old as f64),
        };
        format!("{}: {what} {by} ({from} -> {to}{percent})", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Amount, Measures, Profile, ProfileFrame, ProfileSite, diff};

    fn profile(sites: &[(u64, u64)]) -> Profile {
        let mut profile = Profile::default();
        for (number, &(blocks, bytes)) in sites.iter().enumerate() {
            let mut frame = ProfileFrame::cut_root();
            frame.frame.function = Some(format!("site{number}"));
            profile.frames.push(frame);
            profile.stacks.push(vec![number as u32]);
            let live = Amount {
                blocks,
                bytes,
                ..Amount::default()
            };
            profile.sites.push(ProfileSite {
                stack: number as u32,
                measures: Measures {
                    live,
                    ..Measures::default()
                },
                ..ProfileSite::default()
            });
        }
        profile
    }

    #[test]
    fn growth_above_a_limit() {
        let old = profile(&[(10, 1000), (1, 4000)]);
        let new = profile(&[(30, 1300), (1, 4000)]);
        let found = diff(&old, &new, Measure::Live, usize::MAX);
        for (expression, fails) in [
            ("growth > 5%", true),
            ("growth > 6%", false),
            ("growth>299", true),
            ("live growth > 300", false),
            ("live > 1K", false),
            ("count > 19", true),
            ("growth count > 20", false),
            ("site growth > 29%", true),
            ("site growth > 30 %", false),
            ("site count > 200%", false),
            ("site live count > 199%", true),
        ] {
            let parsed: FailOn = expression.parse().expect(expression);
            let said = parsed.violation(&found);
            assert_eq!(said.is_some(), fails, "{expression}: {said:?}");
        }
        let said = |expression: &str| {
            let parsed: FailOn = expression.parse().expect("an expression");
            parsed.violation(&found).expect("a violation")
        };
        assert_eq!(
            said("growth > 5%"),
            "growth > 5%: live in all +300 B (4.9 KiB -> 5.2 KiB, 6.0 %)"
        );
        assert_eq!(
            said("site count > 1"),
            "site count > 1: site0 +20 (10 -> 30 blocks, 200.0 %)"
        );
    }

    #[test]
    fn what_comes_new_is_above_every_percentage() {
        let found = diff(
            &profile(&[]),
            &profile(&[(1, 8)]),
            Measure::Live,
            usize::MAX,
        );
        let any: FailOn = "growth > 100000%".parse().expect("an expression");
        assert!(any.violation(&found).is_some());
        let none = diff(
            &profile(&[(1, 8)]),
            &profile(&[]),
            Measure::Live,
            usize::MAX,
        );
        let any: FailOn = "growth > 0%".parse().expect("an expression");
        assert!(any.violation(&none).is_none());
    }

    #[test]
    fn other_expressions_are_refused() {
        for bad in [
            "",
            "growth",
            "growth < 5%",
            "> 5%",
            "site > 5%",
            "growth > ",
            "growth > five",
            "growth > -5%",
            "growth > 5 apples",
            "count > 5K",
            "growth size > 5%",
            "growth > 99999999999G",
        ] {
            let error = bad.parse::<FailOn>().expect_err(bad);
            assert!(
                error.contains("growth > 5%") && !error.contains('\n'),
                "{error}"
            );
        }
    }
}
