//! Result of `--overhead`: the budget, the cost of tracing, and the recorded share.

use crate::units::{counted, milliseconds};
use serde::{Deserialize, Serialize};

/// Maximum number of periods that the text lists individually.
const LISTED: usize = 3;

/// Result of tracing within a budget.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Overhead {
    /// Share of the process's time that tracing may take.
    pub budget: f64,
    /// Share of the process's time that tracing took: `in_process` plus `in_attacher`.
    pub cost: f64,
    /// Share by which the process's calls took longer, measured on a random selection of them.
    pub in_process: f64,
    /// Share of processor time that memhook-rs spent on reading the events.
    pub in_attacher: f64,
    /// Part of `in_process` that is the cost of passing through the wrappers. Sampling does not
    /// reduce it.
    pub passing: f64,
    /// Calls that were timed.
    pub timed_calls: u64,
    /// Ways of recording since the attach, in order.
    pub kept: Vec<KeptTime>,
}

/// A period during which the way of recording allocations did not change.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct KeptTime {
    /// Begin in seconds since the attach.
    pub from_s: f64,
    /// End in seconds since the attach.
    pub to_s: f64,
    /// Mean number of bytes between samples; `None` if every allocation was recorded.
    pub mean_bytes: Option<u64>,
}

impl KeptTime {
    fn length_s(&self) -> f64 {
        (self.to_s - self.from_s).max(0.0)
    }
}

fn time(seconds: f64) -> String {
    match seconds {
        10.0..60.0 => format!("{seconds:.0} s"),
        _ => milliseconds((seconds * 1e3) as u64),
    }
}

/// Formats a power of two in bytes.
fn bytes(count: u64) -> String {
    match count.trailing_zeros() {
        30.. => format!("{} GiB", count >> 30),
        20.. => format!("{} MiB", count >> 20),
        10.. => format!("{} KiB", count >> 10),
        _ => format!("{count} B"),
    }
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let digits = if percent < 0.1 { 3 } else { 2 };
    let text = format!("{percent:.digits$}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} %")
}

impl Overhead {
    /// Returns a text such as `exact for 41 s, then 1 in 64 KiB`.
    pub fn kept_in_words(&self) -> String {
        let how = |kept: &KeptTime| match kept.mean_bytes {
            None => "exact".to_owned(),
            Some(mean) => format!("1 in {}", bytes(mean)),
        };
        let (Some(last), listed) = (self.kept.last(), self.kept.len() <= LISTED) else {
            return "exact".into();
        };
        if listed {
            let before = self.kept[..self.kept.len() - 1].iter();
            let mut parts: Vec<String> = before
                .map(|kept| format!("{} for {}", how(kept), time(kept.length_s())))
                .collect();
            parts.push(how(last));
            return parts.join(", then ");
        }
        let exact: f64 = self
            .kept
            .iter()
            .filter(|kept| kept.mean_bytes.is_none())
            .map(KeptTime::length_s)
            .sum();
        let means = || self.kept.iter().filter_map(|kept| kept.mean_bytes);
        let (least, most) = (means().min().unwrap_or(0), means().max().unwrap_or(0));
        let samples = if least == most {
            format!("1 in {}", bytes(most))
        } else {
            format!("from 1 in {} to 1 in {}", bytes(least), bytes(most))
        };
        format!(
            "exact for {} of {}, in the rest {samples} ({}, now {})",
            time(exact),
            time(last.to_s),
            counted(self.kept.len() as u64 - 1, "change"),
            how(last),
        )
    }

    /// Describes the result, for the first lines of a report.
    pub fn in_words(&self) -> String {
        let mut text = format!(
            "Overhead {} of {}: {}",
            percent(self.cost),
            percent(self.budget),
            self.kept_in_words()
        );
        if self.passing > self.budget {
            text += &format!(
                ". Calls that are not recorded take {} already: detach, or trace for a shorter time",
                percent(self.passing)
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overhead(kept: &[(f64, f64, Option<u64>)]) -> Overhead {
        Overhead {
            budget: 0.02,
            cost: 0.0123,
            in_process: 0.01,
            in_attacher: 0.0023,
            passing: 0.001,
            timed_calls: 7,
            kept: kept
                .iter()
                .map(|&(from_s, to_s, mean_bytes)| KeptTime {
                    from_s,
                    to_s,
                    mean_bytes,
                })
                .collect(),
        }
    }

    #[test]
    fn what_was_kept() {
        let of = |kept| overhead(kept).kept_in_words();
        assert_eq!(of(&[]), "exact");
        assert_eq!(of(&[(0.0, 9.0, None)]), "exact");
        let two = [(0.0, 41.0, None), (41.0, 50.0, Some(65_536))];
        assert_eq!(of(&two), "exact for 41 s, then 1 in 64 KiB");
        let many = [
            (0.0, 1.0, None),
            (1.0, 2.0, Some(65_536)),
            (2.0, 4.0, Some(1024)),
            (4.0, 9.0, None),
        ];
        assert_eq!(
            of(&many),
            "exact for 6.0 s of 9.0 s, in the rest from 1 in 1 KiB to 1 in 64 KiB (3 changes, now exact)"
        );
    }

    #[test]
    fn a_budget_that_cannot_be_kept_is_told() {
        let mut found = overhead(&[]);
        assert_eq!(found.in_words(), "Overhead 1.23 % of 2 %: exact");
        found.passing = 0.03;
        assert!(found.in_words().contains("take 3 % already"));
    }
}
