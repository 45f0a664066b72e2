//! Options about scores.

use memhook_foreign::units;
use memhook_recording::{GroupLimit, ScoreOptions};

/// Options about scores.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
#[command(next_help_heading = "Scores")]
pub struct Args {
    /// Score how well the heap is used, and show what stands out
    ///
    /// Scores go from 0 (worst) to 1 (best). The lifetime score says whether blocks live long, compared with the
    /// blocks that were allocated around them. A trace is recorded for that; without -o FILE.mhk, into a temporary
    /// file that is removed afterwards.
    #[arg(long)]
    pub scores: bool,
    /// Longest pause within a group of blocks (0.1%, 5ms) [default: 0.1%]
    ///
    /// The lifetime score is about groups: after a pause longer than this, in which no block is allocated, the next
    /// group begins. It is a time, or a percentage of the run time.
    #[arg(long, value_name = "PAUSE", value_parser = group, requires = "scores")]
    group: Option<GroupLimit>,
}

impl Args {
    /// How sites are scored, if scores were requested.
    pub fn options(&self) -> Option<ScoreOptions> {
        self.scores.then(|| with_group(self.group))
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
