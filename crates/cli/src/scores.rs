//! Options about scores.

use anyhow::{Context, bail};
use memhook_foreign::units;
use memhook_recording::{GroupLimit, ScoreOptions};
use memhook_report::{AccessSource, Formula, Profile};

/// Options about scores.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
#[command(next_help_heading = "Scores")]
pub struct Args {
    /// Score how well the heap is used, and show what stands out
    ///
    /// Scores go from 0 (worst) to 1 (best). The lifetime score compares the lifetime of blocks with the lifetime of
    /// the blocks allocated around them. For this, a trace is recorded, without -o FILE.mhk into a temporary file that
    /// is removed at the end. --scores='group = 5ms' sets the longest pause between the allocations of such a group, as
    /// a time or as a percentage of the run time (default: 0.1%).
    ///
    /// --scores='waste = size * (1 - usage)' adds a score of your own: a name, and a formula of + - * /, parentheses,
    /// min, max, abs, sqrt and log over what is known of a site. Always known: size, blocks, smallest, largest, peak,
    /// peak_blocks, live, live_blocks, lifetime, groups, life_s, run_s. With --alloc-time: alloc_s. Where accesses are
    /// known: usage, useful_lifetime; if they are not sampled, also accessed, reads, writes, untouched, never_read,
    /// never_written, shared, false_shares, wait_s, idle_s. A score without a value, such as a division by zero, is
    /// shown as -. A larger value is taken to be worse. May be given several times.
    #[arg(long, value_name = "FORMULA", num_args = 0..=1, require_equals = true, default_missing_value = "",
          value_parser = asked)]
    scores: Vec<Asked>,
}

/// Value of one option.
#[derive(Clone, Debug)]
enum Asked {
    Usual,
    Group(GroupLimit),
    Formula(Formula),
}

fn asked(text: &str) -> Result<Asked, String> {
    match text.split_once('=') {
        _ if text.is_empty() => Ok(Asked::Usual),
        Some((name, pause)) if name.trim() == "group" => group(pause.trim()).map(Asked::Group),
        _ => text.parse().map(Asked::Formula),
    }
}

impl Args {
    /// Returns true if scores were requested, including those that users define.
    pub fn are_wanted(&self) -> bool {
        !self.scores.is_empty()
    }

    /// Returns the options of scores, if scores were requested.
    pub fn options(&self) -> Option<ScoreOptions> {
        self.are_wanted().then(|| with_group(self.group()))
    }

    /// Returns the longest pause within a group of blocks, if it was given.
    pub fn group(&self) -> Option<GroupLimit> {
        self.scores.iter().rev().find_map(|asked| match asked {
            Asked::Group(limit) => Some(*limit),
            _ => None,
        })
    }

    /// Returns the formulas, as they were typed.
    pub fn as_typed(&self) -> Vec<Formula> {
        let formulas = self.scores.iter().filter_map(|asked| match asked {
            Asked::Formula(formula) => Some(formula.clone()),
            _ => None,
        });
        formulas.collect()
    }

    /// Returns the formulas. Refuses two with one name.
    pub fn formulas(&self) -> anyhow::Result<Vec<Formula>> {
        let formulas = self.as_typed();
        for (at, formula) in formulas.iter().enumerate() {
            let name = formula.name();
            if formulas[..at].iter().any(|other| other.name() == name) {
                bail!("--scores: there are two scores with the name {name}: rename one");
            }
        }
        Ok(formulas)
    }

    /// Returns the position of the formula with this name.
    pub fn place_of(&self, name: &str) -> Option<usize> {
        self.as_typed()
            .iter()
            .position(|formula| formula.name() == name)
    }

    /// Adds the formulas to the scores of a run.
    pub fn add_to(&self, profile: &mut Profile) -> anyhow::Result<()> {
        let formulas = self.formulas()?;
        match &mut profile.scores {
            Some(scores) => scores.add_formulas(&formulas).context("--scores"),
            None => Ok(()),
        }
    }

    /// Refuses formulas that need more than this source of reads and writes has.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    pub fn check_formulas(&self, source: Option<AccessSource>) -> anyhow::Result<()> {
        let formulas = self.formulas()?;
        let checked = formulas
            .iter()
            .try_for_each(|formula| formula.check(source));
        checked.context("--scores")
    }
}

/// Returns the usual options for scores, with this limit of a group.
pub fn with_group(group: Option<GroupLimit>) -> ScoreOptions {
    let usual = ScoreOptions::default();
    ScoreOptions {
        group: group.unwrap_or(usual.group),
        ..usual
    }
}

/// Parses `0.1%`, or a time. A bare number is a percentage, too.
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
