//! Options about scores.

use anyhow::{Context, bail};
use memhook_foreign::units;
use memhook_recording::{GroupLimit, ScoreOptions};
use memhook_report::{AccessSource, Formula, Profile};

/// Group of options that request scores, for options that need one of them.
const SCORING: &str = "scoring";

fn scoring() -> clap::ArgGroup {
    clap::ArgGroup::new(SCORING).multiple(true)
}

/// Options about scores.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
#[command(next_help_heading = "Scores", group = scoring())]
pub struct Args {
    /// Score how well the heap is used, and show what stands out
    ///
    /// Scores go from 0 (worst) to 1 (best). The lifetime score compares the lifetime of blocks with that of the
    /// blocks allocated around them. A trace is recorded for that; without -o FILE.mhk, into a temporary file that is
    /// removed afterwards.
    #[arg(long, group = SCORING)]
    scores: bool,
    #[command(flatten)]
    custom: CustomArgs,
    /// Longest pause within a group of blocks (0.1%, 5ms) [default: 0.1%]
    ///
    /// For the lifetime score: a new group begins after a pause longer than this without an allocation. It is a time,
    /// or a percentage of the run time.
    #[arg(long, value_name = "PAUSE", value_parser = group, requires = SCORING)]
    group: Option<GroupLimit>,
}

/// Options for scores of the user's own.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
pub struct CustomArgs {
    /// Add a score: 'waste = size * (1 - usage)'
    ///
    /// A name, and a formula of + - * /, parentheses, min, max, abs, sqrt and log over what is known of a site. Always
    /// known: size, blocks, smallest, largest, peak, peak_blocks, live, live_blocks, lifetime, groups, life_s, run_s.
    /// With --alloc-time: alloc_s. Where accesses are known: usage, useful_lifetime; if they are not sampled, also
    /// accessed, reads, writes, untouched, never_read, never_written, shared, false_shares, wait_s, idle_s. What has no
    /// value, such as a division by zero, is shown as -. A larger value is taken to be worse.
    #[arg(long, value_name = "FORMULA", value_parser = formula, group = SCORING)]
    score: Vec<Formula>,
}

fn formula(text: &str) -> Result<Formula, String> {
    text.parse()
}

impl CustomArgs {
    /// The formulas. Refuses two with one name.
    pub fn formulas(&self) -> anyhow::Result<&[Formula]> {
        for (at, formula) in self.score.iter().enumerate() {
            let name = formula.name();
            if self.score[..at].iter().any(|other| other.name() == name) {
                bail!("--score: there are two scores with the name {name}: rename one");
            }
        }
        Ok(&self.score)
    }

    /// The formulas, as they were typed.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    pub fn as_typed(&self) -> &[Formula] {
        &self.score
    }

    /// The place of the score with this name.
    pub fn place_of(&self, name: &str) -> Option<usize> {
        self.score.iter().position(|formula| formula.name() == name)
    }

    /// Adds the formulas to the scores of a run.
    pub fn add_to(&self, profile: &mut Profile) -> anyhow::Result<()> {
        let formulas = self.formulas()?;
        match &mut profile.scores {
            Some(scores) => scores.add_formulas(formulas).context("--score"),
            None => Ok(()),
        }
    }
}

impl Args {
    /// Returns true if scores were requested, including those that users define.
    pub fn are_wanted(&self) -> bool {
        self.scores || !self.custom.score.is_empty()
    }

    /// Returns the options of scores, if scores were requested.
    pub fn options(&self) -> Option<ScoreOptions> {
        self.are_wanted().then(|| with_group(self.group))
    }

    /// Options for scores of the user's own.
    pub fn custom(&self) -> &CustomArgs {
        &self.custom
    }

    /// Refuses formulas that need more than this source of reads and writes has.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    pub fn check_formulas(&self, source: Option<AccessSource>) -> anyhow::Result<()> {
        let mut formulas = self.custom.formulas()?.iter();
        let checked = formulas.try_for_each(|formula| formula.check(source));
        checked.context("--score")
    }
}

/// The usual scores, but for the limit of a group.
pub fn with_group(group: Option<GroupLimit>) -> ScoreOptions {
    let usual = ScoreOptions::default();
    ScoreOptions {
        group: group.unwrap_or(usual.group),
        ..usual
    }
}

/// `0.1%`, or a time; a bare number is a percentage, too.
pub fn group(text: &str) -> Result<GroupLimit, String> {
    match units::percent(text) {
        Some(percent) if percent > 0.0 && percent <= 100.0 => Ok(GroupLimit::Part(percent / 100.0)),
        Some(_) => Err("expected more than 0 % and at most 100 %".into()),
        None => match units::duration(text) {
            Ok(time) => Ok(GroupLimit::Nanoseconds(
                u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
            )),
            Err(_) => {
                Err("expected a percentage of the run time like 0.1%, or a time like 5ms".into())
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_parts_of_the_run_or_times() {
        for (text, limit) in [
            ("0.1%", GroupLimit::Part(0.001)),
            ("0.1", GroupLimit::Part(0.001)),
            ("100%", GroupLimit::Part(1.0)),
            ("5ms", GroupLimit::Nanoseconds(5_000_000)),
        ] {
            assert_eq!(group(text), Ok(limit), "{text}");
        }
        for bad in ["", "0", "-1%", "101", "NaN", "5x", "x%"] {
            assert!(group(bad).is_err(), "{bad}");
        }
    }
}
